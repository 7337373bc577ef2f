"""Progress of a fit in the cell of a Jupyter notebook that runs it."""

import sys
from collections.abc import Callable

from homodyne_dask.live.dashboard.page import STYLE_OF_CELL, render_cell
from homodyne_dask.live.progress import Progress
from homodyne_dask.results.markup import element


def notebook_observer() -> Callable[[Progress], None] | None:
    """Return what shows where a fit stands below the cell that runs; None outside of notebooks."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    if getattr(running, "kernel", None) is None:
        return None
    display = sys.modules["IPython.display"]
    handle = display.display(display.HTML(""), display_id=True)

    def show(progress: Progress) -> None:
        inside = element("style", STYLE_OF_CELL), render_cell(progress)
        handle.update(display.HTML(str(element("div", *inside, class_="homodyne-dask"))))

    return show
