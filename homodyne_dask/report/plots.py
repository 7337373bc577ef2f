"""Pictures of a fit: each function returns a matplotlib Figure, `save_all` writes them as PNG files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.dataset import Scan
from homodyne_dask.errors import SelectionError
from homodyne_dask.models import TransportModel, model_named
from homodyne_dask.report.captions import TITLES, alternative
from homodyne_dask.report.pictures_angles import angles
from homodyne_dask.report.pictures_cuts import cuts
from homodyne_dask.report.pictures_fit import passes, rates
from homodyne_dask.report.pictures_influence import influence, moved_in
from homodyne_dask.report.pictures_maps import maps, residuals
from homodyne_dask.result import FitResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PICTURES", "angles", "cuts", "influence", "maps", "passes", "rates", "residuals", "save_all"
]  # fmt: skip

PICTURES: dict[str, Callable[[FitResult, Scan], "Figure"]] = {
    "maps": maps,
    "cuts": cuts,
    "angles": angles,
    "rates": rates,
    "passes": passes,
    "residuals": residuals,
    "influence": influence,
}


def save_all(result: FitResult, scan: Scan, folder: Path) -> list[Path]:
    """Write every picture of a fit into a folder and return their paths; rates are those of transport.

    That of influence is left out where the result does not know it.
    scan: what was fitted. Raises SelectionError where its bins are not those of the result.
    """
    _check(result, scan)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    transport = isinstance(model_named(result.config["model"]), TransportModel)
    for name, draw in PICTURES.items():
        if draw is rates and not transport:
            continue
        if draw is influence and (result.influence is None or not moved_in(result).any()):
            continue
        path = folder / f"{name}.png"
        about = {"Title": TITLES[name], "Description": alternative(name, result, scan)}
        draw(result, scan).savefig(path, format="png", metadata=about)
        paths.append(path)
    return paths


def _check(result: FitResult, scan: Scan) -> None:
    fitted, given = result.scaling["label"].values, scan.label
    if not np.array_equal(fitted, given):
        raise SelectionError(
            f"the result is of {len(fitted)} bins, labels {fitted[0]} to {fitted[-1]}, and the scan "
            f"has {len(given)}, labels {given[0]} to {given[-1]}: give the selection that was fitted"
        )
