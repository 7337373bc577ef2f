"""`dask scheduler --preload homodyne_dask.dashboard`, and homodyne_dask.live.dashboard: former names."""

import warnings

from homodyne_dask.apps.dashboard import dask_setup

__all__ = ["dask_setup"]

warnings.warn(
    f"{__name__} is now homodyne_dask.apps.dashboard: start the scheduler with "
    "--preload homodyne_dask.apps.dashboard",
    DeprecationWarning,
    stacklevel=2,
)
