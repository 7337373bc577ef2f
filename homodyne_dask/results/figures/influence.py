"""Influence of single bins: change of each parameter when one bin is excluded."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import OptionError
from homodyne_dask.results.figures.angles import angle_axis, by_angle, legend
from homodyne_dask.results.figures.style import UNKNOWN_COLOUR, figure, label_axes
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_PER_ROW = 4
"""Panels per row."""


def draw_influence(result: FitResult, scan: Scan) -> "Figure":
    """Draw the change of each parameter without each bin, in standard errors, against φ.

    Raises OptionError where the result does not hold it.
    """
    if result.influence is None:
        raise OptionError(
            "the result holds no influence of bins: it has no error, or is an early one"
        )
    moved = influential(result)
    names = result.influence["param"].values[moved]
    change = result.influence["change"].values[:, moved]
    across = min(len(names), PANELS_PER_ROW)
    down = -(-len(names) // across)
    picture = figure(0.8 + 2.9 * across, 0.8 + 2.5 * down)
    axes = picture.subplots(down, across, sharex=True, squeeze=False).ravel()
    nothing = np.zeros(len(scan.q), bool)
    for n, (axis, name) in enumerate(zip(axes, names, strict=False)):
        axis.axhspan(-1, 1, color=UNKNOWN_COLOUR, alpha=0.5, linewidth=0)
        axis.axhline(0, color="#555555", linewidth=0.8)
        by_angle(axis, scan, change[:, n], nothing)
        label_axes(axis, "", "change [σ]" if n % across == 0 else "", str(name))
        if n + across >= len(names):
            angle_axis(axis, scan)
            axis.locator_params(axis="x", nbins=6)
            axis.tick_params(labelbottom=True)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    legend(picture, scan.q, hollow=False)
    return picture


def influential(result: FitResult) -> Bool[np.ndarray, " p"]:
    """Return for which parameters the influence of any bin is known."""
    assert result.influence is not None
    return np.isfinite(result.influence["change"].values).any(axis=0)
