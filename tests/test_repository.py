"""Workflows, hooks and the citation are well-formed and agree with the project's metadata."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import prodssm as ps

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parsed(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_jobs_on_ubuntu_with_a_time_limit_and_few_permissions(path):
    workflow = parsed(path)
    assert workflow["name"] == path.stem
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert job["timeout-minutes"] <= 180
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])


def test_test_files_have_different_names():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(set(names)) == len(names)  # pytest imports them by name


def test_workflows_run_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    commands = [step.get("run", "") for path in WORKFLOWS for job in parsed(path)["jobs"].values() for step in job["steps"]]
    run = {command.split()[1] for command in commands if command.startswith("make ")}
    assert {"test", "test-all", "dist"} <= run <= targets


def test_the_versions_of_python_that_are_tested_are_those_that_are_promised():
    tested = parsed(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert tested == promised


def test_hooks_are_well_formed():
    hooks = [hook["id"] for repository in parsed(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert {"ruff-check", "ruff-format", "pyright", "check-added-large-files", "end-of-file-fixer"} <= set(hooks)


def test_the_citation_is_of_this_version_and_names_the_paper():
    citation = parsed(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["title"], citation["version"], citation["license"]) == ("prodssm", ps.__version__, PROJECT["license"])
    paper = citation["references"][0]
    assert paper["title"] == "Sampling-Free Probabilistic Deep State-Space Models"
    assert [author["family-names"] for author in paper["authors"]] == ["Look", "Kandemir", "Rakitsch", "Peters"]
