"""The version, the packages and the words that describe the project are the same wherever they stand."""

import json
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CODEMETA = json.loads((ROOT / "codemeta.json").read_text())
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
CONDA = {"dask": "dask-core", "matplotlib": "matplotlib-base"}
"""Names that conda-forge gives to packages of Python."""


@pytest.mark.parametrize(
    "version", [CITATION["version"], CODEMETA["version"], RECIPE["context"]["version"]]
)
def test_the_version_is_that_of_pyproject(version):
    assert version == PROJECT["version"]


def test_the_first_entry_of_the_changelog_is_of_this_version():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    newest = next(line for line in lines if line.startswith("## "))
    assert newest.removeprefix("## ").split(",")[0] == PROJECT["version"].split(".dev")[0]


def test_words_and_licence_are_the_same():
    assert CITATION["keywords"] == CODEMETA["keywords"] == PROJECT["keywords"]
    assert CITATION["license"] == PROJECT["license"] == RECIPE["about"]["license"]
    assert CODEMETA["license"].endswith(f"/{PROJECT['license']}")
    assert CODEMETA["description"] == PROJECT["description"] == RECIPE["about"]["summary"]
    (author,) = {one["name"] for one in (*CITATION["authors"], *CODEMETA["author"])}
    assert [author] == [one["name"] for one in PROJECT["authors"]]
    assert author in (ROOT / "LICENSE").read_text()


def test_the_conda_package_needs_the_packages_of_the_core():
    core = [Requirement(line) for line in PROJECT["dependencies"]]
    wanted = {CONDA.get(one.name, one.name): str(one.specifier) for one in core}
    python, *run = (line.split(maxsplit=1) for line in RECIPE["requirements"]["run"])
    assert python == ["python", ">=${{ python_min }}"]
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    same = {name: set(specifier.split(",")) for name, specifier in run}
    assert same == {name: set(specifier.split(",")) for name, specifier in wanted.items()}
    (program,) = PROJECT["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [" = ".join(program)]
