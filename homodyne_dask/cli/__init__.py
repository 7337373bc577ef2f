"""The command line: `homodyne-dask COMMAND`, one module for each command in `commands`."""

from homodyne_dask.cli.program import main

__all__ = ["main"]
