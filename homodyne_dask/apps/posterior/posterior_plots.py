"""The figures of a posterior, `posterior.plot`."""

from typing import TYPE_CHECKING, Any

from homodyne_dask.results.views.style import in_place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.apps.posterior.posterior import Posterior


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
        from homodyne_dask.apps.posterior.drawn_rates_figure import draw_posterior_rates

        with in_place_of(ax, panel):
            return draw_posterior_rates(self.posterior)
