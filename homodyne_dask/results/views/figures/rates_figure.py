"""The figures of rates against time: of a fit, and of its posterior."""

import textwrap

import numpy as np
import xarray
from jaxtyping import Float
from matplotlib.axes import Axes

from homodyne_dask.errors import OptionError
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.known_truth import true_rates_of
from homodyne_dask.results.data.posterior import Posterior
from homodyne_dask.results.data.rate_curves import EVERYWHERE, rates_in
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, GREY, plain_label

AXES = {
    "J": ("J [Å²/s]", "transport rate"),
    "gamma_dot": ("dγ/dt [1/s]", "shear rate"),
    "strain": ("γ", "accumulated strain"),
    "rate": ("Γ [1/s]", "rate of decay"),
}
"""Axis and title of each panel."""
OF_UNKNOWN_Q = ("q²J [1/s]", "rate of decorrelation")


def _panels(
    rows: int, columns: int, height: float, words: str
) -> tuple[draw.FitFigure, list[Axes]]:
    """Return a figure with so many panels, and words below them."""
    width = 2.85 if columns > 1 else 4.0
    letters = int((columns * (draw.LEFT + width + draw.RIGHT) - 0.3) / draw.LETTER)
    lines = textwrap.wrap(plain_label(words), letters)
    foot = draw.FOOT + draw.LINE * (len(lines) - 1)
    picture, axes = draw.panels(rows * columns, columns, width, height, foot)
    draw.foot_line(picture, "\n".join(lines))
    return picture, axes


def draw_rates(view: FitView) -> draw.FitFigure:
    """Draw J, γ̇ and the strain against time, with bands of 68 and 95 %, and of 95 % at all times at once."""
    rates, truth = rates_in(view), _truth(view)
    names = [name for name in AXES if name in rates]
    picture, axes = _panels(1, len(names), 2.7, _bands_sentence(rates))
    unknown_q = bool(np.isnan(view.scan.q).any())
    free = any(name.endswith("_power_law") for name in map(str, rates))
    t = rates["t"].values
    for axis, name in zip(axes, names, strict=True):
        draw.label_axes(axis, "t [s]", *(OF_UNKNOWN_Q if name == "J" and unknown_q else AXES[name]))
        for percent in (95, 68):
            draw.band(axis, t, _edges(rates, name, f"{percent}"), percent)
        axis.plot(t, _edges(rates, name, EVERYWHERE).T, ":", color=COLOURS[0], linewidth=0.8)
        axis.plot(t, rates[name].values, color=COLOURS[0], label="fit")
        shown = [rates[name].values]
        if f"{name}_power_law" in rates:
            law = rates[f"{name}_power_law"].values
            axis.plot(t, law, "-.", color=GREY, linewidth=1.0, label="nearest power law")
        if name in truth:
            axis.plot(t, truth[name], "--", color=COLOURS[1], label="truth")
            shown.append(truth[name])
        if name != "strain":
            if not free:  # splines lie at equal distances
                draw.log_scale_if_wide(axis, "x", t)
            draw.log_scale_if_wide(axis, "y", rates[name].values)
        draw.limits(axis, np.concatenate(shown), _edges(rates, name, "95"))
    if truth or free:
        draw.legend(axes[0])
    return picture


def _bands_sentence(rates: xarray.Dataset) -> str:
    """Return what the bands of the picture are, and what qualifies them."""
    kinds = rates.attrs["bands"]
    if rates.attrs["covariance"] != "none":
        kinds = (
            f"bands: 68 % and 95 % at each time; dotted: 95 % at all times simultaneously; {kinds}"
        )
    return "; ".join([kinds, *rates.attrs["notes"].splitlines()])


def _truth(view: FitView) -> dict[str, Float[np.ndarray, " n"]]:
    """Return the true rates of simulated data, and the strain; none where q is not known."""
    if np.isnan(view.scan.q).any():
        return {}
    window, time = slice(*view.scan.frames), view.scan.time
    found = dict(
        true_rates_of(view.result, np.maximum(time, frame_spacing(time) / 2)[window]) or {}
    )
    if "gamma_dot" in found:
        rate, steps = found["gamma_dot"], np.diff(time[window])
        found["strain"] = np.append(0.0, np.cumsum(0.5 * (rate[1:] + rate[:-1]) * steps))
    return found


def _edges(rates: xarray.Dataset, name: str, suffix: str) -> Float[np.ndarray, "2 n"]:
    """Return the edges of a band; those of the curve itself where there is none."""
    ends = np.stack([rates[f"{name}_{end}_{suffix}"].values for end in ("low", "high")])
    return np.where(np.isnan(ends), rates[name].values, ends)


def draw_posterior_rates(posterior: Posterior) -> draw.FitFigure:
    """Draw each rate against time, and below it its difference from the fit.

    Raises OptionError for a model that has no rates.
    """
    group = posterior.tree["posterior"].dataset
    if "J" not in group:
        raise OptionError(f"{posterior.result.config['model']} has no rates J and γ̇ to draw")
    names = [name for name in AXES if name in group]
    note = posterior.tree.attrs["adjust_note"]
    words = f"bands: 68 % and 95 % of the draws; dotted: 95 % band of the fit; {note}"
    picture, axes = _panels(2, len(names), 2.2, words)
    for n, name in enumerate(names):
        _rate(axes[n], axes[n + len(names)], posterior, name)
    draw.legend(axes[0])
    return picture


def _rate(above: Axes, below: Axes, posterior: Posterior, name: str) -> None:
    """Draw a rate, and below it the difference from the fit, in per cent where no value is 0."""
    of, constant = posterior.tree["posterior"].dataset, posterior.tree["constant_data"].dataset
    t, values = of["age"].values, of[name].values.reshape(-1, of.sizes["age"])
    unit, (y, title) = of[name].attrs["units"], AXES[name]
    fit, low, high = (constant[f"{name}_fit{end}"].values for end in ("", "_low_95", "_high_95"))
    draws = np.quantile(values, (0.025, 0.16, 0.5, 0.84, 0.975), axis=0)
    curves = np.vstack([draws, fit, low, high])
    if name == "strain":  # it begins at 0
        t, curves = t[1:], curves[:, 1:]
    fit = curves[5]
    relative = bool((fit > 0).all() or (fit < 0).all())
    difference = (curves - fit) * (100 / np.abs(fit) if relative else 1.0)
    draw.label_axes(above, "", y.replace("Å²/s", unit), title)
    draw.label_axes(below, "t [s]", "difference [%]" if relative else f"difference [{unit}]")
    _draw_draws(above, t, curves)
    _draw_draws(below, t, difference)
    if name != "strain":
        draw.log_scale_if_wide(above, "x", t)
        draw.log_scale_if_wide(below, "x", t)
        draw.log_scale_if_wide(above, "y", curves[2])


def _draw_draws(axis: Axes, t: Float[np.ndarray, " n"], curves: np.ndarray) -> None:
    """Draw median and bands of draws, and the fit with the ends of its 95 % band."""
    low_95, low_68, median, high_68, high_95, fit, low, high = curves
    draw.band(axis, t, np.stack([low_95, high_95]), 95)
    draw.band(axis, t, np.stack([low_68, high_68]), 68)
    axis.plot(t, median, color=COLOURS[0], label="posterior")
    axis.plot(t, fit, "--", color=COLOURS[1], linewidth=1.2, label="fit")
    axis.plot(t, np.stack([low, high], 1), ":", color=COLOURS[1], linewidth=1.0)
