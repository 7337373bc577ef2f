"""Applications run in the folder in which commands run."""

from tests.cli.conftest import here, made, no_pictures

__all__ = ["here", "made", "no_pictures"]
