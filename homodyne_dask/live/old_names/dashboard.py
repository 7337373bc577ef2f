"""`dask scheduler --preload homodyne_dask.dashboard`: the former name of homodyne_dask.live.dashboard."""

import warnings

from homodyne_dask.live.dashboard import dask_setup

__all__ = ["dask_setup"]

warnings.warn(
    "homodyne_dask.dashboard is now homodyne_dask.live.dashboard: start the scheduler with "
    "--preload homodyne_dask.live.dashboard",
    DeprecationWarning,
    stacklevel=2,
)
