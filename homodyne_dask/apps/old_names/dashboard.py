"""`dask scheduler --preload homodyne_dask.dashboard`: the former name of homodyne_dask.apps.dashboard."""

import warnings

from homodyne_dask.apps.dashboard import dask_setup

__all__ = ["dask_setup"]

warnings.warn(
    "homodyne_dask.dashboard is now homodyne_dask.apps.dashboard: start the scheduler with "
    "--preload homodyne_dask.apps.dashboard",
    DeprecationWarning,
    stacklevel=2,
)
