"""The figures of a fit: one by its name, and all as PNG files."""

from collections.abc import Callable
from pathlib import Path

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView, view_of
from homodyne_dask.results.data.rate_curves import has_rates
from homodyne_dask.results.views.figures.angles import draw_angles
from homodyne_dask.results.views.figures.captions import TITLES, alternative
from homodyne_dask.results.views.figures.influence_figure import draw_influence, influential
from homodyne_dask.results.views.figures.lag_cuts import draw_cuts
from homodyne_dask.results.views.figures.maps import draw_maps, draw_residuals
from homodyne_dask.results.views.figures.passes import draw_passes
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.rates_figure import draw_rates
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import write_file
from homodyne_dask.store.scan import Scan

PICTURES: dict[str, Callable[[FitView], FitFigure]] = {
    "maps": draw_maps,
    "cuts": draw_cuts,
    "angles": draw_angles,
    "rates": draw_rates,
    "passes": draw_passes,
    "residuals": draw_residuals,
    "influence": draw_influence,
}


def fit_figure(result: FitResult, name: str, scan: Scan | None = None) -> FitFigure:
    """Return a figure of `result.plot`; scan: by default from where the store of the fit was."""
    return PICTURES[name](view_of(result, scan))


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
        "influence": result.diagnosis.influence is not None and influential(result).any(),
    }
    names = [name for name in PICTURES if wanted.get(name, True)]
    paths = [folder / f"{name}.png" for name in names]
    for name, path in zip(names, paths, strict=True):
        about = {"Title": TITLES[name], "Description": alternative(name, view)}
        write_file(path, png_of(PICTURES[name](view), about))
    return paths
