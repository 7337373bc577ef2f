"""The figures of a fit: `result.plot` and `save_all`, which writes them as PNG files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView, fitted_scan
from homodyne_dask.results.data.rate_curves import has_rates
from homodyne_dask.results.views.figures.angles import draw_angles
from homodyne_dask.results.views.figures.captions import TITLES, alternative
from homodyne_dask.results.views.figures.influence_figure import draw_influence, influential
from homodyne_dask.results.views.figures.lag_cuts import draw_cuts
from homodyne_dask.results.views.figures.maps import draw_maps, draw_residuals
from homodyne_dask.results.views.figures.passes import draw_passes
from homodyne_dask.results.views.figures.rates_figure import draw_rates
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import write_file
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from homodyne_dask.results.views.figures.picture import FitFigure

PICTURES: dict[str, Callable[[FitView], "FitFigure"]] = {
    "maps": draw_maps,
    "cuts": draw_cuts,
    "angles": draw_angles,
    "rates": draw_rates,
    "passes": draw_passes,
    "residuals": draw_residuals,
    "influence": draw_influence,
}


class Plots:
    """The figures of a result, `result.plot`, as matplotlib Figures that notebooks show.

    scan: what was fitted; by default it is opened where it was then. Each raises SelectionError where the
    scan's bins are not those of the result, and a HomodyneDaskError where no scan is given and the store
    is not there as it was.
    """

    def __init__(self, result: FitResult) -> None:
        self.result = result

    def maps(self, scan: Scan | None = None) -> "FitFigure":
        """Data, model and residual of single bins against both times."""
        return self._drawn(draw_maps, scan)

    def cuts(self, scan: Scan | None = None) -> "FitFigure":
        """c2 against lag at several ages: data with error bars, model as lines."""
        return self._drawn(draw_cuts, scan)

    def angles(self, scan: Scan | None = None) -> "FitFigure":
        """Contrast, offset, reduced χ², decay time and the decay at one lag, by angle."""
        return self._drawn(draw_angles, scan)

    def rates(self, scan: Scan | None = None) -> "FitFigure":
        """J(t), the shear rate and the strain, with bands of 68 and 95 %."""
        return self._drawn(draw_rates, scan)

    def passes(self, scan: Scan | None = None) -> "FitFigure":
        """Convergence of the fit: χ², estimated distance to the minimum and time of each pass."""
        return self._drawn(draw_passes, scan)

    def residuals(self, scan: Scan | None = None) -> "FitFigure":
        """Distribution of the residuals, and their dependence on lag."""
        return self._drawn(draw_residuals, scan)

    def influence(self, scan: Scan | None = None) -> "FitFigure":
        """Change of each parameter, in standard errors, when one bin is excluded."""
        return self._drawn(draw_influence, scan)

    def _drawn(self, draw: Callable[[FitView], "FitFigure"], scan: Scan | None) -> "FitFigure":
        return draw(FitView(self.result, fitted_scan(self.result) if scan is None else scan))


def save_all(view: FitView, folder: Path) -> list[Path]:
    """Write every figure of a fit into a folder and return their paths.

    Rates are drawn for transport models only, influence only where the result has it; neither rates
    nor angles where no decay was seen, and no angles of a single bin.
    """
    from homodyne_dask.results.views.figures.picture import png_of

    folder.mkdir(parents=True, exist_ok=True)
    result = view.result
    measured = result.outcome is not Outcome.NO_DECAY
    wanted = {
        "rates": has_rates(result),
        "angles": measured and len(view.scan.bins) > 1,
        "influence": result.influence is not None and influential(result).any(),
    }
    names = [name for name in PICTURES if wanted.get(name, True)]
    paths = [folder / f"{name}.png" for name in names]
    for name, path in zip(names, paths, strict=True):
        about = {"Title": TITLES[name], "Description": alternative(name, view)}
        write_file(path, png_of(PICTURES[name](view), about))
    return paths
