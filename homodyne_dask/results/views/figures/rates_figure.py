"""The figures of rates against time, and of a distribution of rates."""

from collections.abc import Mapping
from functools import partial
from itertools import product

import numpy as np
import xarray
from jaxtyping import Float
from matplotlib.axes import Axes
from scipy.integrate import cumulative_trapezoid

from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.known_truth import true_rates_of
from homodyne_dask.results.data.rate_curves import EVERYWHERE, QUALIFICATIONS, rates_in
from homodyne_dask.results.data.rate_distribution import distribution_in, has_distribution
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, plain_label
from homodyne_dask.text import joined_with_and

AXES = {
    "J": ("J [Å²/s]", "transport rate"),
    "gamma_dot": ("γ̇ [1/s]", "shear rate"),
    "strain": ("strain γ", "accumulated strain"),
    "rate": ("Γ [1/s]", "rate of decay"),
}
"""Axis and title of each panel."""
HEIGHT = 1.6
"""Inches of a panel."""
OF_UNKNOWN_Q = ("q²J [1/s]", "rate of decorrelation")


def draw_rates(view: FitView) -> draw.FitFigure:
    """Draw J, γ̇ and the strain against time, with bands of 68 and 95 %, and of 95 % at all times at once.

    Of a distribution of rates, the density of ln Γ.
    """
    if has_distribution(view.result):
        of = partial(_density, found=distribution_in(view.result))
        words = "bands: 68 % and 95 %, with the bias of smoothing"
        return draw.page({"distribution": of}, 1, HEIGHT, words)
    rates, truth = rates_in(view), _truth(view)
    unknown_q = bool(np.isnan(view.scan.q).any())
    axes = AXES | ({"J": OF_UNKNOWN_Q} if unknown_q else {})
    shown = {
        name: partial(_fitted_rate, rates=rates, name=name, words=axes[name], truth=truth.get(name))
        for name in axes
        if name in rates
    }
    symbols = {name: axes[name][0].partition(" ")[0] for name in shown}
    return draw.page(shown, len(shown), HEIGHT, plain_label(_bands_sentence(rates, symbols)))


def _fitted_rate(
    axis: Axes,
    rates: xarray.Dataset,
    name: str,
    words: tuple[str, str],
    truth: Float[np.ndarray, " n"] | None,
) -> None:
    """Draw one rate; an axis is logarithmic only where the rate is above 0 by more than its error.

    Nor is that of a rate without a formula that rises, as in a start-up, whose beginning would fill it.
    """
    t, value = rates["t"].values, rates[name].values
    draw.label_axes(axis, "t [s]", *words)
    for percent in (95, 68):
        draw.band(axis, t, _edges(rates, name, f"{percent}"), percent)
    axis.plot(t, _edges(rates, name, EVERYWHERE).T, ":", color=COLOURS[0], linewidth=0.8)
    axis.plot(t, value, color=COLOURS[0], lw=1.4, label=None if truth is None else "fit")
    shown = [value]
    if truth is not None:
        axis.plot(t, truth, "--", color=COLOURS[1], lw=1.2, label="truth")
        shown.append(truth)
    splines = any(str(key).endswith("_power_law") for key in rates)
    if name != "strain":
        if not splines:  # which lie at equal distances
            draw.log_scale_if_wide(axis, "x", t)
        rises = splines and value[-1] > value[0]
        if not rises and (_edges(rates, name, "68") > 0).all():
            draw.log_scale_if_wide(axis, "y", value)
    draw.limits(axis, np.concatenate(shown), _edges(rates, name, "95"))


def _bands_sentence(rates: xarray.Dataset, symbols: Mapping[str, str]) -> str:
    kinds = rates.attrs["bands"]
    if rates.attrs["covariance"] != "none":
        kinds = (
            f"bands: 68 % and 95 % at each time; dotted: 95 % at all times simultaneously; {kinds}"
        )
    notes: dict[str, list[str]] = {}
    for name, key in product(symbols, QUALIFICATIONS):
        if key in rates[name].attrs:
            notes.setdefault(rates[name].attrs[key], []).append(symbols[name])
    return "; ".join([kinds, *(f"{joined_with_and(of)}: {note}" for note, of in notes.items())])


def _truth(view: FitView) -> dict[str, Float[np.ndarray, " n"]]:
    if np.isnan(view.scan.q).any():
        return {}
    window, time = slice(*view.scan.frames), view.scan.time
    found = dict(
        true_rates_of(view.result, np.maximum(time, frame_spacing(time) / 2)[window]) or {}
    )
    if "gamma_dot" in found:
        found["strain"] = cumulative_trapezoid(found["gamma_dot"], time[window], initial=0)
    return found


def _edges(rates: xarray.Dataset, name: str, suffix: str) -> Float[np.ndarray, "2 n"]:
    ends = np.stack([rates[f"{name}_{end}_{suffix}"].values for end in ("low", "high")])
    return np.where(np.isnan(ends), rates[name].values, ends)


def _density(axis: Axes, found: xarray.Dataset) -> None:
    rate, density = found["rate"].values, found["density"].values
    draw.label_axes(axis, "Γ [1/s]", "density", "distribution of ln Γ", log="x")
    ends = {n: np.stack([found[f"{end}_{n}"].values for end in ("low", "high")]) for n in (95, 68)}
    for percent, edges in ends.items():
        draw.band(axis, rate, np.where(np.isnan(edges), density, edges), percent)
    axis.plot(rate, density, color=COLOURS[0], lw=1.4)
    draw.limits(axis, density, ends[95])
