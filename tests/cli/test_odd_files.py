"""Files that look odd and are legal: what they say is read."""

import numpy as np
import pytest
from test_commands import fitted, model, quiet_world, record, run  # noqa: F401 - fixtures

files = pytest.importorskip("prodssm.cli.files")
pandas = pytest.importorskip("pandas")


def table(path, content, **how):
    path.write_bytes(content.encode(how.get("encoding", "utf-8")))
    return files.read_table(path, **how)


@pytest.mark.parametrize(
    ("content", "how"),
    [
        ("\ufefflevel,pump\n1,2\n3,4\n", {}),
        ("\n\nlevel;pump\n1;2\n3;4\n", {}),
        ("level,pump\r1,2\r3,4\r", {}),
        ("level,pump,\n1,2,\n3,4,\n", {}),
        ("level\tpump\n1\t2\n3\t4\n", {"delimiter": "\\t"}),
    ],
)
def test_marks_empty_lines_and_delimiters_do_not_matter(content, how, tmp_path):
    found = table(tmp_path / "odd.csv", content, **how)
    assert found.to_pydict() == {"level": [1, 3], "pump": [2, 4]}


def test_wide_characters_are_read_if_the_encoding_says_so(tmp_path):
    found = table(tmp_path / "odd.csv", "höhe,pump\n1,2\n3,4\n", encoding="utf-16")
    assert found.to_pydict() == {"höhe": [1, 3], "pump": [2, 4]}


def test_names_in_quotes_may_hold_the_delimiter(tmp_path):
    found = table(tmp_path / "odd.csv", '"level, m","pump, m"\n1,2\n3,4\n')
    assert found.column_names == ["level, m", "pump, m"]


def test_an_empty_line_of_a_single_column_is_a_missing_value(tmp_path):
    # Left out, it would move all that follows by one step.
    assert table(tmp_path / "odd.csv", "level\n1\n\n3\n").to_pydict() == {"level": [1, None, 3]}


def test_a_sensor_that_is_off_throughout_is_legal_at_inference(model, tmp_path):  # noqa: F811
    record(level=np.nan).to_csv(tmp_path / "dead.csv", index=False)
    record()[["pump"]].to_csv(tmp_path / "u.csv", index=False)
    assert run("filter", model, "dead.csv", "--out", "states.csv", "--quiet") == 0
    assert run("forecast", model, "dead.csv", "--steps", 3, "--controls", "u.csv", "--out", "ahead.csv", "--quiet") == 0
    for name, rows in (("states.csv", len(record())), ("ahead.csv", 3)):
        found = pandas.read_csv(tmp_path / name)
        assert len(found) == rows
        assert found.notna().all(axis=None)


def test_the_longest_names_can_be_written(tmp_path):
    path = tmp_path / ("a" * 251 + ".csv")
    files.write_text("a\n1\n", path)
    assert path.read_text() == "a\n1\n"
