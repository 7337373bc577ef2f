"""The package keeps its shape: imports, sizes, names, and the files that docs/architecture.md names."""

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.documents import ROOT, code_spans
from tests.versions import ROOMS
from tests.wheel.__main__ import QUICK

ANNOTATED_IN_A_CIRCLE: dict[tuple[str, str], str] = {}
"""(importing, imported) modules that refer to each other for annotations alone, and why they must."""
PAGE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"([\w./-]+(?:/|\.(?:py|md|yaml|toml)))(?::(\w+))?")
"""A file or a folder, of the repository or of the package, and what is defined in it."""
FILES = [found for span in code_spans(PAGE) if (found := NAMED.fullmatch(span))]


@cache
def modules() -> dict[str, Path]:
    """Every module of the package and of ingest, by its dotted name."""
    files = [*(ROOT / "homodyne_dask").rglob("*.py"), *(ROOT / "ingest").rglob("*.py")]
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files, strict=True)}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


@cache
def imports(for_types: bool = False) -> dict[str, set[str]]:
    """What every module imports of the others; for_types: for annotations alone, too."""
    return {name: _imports(name, for_types) - {name} for name in modules()}


def _imports(name: str, for_types: bool) -> set[str]:
    found: set[str] = set()
    todo: list[ast.AST] = [tree(name)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not for_types:
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{one.name}" for one in node.names]
            found |= {one if one in modules() else node.module for one in whole}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found & set(modules())


def test_the_package_opens_with_at_most_15_entries():
    entries = [e.name for e in (ROOT / "homodyne_dask").iterdir()]
    entries = [name for name in entries if name not in ("__pycache__", "__init__.pyi", "py.typed")]
    assert len(entries) <= 15, sorted(entries)


def test_no_modules_import_each_other_in_a_circle_not_even_for_annotations():
    left = {name: set(of) for name, of in imports(for_types=True).items()}
    for importer, imported in ANNOTATED_IN_A_CIRCLE:
        assert imported in left[importer] - imports()[importer]
        left[importer].remove(imported)
    assert len(ANNOTATED_IN_A_CIRCLE) <= 3
    while ends := [name for name in left if not left[name] & set(left) or not _used(name, left)]:
        for name in ends:
            del left[name]
    assert not sorted(left)


def _used(name: str, by: dict[str, set[str]]) -> bool:
    return any(name in of for of in by.values())


def test_what_a_model_is_matters_to_models_and_kernels_alone():
    asks = re.compile(r"isinstance\([^)]*(Transport|Separable|Residual)Model|theta\[\d*:\d*\]")
    rooms = ("homodyne_dask.models", "homodyne_dask.kernels")
    found = [
        name
        for name, file in modules().items()
        if not name.startswith(rooms) and asks.search(file.read_text())
    ]
    assert not found


def test_no_file_of_the_project_is_a_link():
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True)
    assert not [line for line in listed.stdout.splitlines() if line.startswith("120000")]


def test_no_test_file_imports_from_another():
    """What tests share stands in helper modules and in conftest.py."""
    imports_a_test = re.compile(r"^\s*(from|import) [^\n]*\btest_\w+", re.MULTILINE)
    files = (ROOT / "tests").rglob("*.py")
    assert not [file for file in files if imports_a_test.search(file.read_text())]


def test_lists_of_tests_name_files_and_folders_that_exist():
    listed = [*LONG, *(f"tests/{name}" for name in (*ROOMS, *QUICK))]
    listed += re.findall(r"\btests/[\w/.]*\w", (ROOT / "Makefile").read_text())
    assert not [name for name in listed if not (ROOT / name).exists()]


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
    assert rows == [layer for layer in layers if layer != "xarray"]


def test_every_folder_of_the_package_is_a_room_of_the_page():
    rooms = {folder.parent.name for folder in (ROOT / "homodyne_dask").glob("*/__init__.py")}
    assert rooms == {found[1].rstrip("/") for found in FILES if found[1].count("/") == 1} & rooms
