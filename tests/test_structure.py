"""The files that docs/architecture.md, the Makefile and lists of tests name exist; layers stand in order."""

import re
import tomllib

import pytest

from tests.applications import APPLICATIONS
from tests.conftest import LONG
from tests.documents import ROOT, code_spans
from tests.versions import ROOMS
from tests.wheel.__main__ import QUICK

PAGE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"([\w./-]+(?:/|\.(?:py|md|yaml|toml)))(?::(\w+))?")
"""A file or a folder, of the repository or of the package, and what is defined in it."""
FILES = [found for span in code_spans(PAGE) if (found := NAMED.fullmatch(span))]
TAKEN_OUT = re.compile(rf"(?:tests/)?apps/(?!(?:{'|'.join(APPLICATIONS)})\b)\w+")
"""What names an application that is not there."""


def test_lists_of_tests_name_files_and_folders_that_exist():
    listed = [*LONG, *(f"tests/{name}" for name in (*ROOMS, *QUICK))]
    listed += re.findall(r"\btests/[\w/.]*\w", (ROOT / "Makefile").read_text())
    missing = [name for name in listed if not (ROOT / name).exists()]
    assert not [name for name in missing if not TAKEN_OUT.match(name)]


@pytest.mark.parametrize(
    "named", sorted({found[0] for found in FILES if not TAKEN_OUT.match(found[0])})
)
def test_what_the_page_names_exists(named):
    name, defined = NAMED.fullmatch(named).groups()
    (file,) = [at for at in (ROOT / name, ROOT / "homodyne_dask" / name) if at.exists()]
    assert file.is_dir() == name.endswith("/")
    if defined:
        pattern = rf"^(?:def |class )?{defined}\b\s*[(:=\[]"
        assert re.search(pattern, file.read_text(), re.MULTILINE), named


def test_the_rooms_stand_in_the_order_in_which_they_import():
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", PAGE.read_text(), re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(one["layers"] for one in contracts["contracts"] if one["type"] == "layers")
    assert rows == [name for layer in layers for name in layer.split(" | ")]
