"""Documents say what is: every function, test and file that they name exists."""

import ast
import importlib
import inspect
import re

import pytest
from pages import DOCS, GENERATED, PAGES, ROOT, navigation

import prodssm as ps

LONGEST_RESULTS = 220


def table_rows():
    """Rows of the table from the paper to the code: paper, section, function, test."""
    text = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
    table = text.split("| paper | section | function | test |")[1]
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines()[2:] if line.startswith("|")]
    assert all(len(row) == 4 for row in rows)
    return rows


def names_of_tests(file):
    """Names of all test functions of a file, with those of their classes."""
    found = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_the_table_of_the_mathematics_names_sections_functions_and_tests_that_exist():
    rows = table_rows()
    assert len(rows) > 30
    text = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
    for paper, sections, function, test in rows:
        for section in sections.split(", "):
            heading = rf"(^## {re.escape(section)} |^\*\*{re.escape(section)} )"
            assert re.search(heading, text, flags=re.M), f"{paper}: {section}"
        module, name = function.strip("`").split(":")
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        file, _, test_name = test.strip("`").partition("::")
        assert test_name in names_of_tests(file), f"{paper}: {test}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    targets = [link for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose) if not link.startswith("http")]
    for link in targets:
        assert (page.parent / link).exists() or link in GENERATED, f"{page.name} links to {link}"
    for path in re.findall(r"`((?:benchmarks|experiments|scripts|tests|examples|docs)/[\w/.-]+\.\w+)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def known_calls(text):
    """Calls in inline code, such as `model.fit(y, warm_start=True)`, of what the library has: name, callable, keywords."""
    for code in re.findall(r"`([^`\n]+\(.*?\))`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        try:
            calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        except SyntaxError:
            continue  # an abbreviation
        for call in calls:
            first, *parts = ast.unparse(call.func).split(".")
            found = {"ps": ps, "prodssm": ps, "model": ps.ProDSSM}.get(first, getattr(ps, first, None))
            for part in parts:
                found = getattr(found, part, None)
            if callable(found) and call.keywords:
                yield ast.unparse(call.func), found, [each.arg for each in call.keywords]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_arguments_that_prose_names_exist(page):
    for name, found, keywords in known_calls(page.read_text(encoding="utf-8")):
        parameters = inspect.signature(found).parameters
        open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        assert open_ended or set(keywords) <= set(parameters), (
            f"{page.name}: {name} has no argument {set(keywords) - set(parameters)}"
        )


def test_prose_has_calls_to_check():
    names = [name for page in PAGES for name, *_ in known_calls(page.read_text(encoding="utf-8"))]
    assert {"ps.frames.series_of", "ps.Series", "model.forecast"} <= set(names)


def test_nothing_cites_a_document_that_is_not_here():
    here = {page.name for page in PAGES} | GENERATED
    for folder in ("prodssm", "tests", "experiments", "benchmarks", "scripts", "examples"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in re.findall(r"\b([\w-]+\.md)\b", file.read_text(encoding="utf-8")):
                assert name in here, f"{file.relative_to(ROOT)} cites {name}"


def test_the_results_page_stays_short():
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8").count("\n") <= LONGEST_RESULTS


def test_every_table_of_results_is_written_by_an_experiment():
    written = {path.stem for path in (ROOT / "experiments").glob("*.py")}
    assert {path.stem for path in (ROOT / "experiments" / "results").glob("*.csv")} <= written


def test_the_navigation_names_every_page_once():
    named = navigation()
    assert len(named) == len(set(named))
    assert set(named) == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | GENERATED


def test_the_site_takes_the_pages_of_the_root():
    hooks = (ROOT / "scripts" / "site_hooks.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in hooks for name in GENERATED)
