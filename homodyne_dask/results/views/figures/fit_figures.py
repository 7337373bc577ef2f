"""The figures of a fit by their names, and all as files."""

from collections.abc import Callable
from pathlib import Path

from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import has_rates
from homodyne_dask.results.data.rate_distribution import has_distribution
from homodyne_dask.results.views.figures.angles import draw_angles, draw_influence, influential
from homodyne_dask.results.views.figures.maps import draw_cuts, draw_maps, draw_residuals
from homodyne_dask.results.views.figures.panels import FitFigure, png_of, vector_of
from homodyne_dask.results.views.figures.passes import draw_passes
from homodyne_dask.results.views.figures.rates_figure import draw_rates
from homodyne_dask.results.views.figures.style import TITLES, alternative
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import write_file

PICTURES: dict[str, Callable[[FitView], FitFigure]] = {
    "maps": draw_maps,
    "cuts": draw_cuts,
    "angles": draw_angles,
    "rates": draw_rates,
    "passes": draw_passes,
    "residuals": draw_residuals,
    "influence": draw_influence,
}


def save_all(view: FitView, folder: Path, suffix: str = "png") -> list[Path]:
    """Write every figure of a fit into a folder, as PNG and as `suffix`, and return the paths of the PNG.

    Maps are not drawn of tables of g2, rates and influence only where the result has them; neither rates nor
    angles where no decay was seen, and no angles of a single bin.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = view.result
    wanted = {
        "maps": not view.scan.is_table,
        "rates": has_rates(result) or has_distribution(result),
        "angles": result.outcome is not Outcome.NO_DECAY and len(view.scan.bins) > 1,
        "influence": influential(result).any(),
    }
    paths = [folder / f"{name}.png" for name in PICTURES if wanted.get(name, True)]
    for path in paths:
        about = {"Title": TITLES[path.stem], "Description": alternative(path.stem, view)}
        picture = PICTURES[path.stem](view)
        write_file(path, png_of(picture, about))
        if suffix != "png":
            write_file(path.with_suffix(f".{suffix}"), vector_of(picture, suffix))
    return paths
