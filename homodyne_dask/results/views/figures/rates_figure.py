"""The picture of the fitted rates against time: `result.rates` with its bands."""

import textwrap

import numpy as np
import xarray
from jaxtyping import Float
from matplotlib.axes import Axes

from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.known_truth import true_rates_of
from homodyne_dask.results.data.rate_curves import EVERYWHERE, rates_in
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    FOOT,
    foot_line,
    label_axes,
    limits,
    log_scale_if_wide,
    panels,
)

AXES = {
    "J": ("J [Å²/s]", "transport rate"),
    "gamma_dot": ("dγ/dt [1/s]", "shear rate"),
    "strain": ("γ", "accumulated strain"),
}
"""Axis and title of each panel."""
OF_UNKNOWN_Q = ("q²J [1/s]", "rate of decorrelation")
STRENGTHS = {"95": 0.18, "68": 0.35}
LETTERS = 58
"""Of the line below the picture, for each panel."""


def draw_rates(view: FitView) -> FitFigure:
    """Draw J, γ̇ and the strain against time, with bands of 68 and 95 %, and of 95 % at all times at once."""
    rates, truth = rates_in(view), _truth(view)
    names = [name for name in AXES if name in rates]
    n = len(names)
    lines = textwrap.wrap(bands_sentence(rates), LETTERS * n)
    picture, axes = panels(n, n, 2.85 if n > 1 else 4.0, 2.7, FOOT + 0.14 * (len(lines) - 1))
    unknown_q = bool(np.isnan(view.scan.q).any())
    free = any(name.endswith("_power_law") for name in map(str, rates))
    for axis, name in zip(axes, names, strict=True):
        y, title = OF_UNKNOWN_Q if name == "J" and unknown_q else AXES[name]
        _draw(axis, rates, name, truth.get(name))
        label_axes(axis, "t [s]", y, title)
        if name != "strain":
            if not free:  # splines lie at equal distances
                log_scale_if_wide(axis, "x", rates["t"].values)
            log_scale_if_wide(axis, "y", rates[name].values)
        shown = [of for of in (rates[name].values, truth.get(name)) if of is not None]
        limits(axis, np.concatenate(shown), _edges(rates, name, "95"))
    if truth or free:
        axes[0].legend(frameon=False, fontsize=8)
    foot_line(picture, "\n".join(lines))
    return picture


def bands_sentence(rates: xarray.Dataset) -> str:
    """Return what the bands of the picture are, and what qualifies them."""
    kinds = rates.attrs["bands"]
    if rates.attrs["covariance"] != "none":
        kinds = (
            f"bands: 68 % and 95 % at each time; dotted: 95 % at all times simultaneously; {kinds}"
        )
    notes = rates.attrs["notes"].splitlines()
    return "; ".join([kinds, *notes])


def _truth(view: FitView) -> dict[str, Float[np.ndarray, " n"]]:
    """Return the true rates of simulated data, and the strain; none where q is not known."""
    if np.isnan(view.scan.q).any():
        return {}
    window, time = slice(*view.scan.frames), view.scan.time
    spacing = frame_spacing(time)
    found = dict(true_rates_of(view.result, np.maximum(time, spacing / 2)[window]) or {})
    if "gamma_dot" in found:
        rate, steps = found["gamma_dot"], np.diff(time[window])
        found["strain"] = np.append(0.0, np.cumsum(0.5 * (rate[1:] + rate[:-1]) * steps))
    return found


def _draw(
    axis: Axes, rates: xarray.Dataset, name: str, truth: Float[np.ndarray, " n"] | None
) -> None:
    t = rates["t"].values
    for suffix, strength in STRENGTHS.items():
        low, high = _edges(rates, name, suffix)
        axis.fill_between(t, low, high, color=COLOURS[0], alpha=strength, linewidth=0)
    axis.plot(t, _edges(rates, name, EVERYWHERE).T, ":", color=COLOURS[0], linewidth=0.8)
    axis.plot(t, rates[name].values, color=COLOURS[0], label="fit")
    if f"{name}_power_law" in rates:
        law = rates[f"{name}_power_law"].values
        axis.plot(t, law, "-.", color="#555555", linewidth=1.0, label="nearest power law")
    if truth is not None:
        axis.plot(t, truth, "--", color=COLOURS[1], label="truth")


def _edges(rates: xarray.Dataset, name: str, suffix: str) -> Float[np.ndarray, "2 n"]:
    """Return the edges of a band; those of the curve itself where there is none."""
    ends = np.stack([rates[f"{name}_{end}_{suffix}"].values for end in ("low", "high")])
    return np.where(np.isnan(ends), rates[name].values, ends)
