"""A fit of laminar flow and its scan, as the tests of results have them."""

from tests.results.conftest import diffusing, fitted, flowing

__all__ = ["diffusing", "fitted", "flowing"]
