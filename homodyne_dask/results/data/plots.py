"""The figures of a result and of a posterior.

Data import views and files only where these are asked for: printing a result does not load matplotlib.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.apps.posterior.posterior import Posterior
    from homodyne_dask.results.data.fit_result import FitResult
    from homodyne_dask.store.scan import Scan


class Place(NamedTuple):
    """Where and what is drawn: a figure of its own, or in axes; all panels, or the one of this name."""

    ax: "Axes | None" = None
    panel: str | None = None


_ALL = Place()
PLACE: ContextVar[Place] = ContextVar("PLACE", default=_ALL)


@contextmanager
def in_place_of(ax: "Axes | None", panel: str | None = None) -> Iterator[None]:
    """Let one panel be drawn in axes, or a figure in their place, where they become a SubFigure."""
    token = PLACE.set(Place(ax, panel))
    try:
        yield
    finally:
        PLACE.reset(token)


def _figure(name: str, about: str) -> Callable[..., Any]:
    """Return the method of `Plots` that draws the figure of this name."""

    def draw(
        self: "Plots",
        scan: "Scan | None" = None,
        ax: "Axes | None" = None,
        panel: str | None = None,
    ) -> Any:
        from homodyne_dask.results.data.fit_view import view_of
        from homodyne_dask.results.views.figures.fit_figures import PICTURES

        with in_place_of(ax, panel):
            return PICTURES[name](view_of(self.result, scan))

    draw.__name__, draw.__doc__ = name, about
    return draw


class Plots:
    """The figures of a result, `result.plot`, as matplotlib Figures that notebooks show.

    `.tables` of a figure are the numbers behind each panel, a pandas.DataFrame by name; `.savefig("a.pdf")`
    writes it as wide as a page of a journal, or a column if it has one panel. scan: what was fitted; by
    default it is opened where it was then. panel: name of the only panel to draw, such as 'contrast'.
    ax: axes made by `plt.subplots`, in which one panel is drawn, or in whose place in their figure all are.

    Each raises OptionError for an unknown panel, SelectionError where the scan's bins are not those of the
    result, and a HomodyneDaskError where no scan is given and the store is not there as it was.
    """

    def __init__(self, result: "FitResult") -> None:
        self.result = result

    maps = _figure("maps", "Data, model and residuals of single bins against both times.")
    cuts = _figure("cuts", "c2 against lag at several ages: data as symbols, model as lines.")
    angles = _figure("angles", "Contrast, offset, decay time and decay at one lag, by angle.")
    rates = _figure("rates", "J(t), shear rate and strain, or a distribution of rates, with bands.")
    passes = _figure("passes", "χ², estimated distance to the minimum and time of each pass.")
    residuals = _figure("residuals", "Distribution of the residuals, and dependence on lag.")
    influence = _figure("influence", "Change of parameters, in errors, when one bin is excluded.")


class PosteriorPlots:
    """The figures of a posterior, `posterior.plot`, as matplotlib Figures; ax: as in `Plots`."""

    def __init__(self, posterior: "Posterior") -> None:
        self.posterior = posterior

    def corner(self, ax: "Axes | None" = None) -> Any:
        """Densities of each parameter and each pair, with 68 and 95 % contours and the fit's Gaussian."""
        from homodyne_dask.apps.posterior.corner_figure import draw_corner

        with in_place_of(ax):
            return draw_corner(self.posterior)

    def rates(self, ax: "Axes | None" = None, panel: str | None = None) -> Any:
        """J(t), the shear rate and the strain: median with 68 and 95 % bands, with the bands of the fit."""
        from homodyne_dask.results.views.figures.rates_figure import draw_posterior_rates

        with in_place_of(ax, panel):
            return draw_posterior_rates(self.posterior)
