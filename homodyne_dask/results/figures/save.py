"""The figures of a fit: `result.plot` and `save_all`, which writes them as PNG files."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.errors import SelectionError
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.results.figures.angles import draw_angles
from homodyne_dask.results.figures.captions import TITLES, alternative
from homodyne_dask.results.figures.cuts import draw_cuts
from homodyne_dask.results.figures.influence import draw_influence, influential
from homodyne_dask.results.figures.maps import draw_maps, draw_residuals
from homodyne_dask.results.figures.passes import draw_passes, draw_rates
from homodyne_dask.results.figures.rates import model_of
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.files import write_file
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES: dict[str, Callable[[FitResult, Scan], "Figure"]] = {
    "maps": draw_maps,
    "cuts": draw_cuts,
    "angles": draw_angles,
    "rates": draw_rates,
    "passes": draw_passes,
    "residuals": draw_residuals,
    "influence": draw_influence,
}


class Plots:
    """The figures of a result, `result.plot`, as matplotlib Figures; scan: what was fitted.

    Each raises SelectionError where the scan's bins are not those of the result.
    """

    def __init__(self, result: FitResult) -> None:
        self.result = result

    def maps(self, scan: Scan) -> "Figure":
        """Data, model and residual of single bins against both times."""
        return self._drawn(draw_maps, scan)

    def cuts(self, scan: Scan) -> "Figure":
        """c2 against lag at several ages: data with error bars, model as lines."""
        return self._drawn(draw_cuts, scan)

    def angles(self, scan: Scan) -> "Figure":
        """Contrast, offset, reduced χ², decay time and the decay at one lag, by angle."""
        return self._drawn(draw_angles, scan)

    def rates(self, scan: Scan) -> "Figure":
        """J(t), the shear rate and the strain, with bands of one standard error and of 95 %."""
        return self._drawn(draw_rates, scan)

    def passes(self, scan: Scan) -> "Figure":
        """Convergence of the fit: χ², distance to the optimum and time of each pass."""
        return self._drawn(draw_passes, scan)

    def residuals(self, scan: Scan) -> "Figure":
        """Distribution of the residuals, and their dependence on lag."""
        return self._drawn(draw_residuals, scan)

    def influence(self, scan: Scan) -> "Figure":
        """Change of each parameter, in standard errors, when one bin is excluded."""
        return self._drawn(draw_influence, scan)

    def _drawn(self, draw: Callable[[FitResult, Scan], "Figure"], scan: Scan) -> "Figure":
        _check(self.result, scan)
        return draw(self.result, scan)


def save_all(result: FitResult, scan: Scan, folder: Path) -> list[Path]:
    """Write every figure of a fit into a folder and return their paths.

    Rates are drawn for transport models only, influence only where the result has it; neither rates
    nor angles where no decay was seen.
    scan: what was fitted. Raises SelectionError where its bins are not those of the result.
    """
    _check(result, scan)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    measured = result.outcome is not Outcome.NO_DECAY
    has_rates = measured and backend_of(model_of(result)).rates is not None
    for name, draw in PICTURES.items():
        if (draw is draw_rates and not has_rates) or (draw is draw_angles and not measured):
            continue
        if draw is draw_influence and (result.influence is None or not influential(result).any()):
            continue
        path = folder / f"{name}.png"
        about = {"Title": TITLES[name], "Description": alternative(name, result, scan)}
        content = io.BytesIO()
        draw(result, scan).savefig(content, format="png", metadata=about)
        write_file(path, content.getvalue())
        paths.append(path)
    return paths


def _check(result: FitResult, scan: Scan) -> None:
    fitted, given = result.scaling["label"].values, scan.label
    if not np.array_equal(fitted, given):
        raise SelectionError(
            f"the result is of {len(fitted)} bins, labels {fitted[0]} to {fitted[-1]}, and the scan "
            f"has {len(given)}, labels {given[0]} to {given[-1]}: give the selection that was fitted"
        )
