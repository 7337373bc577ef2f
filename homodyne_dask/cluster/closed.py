"""A scheduler of this process that is closed: what Dask would keep of it for ever, a megabyte each."""

import importlib
import sys

from distributed import Client, Scheduler, core


def let_go(scheduler: Scheduler) -> None:
    """Take a closed scheduler, and the client of its cluster, out of caches that hold them.

    A Dask without one of these caches keeps nothing there; that is no reason to lose a result.
    """
    clear = getattr(getattr(core, "_expects_comm", None), "cache_clear", None)
    if clear is not None:
        clear()  # its keys are methods
    by_client = getattr(vars(Client).get("_register_plugin"), "_method_cache", None)
    if by_client is not None:  # of Python 3.13.0 and 3.13.1: the values hold their weak keys
        by_client.clear()
    dashboard = sys.modules.get("distributed.dashboard.scheduler")
    variables = getattr(dashboard, "template_variables", None)
    for cell in getattr(variables, "__closure__", None) or ():
        if isinstance(cell.cell_contents, dict):
            cell.cell_contents.pop(scheduler, None)
    # its folder was on the path of imports: what was looked up there
    sys.path_importer_cache.pop(getattr(scheduler, "local_directory", ""), None)
    importlib.invalidate_caches()
