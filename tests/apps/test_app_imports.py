"""Applications know nothing of the insides of a fit: the contract of pyproject.toml, for types, too."""

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(file: Path) -> set[str]:
    """All that a file imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


def test_types_of_the_insides_are_not_imported_either():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in settings["contracts"] if one["name"].startswith("applications"))
    allowed = [line.split(" -> ") for line in contract["ignore_imports"]]
    for file in (ROOT / "homodyne_dask/apps").rglob("*.py"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for module in imported(file):
            inside = any(module.startswith(f"{one}.") for one in contract["forbidden_modules"])
            excepted = any(fnmatch(name, of) and fnmatch(module, f"{to}*") for of, to in allowed)
            assert not inside or excepted, f"{name} imports {module}"
