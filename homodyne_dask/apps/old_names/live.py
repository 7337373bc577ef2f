"""The former folder of the page: `homodyne_dask.live.NAME` finds the former names beside this file."""

from pathlib import Path

__path__ = [str(Path(__file__).parent)]
