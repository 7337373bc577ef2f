"""Applications run in the folder in which commands run."""

from tests.cli.conftest import here, made

__all__ = ["here", "made"]
