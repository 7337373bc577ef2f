"""Applications: which are there, what each owns, and what tests of the library look at."""

from pathlib import Path
from typing import Any

import pytest

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.errors import PackageError
from homodyne_dask.plugins import APPLICATIONS as PACKAGE

FOLDER = Path(hd.__file__).parent / "apps"
APPLICATIONS = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))


def owner(name: str) -> str:
    """Return the application that has a public name; nothing for one of the library."""
    module = (hd._HOMES | hd._MODULES).get(name, "")
    return module.split(".")[1] if module.startswith("apps.") else ""


def command_owners() -> dict[str, str]:
    """Return the application that has each command; nothing for one of the library."""
    points = [p for names in main.commands.applications.values() for p in names.values()]
    owners = {p.name: p.module.removeprefix(f"{PACKAGE}.").partition(".")[0] for p in points}
    return {name: owners.get(name, "") for name in main.commands}


def application(module: str) -> Any:
    """Return a module below `homodyne_dask.apps`, or skip the test where its application was taken out."""
    return pytest.importorskip(f"{PACKAGE}.{module}", exc_type=ModuleNotFoundError)


def made_for(module: str) -> Any:
    """Return a module below `tests.apps`, or skip the test where it was taken out."""
    return pytest.importorskip(f"tests.apps.{module}", exc_type=ModuleNotFoundError)


def public(name: str) -> Any:
    """Return a public name, or skip the test where the application that has it was taken out."""
    try:
        return getattr(hd, name)
    except PackageError as e:
        pytest.skip(str(e))
