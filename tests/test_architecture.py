"""docs/architecture.md names files and functions that exist, and the rooms in their order."""

import re
import tomllib

import pytest

from tests.documents import ROOT, code_spans

PAGE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"([\w./-]+(?:/|\.(?:py|md|yaml|toml)))(?::(\w+))?")
"""A file or a folder, of the repository or of the package, and what is defined in it."""
FILES = [found for span in code_spans(PAGE) if (found := NAMED.fullmatch(span))]


@pytest.mark.parametrize("named", sorted({found[0] for found in FILES}))
def test_what_is_named_exists(named):
    name, defined = NAMED.fullmatch(named).groups()
    (file,) = [at for at in (ROOT / name, ROOT / "homodyne_dask" / name) if at.exists()]
    assert file.is_dir() == name.endswith("/")
    if defined:
        pattern = rf"^(?:def |class )?{defined}\b\s*[(:=\[]"
        assert re.search(pattern, file.read_text(), re.MULTILINE), named


def test_the_page_is_not_checked_for_nothing():
    assert len({found[0] for found in FILES}) > 40


def test_the_rooms_stand_in_the_order_in_which_they_import():
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", PAGE.read_text(), re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(one["layers"] for one in contracts["contracts"] if one["type"] == "layers")
    assert rows == [layer for layer in layers if layer not in ("xarray", "device")]


def test_every_folder_of_the_package_is_a_room_of_the_page():
    rooms = {folder.parent.name for folder in (ROOT / "homodyne_dask").glob("*/__init__.py")}
    assert rooms == {found[1].rstrip("/") for found in FILES if found[1].count("/") == 1} & rooms
