"""Applications that tests of the library also look at, where they are there."""

from typing import Any

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import PackageError


def application(module: str) -> Any:
    """Return a module below `homodyne_dask.apps`, or skip the test where its application was taken out."""
    return pytest.importorskip(f"homodyne_dask.apps.{module}", exc_type=ModuleNotFoundError)


def made_for(module: str) -> Any:
    """Return a module below `tests.apps`, or skip the test where it was taken out."""
    return pytest.importorskip(f"tests.apps.{module}", exc_type=ModuleNotFoundError)


def public(name: str) -> Any:
    """Return a public name, or skip the test where the application that has it was taken out."""
    try:
        return getattr(hd, name)
    except PackageError as e:
        pytest.skip(str(e))
