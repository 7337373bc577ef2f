"""A scheduler of this process that is closed: what Dask would keep of it for ever, a megabyte each."""

import sys

from distributed import Scheduler, core


def let_go(scheduler: Scheduler) -> None:
    """Take a closed scheduler out of two caches of Dask that have it, or its methods, as keys."""
    core._expects_comm.cache_clear()
    dashboard = sys.modules.get("distributed.dashboard.scheduler")
    if dashboard is not None:
        for cell in dashboard.template_variables.__closure__:
            if isinstance(cell.cell_contents, dict):
                cell.cell_contents.pop(scheduler, None)
