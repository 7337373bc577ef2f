"""The figures of a posterior: rates with bands, and the corner."""

import textwrap

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.posterior import Posterior
from homodyne_dask.results.views.figures.corner_figure import LETTER, LINE, draw_corner
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.rates_figure import AXES
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    FOOT,
    LEFT,
    RIGHT,
    foot_line,
    label_axes,
    log_scale_if_wide,
    panels,
    plain_label,
)

BANDS = ((0.025, 0.975, 0.18), (0.16, 0.84, 0.35))
"""Ends and strength of each band."""


def drawn_pictures(posterior: Posterior) -> dict[str, FitFigure]:
    """Return the figures that are saved: the corner, and rates of models that have them."""
    found = {"posterior_corner": draw_corner(posterior)}
    if "J" in posterior.tree["posterior"].dataset:
        found["posterior_rates"] = draw_posterior_rates(posterior)
    return found


def draw_posterior_rates(posterior: Posterior) -> FitFigure:
    """Draw each rate against time, and below it its difference from the fit.

    Raises OptionError for a model that has no rates.
    """
    group = posterior.tree["posterior"].dataset
    if "J" not in group:
        raise OptionError(f"{posterior.result.config['model']} has no rates J and γ̇ to draw")
    names = [name for name in AXES if name in group]
    n, width = len(names), 2.85 if len(names) > 1 else 4.0
    note = posterior.tree.attrs["adjust_note"]
    words = f"bands: 68 % and 95 % of the draws; dotted: 95 % band of the fit; {note}"
    letters = int((n * (LEFT + width + RIGHT) - 0.3) / LETTER)
    lines = textwrap.wrap(plain_label(words), letters)
    picture, axes = panels(2 * n, n, width, 2.2, FOOT + LINE * (len(lines) - 1))
    for above, below, name in zip(axes[:n], axes[n:], names, strict=True):
        _rate(above, below, posterior, name)
    axes[0].legend(frameon=False, fontsize=8)
    foot_line(picture, "\n".join(lines))
    return picture


def _rate(above: Axes, below: Axes, posterior: Posterior, name: str) -> None:
    """Draw a rate, and below it the difference from the fit, in per cent where no value is 0."""
    of, constant = posterior.tree["posterior"].dataset, posterior.tree["constant_data"].dataset
    t, values = of["age"].values, of[name].values.reshape(-1, of.sizes["age"])
    unit, (y, title) = of[name].attrs["units"], AXES[name]
    fit = constant[f"{name}_fit"].values
    ends = np.stack([constant[f"{name}_fit_{end}_95"].values for end in ("low", "high")])
    some = slice(int(name == "strain"), None)  # it begins at 0
    t, values, fit, ends = t[some], values[:, some], fit[some], ends[:, some]
    relative = bool((fit > 0).all() or (fit < 0).all())
    scale = 100 / np.abs(fit) if relative else np.ones_like(fit)
    label_axes(above, "", y.replace("Å²/s", unit), title)
    label_axes(below, "t [s]", "difference [%]" if relative else f"difference [{unit}]")
    for axis, zero, factor in ((above, np.zeros_like(fit), 1.0), (below, fit, scale)):
        _bands(axis, t, *((part - zero) * factor for part in (values, fit, ends)))
        if name != "strain":
            log_scale_if_wide(axis, "x", t)
    if name != "strain":
        log_scale_if_wide(above, "y", np.median(values, axis=0))


def _bands(
    axis: Axes,
    t: Float[np.ndarray, " age"],
    values: Float[np.ndarray, "draw age"],
    fit: Float[np.ndarray, " age"],
    ends: Float[np.ndarray, "2 age"],
) -> None:
    """Draw median and bands of draws, and the fit with the ends of its 95 % band."""
    for below, above, strength in BANDS:
        low, high = np.quantile(values, (below, above), axis=0)
        axis.fill_between(t, low, high, color=COLOURS[0], alpha=strength, linewidth=0)
    axis.plot(t, np.median(values, axis=0), color=COLOURS[0], label="posterior")
    axis.plot(t, fit, color=COLOURS[1], linestyle="--", linewidth=1.2, label="fit")
    axis.plot(t, ends.T, color=COLOURS[1], linestyle=":", linewidth=1.0)
