"""The figures of a fit by their names, and all as files; angles and influence are in `angles`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.integrate import cumulative_trapezoid

from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data import rate_curves as curves
from homodyne_dask.results.data.c2_means import ages, cut_at_age, times_of
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.fitted_parameters import true_rates_of
from homodyne_dask.results.data.numbers_and_intervals import format_count, level_name
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views import style
from homodyne_dask.results.views.angles import draw_angles, draw_influence, influential
from homodyne_dask.results.views.panels import FitFigure, png_of, vector_of
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.files import write_file
from homodyne_dask.text import joined_with_and

Curve = Float[np.ndarray, " n"]
SIDE, LEFT, RIGHT = 1.36, 0.45, 0.52
"""Inches: side of a map, and what is left and right of it."""
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""
FEWEST = 8
"""Residuals of an interval, at least."""


def draw_maps(view: FitView) -> draw.FitFigure:
    reach = _reach(np.concatenate([each.residual.ravel() for each in view.maps]))
    edges, side, shown = view.axis.edges(view.scan), view.axis.side, dict[str, Any]()
    for each in view.maps:
        known = np.concatenate([v[np.isfinite(v)] for v in (each.data, each.model)])
        low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (0.0, 1.0)
        c2 = "cividis", (low, high if high > low else low + 1.0)
        for name, title, look in (
            ("data", style.bin_name(view.scan, each.bin), c2),
            ("model", "model", c2),
            ("residual", "(data − model) / σ", ("RdBu_r", (-reach, reach))),
        ):
            of = partial(_map, edges=edges, values=getattr(each, name), title=title, look=look)
            shown[f"{name} {view.scan.label[each.bin]}"] = of
    cells = f"data are means over {side}×{side} pairs" if side > 1 else ""
    return draw.page(shown, 3, SIDE, cells, LEFT, RIGHT)


def _map(
    axes: Axes, edges: Curve, values: np.ndarray, title: str, look: tuple[str, tuple[float, float]]
) -> None:
    """Draw values against both times; look: names of the colours, and the values at their ends."""
    draw.label_axes(axes, "t₁ [s]", "t₂ [s]")
    axes.set_box_aspect(1)
    shades = colormaps[look[0]].with_extremes(bad=style.UNKNOWN_COLOUR)
    image: Any = axes.pcolorfast(edges, edges, values, cmap=shades, clim=look[1])
    image.set_interpolation("nearest")
    axes.set_title(title, fontsize=draw.SMALL, loc="left")
    bar = axes.inset_axes((1.04, 0.0, 0.05, 1.0))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    axes.figure.colorbar(image, cax=bar, extend="both", extendfrac=0.05, ticks=ticks)
    bar.tick_params(labelsize=draw.SMALL)
    bar.ticklabel_format(useOffset=False)


def draw_cuts(view: FitView) -> draw.FitFigure:
    """Draw c2 against lag at up to five ages, and the model; bars only of tables of g2."""
    bins = map(int, view.shown)
    shown = {f"bin {view.scan.label[b]}": partial(_cuts, view=view, b=b) for b in bins}
    return draw.page(shown, 2, 1.9)


def _cuts(axes: Axes, view: FitView, b: int) -> None:
    scan, read = view.scan, view.cuts
    x, y = ("lag [s]", "g₂") if scan.is_table else ("lag t₂ − t₁ [s]", "c₂")
    draw.label_axes(axes, x, y, style.bin_name(scan, b), log="x")
    chosen = ages(read, b, scan)
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, max(len(chosen), 1)))
    for age, colour, marker in zip(chosen, shades, style.MARKERS, strict=False):
        cut = cut_at_age(scan, read, b, age)
        look = {"fmt": marker, "ms": 3, "color": colour}
        look["label"] = None if scan.is_table else f"t₁ = {cut.t1[0]:.3g} s"
        draw.points(axes, cut.lag, cut.c2, cut.stderr if scan.is_table else None, **look)
        axes.plot(*view.curve(b, cut), color=colour, lw=1.2)


def _reach(residual: np.ndarray) -> float:
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def draw_residuals(view: FitView) -> draw.FitFigure:
    lag, residual = lags_and_residuals(view)
    by_lag = partial(_by_lag, lag=lag, residual=residual, is_table=view.scan.is_table)
    shown = {"distribution": partial(_histogram, residual=residual), "against lag": by_lag}
    return draw.page(shown, 2, 1.9)


def lags_and_residuals(view: FitView) -> tuple[Curve, Curve]:
    """Return lags [s] and residuals of each known cell of the maps once."""
    middle = times_of(view.scan, view.axis.middles)
    lag = np.triu(middle - middle[:, None])
    residual = np.stack([each.residual for each in view.maps])
    known = np.isfinite(residual) & (lag > 0)
    return np.broadcast_to(lag, known.shape)[known], residual[known]


def _histogram(axis: Axes, residual: Curve) -> None:
    draw.label_axes(axis, "residual / σ", "density", "residuals", log="y")
    if not len(residual):
        return
    reach = _reach(residual) * 1.5
    beyond = int((np.abs(residual) > reach).sum())
    label = f"{format_count(len(residual))} blocks"
    label += f", {format_count(beyond)} beyond the axis" if beyond else ""
    density, edges = np.histogram(residual, np.linspace(-reach, reach, 61), density=True)
    axis.stairs(density, edges, fill=True, color=style.COLOURS[5], label=label)
    x = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axis.plot(x, normal, "--", color=style.COLOURS[6], lw=1.2, label="unit normal")
    axis.set_ylim(0.3 / len(residual), 1.5)


def _by_lag(axis: Axes, lag: Curve, residual: Curve, is_table: bool) -> None:
    log = "x" if is_table else ""  # whose lags are spread over decades
    draw.label_axes(axis, "lag [s]", "residual / σ", "residuals against lag", log=log)
    axis.axhline(0, color=style.UNKNOWN_COLOUR, zorder=0)
    axis.axhline(1, color=style.GREY, linestyle=":", linewidth=1, label="expected std. dev.")
    number = min(LAG_CELLS, len(lag) // FEWEST)
    groups = np.array_split(np.argsort(lag), number) if number else []
    columns = [(lag[g].mean(), residual[g].mean(), residual[g].std()) for g in groups]
    middle, mean, deviation = np.array(columns or np.empty((0, 3))).T
    draw.points(axis, middle, mean, ms=3.5, label="mean")
    axis.plot(middle, deviation, "s", ms=3.5, color=style.COLOURS[1], label="std. dev.")


History = Sequence[Mapping[str, Any]]
ROOM_FOR_ZERO = 0.5
"""Length of the axis between 0 and the smallest difference of χ², in decades."""


def draw_passes(view: FitView) -> draw.FitFigure:
    history = view.result.run.history
    full = [entry for entry in history if "pass" in entry]
    shown = {"chisqr": partial(_difference, full=full), "distance": partial(_distance, full=full)}
    return draw.page(shown | {"seconds": partial(_durations, history=history)}, 3, 1.6)


def _difference(axis: Axes, full: History) -> None:
    draw.label_axes(axis, "pass", "χ² − lowest χ²", "χ² above its lowest")
    chisqr = np.array([entry["chisqr"] for entry in full], float)
    above = chisqr - np.fmin.reduce(chisqr, initial=np.inf)
    positive = above[above > 0]
    if len(positive):
        smallest = 10.0 ** np.floor(np.log10(positive.min()))
        draw.logarithmic(axis, "y", "symlog", linthresh=smallest, linscale=ROOM_FOR_ZERO)
        axis.set_ylim(-0.3 * smallest, 3 * positive.max())
    _by_pass(axis, full, above)


def _distance(axis: Axes, full: History) -> None:
    draw.label_axes(axis, "pass", "distance [stderr]", "distance to the minimum", log="y")
    enough = lm.Options().decrement
    decrement = np.array([entry["decrement"] for entry in full], float)
    known = decrement[decrement > 0]
    axis.set_ylim(known.min(initial=enough) / 3, known.max(initial=enough) * 3)
    axis.axhline(enough, color=style.GREY, linestyle=":", label="convergence limit")
    _by_pass(axis, full, np.where(decrement > 0, decrement, np.nan))


def _by_pass(axis: Axes, full: History, values: np.ndarray) -> None:
    number, accepted = (np.array([entry[key] for entry in full]) for key in ("pass", "accepted"))
    axis.plot(number, values, color=style.UNKNOWN_COLOUR, zorder=1)
    for wanted, marker, label in ((True, "o", "accepted"), (False, "X", "rejected")):
        some = np.isfinite(values) & (accepted == wanted)
        if some.any():
            look = {"ms": 4.5, "color": style.COLOURS[not wanted], "label": label}
            axis.plot(number[some], values[some], marker, **look)
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, integer=True))


def _durations(axis: Axes, history: History) -> None:
    draw.label_axes(axis, "pass", "time of one pass [s]", "coarse and full passes", log="y")
    levels = [entry for entry in history if "level" in entry]
    at = 1 - sum(entry["passes"] for entry in levels)
    for entry, colour, marker in zip(levels, style.COLOURS[2:], style.MARKERS[1:], strict=False):
        n, look = entry["passes"], {"color": colour, "ms": 4, "markerfacecolor": "none"}
        each = [entry["seconds"] / max(n, 1)] * n
        axis.plot(range(at, at + n), each, marker, label=level_name(entry["level"]), **look)
        at += n
    full = [entry for entry in history if "pass" in entry and "seconds" in entry]
    number, seconds = ([entry[key] for entry in full] for key in ("pass", "seconds"))
    axis.plot(number, seconds, "o", color=style.COLOURS[0], ms=4)
    if levels:
        axis.axvline(0.5, color=style.UNKNOWN_COLOUR, zorder=0)
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}" if x >= 1 else ""))


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
    """Draw J, γ̇ and the strain against time with bands, or the density of a distribution of rates."""
    if curves.has_distribution(view.result):
        of = partial(_density, found=curves.distribution_in(view.result))
        words = "bands: 68 % and 95 %, with the bias of smoothing"
        return draw.page({"distribution": of}, 1, HEIGHT, words)
    rates, truth, axes = curves.rates_in(view), _truth(view), AXES
    if np.isnan(view.scan.q).any():
        axes = AXES | {"J": OF_UNKNOWN_Q}
    axes = {name: words for name, words in axes.items() if name in rates}
    panel = partial(_fitted_rate, rates=rates)
    shown = {n: partial(panel, name=n, words=of, truth=truth.get(n)) for n, of in axes.items()}
    symbols = {name: words[0].partition(" ")[0] for name, words in axes.items()}
    return draw.page(shown, len(shown), HEIGHT, style.plain_label(_bands_sentence(rates, symbols)))


def _fitted_rate(
    axis: Axes, rates: xarray.Dataset, name: str, words: tuple[str, str], truth: Curve | None
) -> None:
    """Draw one rate; an axis is logarithmic only where the rate is above 0 by more than its error.

    Nor is that of a rate without a formula that rises, as in a start-up, whose beginning would fill it.
    """
    t, value = rates["t"].values, rates[name].values
    draw.label_axes(axis, "t [s]", *words)
    for percent in (95, 68):
        draw.band(axis, t, _edges(rates, name, f"{percent}"), percent)
    axis.plot(
        t, _edges(rates, name, curves.EVERYWHERE).T, ":", color=style.COLOURS[0], linewidth=0.8
    )
    axis.plot(t, value, color=style.COLOURS[0], lw=1.4, label=None if truth is None else "fit")
    shown = [value]
    if truth is not None:
        axis.plot(t, truth, "--", color=style.COLOURS[1], lw=1.2, label="truth")
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
        words = "bands: 68 % and 95 % at each time; dotted: 95 % at all times simultaneously"
        kinds = f"{words}; {kinds}"
    notes: dict[str, list[str]] = {}
    for name, key in product(symbols, curves.QUALIFICATIONS):
        if key in rates[name].attrs:
            notes.setdefault(rates[name].attrs[key], []).append(symbols[name])
    return "; ".join([kinds, *(f"{joined_with_and(of)}: {note}" for note, of in notes.items())])


def _truth(view: FitView) -> dict[str, Curve]:
    if np.isnan(view.scan.q).any():
        return {}
    window, time = slice(*view.scan.frames), view.scan.time
    t = np.maximum(time, frame_spacing(time) / 2)[window]
    found = dict(true_rates_of(view.result, t) or {})
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
    axis.plot(rate, density, color=style.COLOURS[0], lw=1.4)
    draw.limits(axis, density, ends[95])


PICTURES: dict[str, Callable[[FitView], FitFigure]] = {"maps": draw_maps, "cuts": draw_cuts}
PICTURES |= {"angles": draw_angles, "rates": draw_rates, "passes": draw_passes}
PICTURES |= {"residuals": draw_residuals, "influence": draw_influence}


def save_all(view: FitView, folder: Path, suffix: str = "png") -> list[Path]:
    """Write every figure that a result has, as PNG and as `suffix`; return the paths of the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    result = view.result
    wanted = {
        "maps": not view.scan.is_table,
        "rates": curves.has_rates(result) or curves.has_distribution(result),
        "angles": result.outcome is not Outcome.NO_DECAY and len(view.scan.bins) > 1,
        "influence": influential(result).any(),
    }
    paths = [folder / f"{name}.png" for name in PICTURES if wanted.get(name, True)]
    for path in paths:
        about = {
            "Title": style.TITLES[path.stem],
            "Description": style.alternative(path.stem, view),
        }
        picture = PICTURES[path.stem](view)
        write_file(path, png_of(picture, about))
        if suffix != "png":
            write_file(path.with_suffix(f".{suffix}"), vector_of(picture, suffix))
    return paths
