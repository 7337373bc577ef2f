"""The figures of a fit by their names, and all as files."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Bool, Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from homodyne_dask.errors import OptionError
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.results.data import c2_means as means
from homodyne_dask.results.data import rate_curves as curves
from homodyne_dask.results.data.derived_quantities import coefficients_of
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.fit_view import FittedModel, FitView, decay_times, fall_to_1_e
from homodyne_dask.results.data.fitted_parameters import true_rates_of
from homodyne_dask.results.data.numbers_and_intervals import format_count, level_name
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views import style
from homodyne_dask.results.views.panels import png_of, vector_of
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import CLUSTER_ROBUST
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.files import write_file
from homodyne_dask.store.scan import Scan
from homodyne_dask.text import joined_with_and

Curve = Float[np.ndarray, " n"]
SIDE, LEFT, RIGHT = 1.21, 0.6, 0.52
"""Inches: side of a map, and what is left of it, of ticks with up to five characters, and right of it."""
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""
FEWEST = 8
"""Residuals of an interval, at least."""


def page_of_maps(view: FitView) -> draw.Page:
    axis, drawn = view.axis_of_figure, view.maps
    if axis != view.axis:
        drawn = [view.map_of(bin_map.bin, axis) for bin_map in view.maps]
    reach = _reach(np.concatenate([bin_map.residual.ravel() for bin_map in drawn]))
    edges, side, maps = axis.edges(view.scan), axis.side, dict[str, Any]()
    for bin_map in drawn:
        values = np.concatenate([v[np.isfinite(v)] for v in (bin_map.data, bin_map.model)])
        low, high = np.quantile(values, (0.01, 0.99)) if len(values) else (0.0, 1.0)
        c2 = "cividis", (low, high if high > low else low + 1.0)
        for name, title, look in (
            ("data", style.bin_name(view.scan, bin_map.bin), c2),
            ("model", "model", c2),
            ("residual", "(data − model) / σ", ("RdBu_r", (-reach, reach))),
        ):
            maps[f"{name} {view.scan.label[bin_map.bin]}"] = partial(
                _map, edges=edges, values=getattr(bin_map, name), title=title, look=look
            )
    words = [f"data are means over {side}×{side} pairs"] * (side > 1)
    if axis != view.axis:
        first, last = view.axis.edges(view.scan)[[0, -1]]
        words.append(f"the middle of a record from {first:.3g} to {last:.3g} s")
    return draw.Page(maps, 3, SIDE, "; ".join(words), LEFT, RIGHT)


def _map(
    axes: Axes, edges: Curve, values: np.ndarray, title: str, look: tuple[str, tuple[float, float]]
) -> None:
    """Draw values against both times; look: names of the colours, and the values at their ends."""
    draw.label_axes(axes, "t₁ [s]", "t₂ [s]")
    axes.set_box_aspect(1)
    shades = colormaps[look[0]].with_extremes(bad=style.UNKNOWN_COLOUR)
    image: Any = axes.pcolorfast(edges, edges, values, cmap=shades, clim=look[1])
    image.set_interpolation("nearest")
    axes.set_title(title, fontsize=draw.SMALL, loc="left", y=1.0)
    bar = axes.inset_axes((1.04, 0.0, 0.05, 1.0))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    axes.figure.colorbar(image, cax=bar, extend="both", extendfrac=0.05, ticks=ticks)
    bar.tick_params(labelsize=draw.SMALL)
    bar.ticklabel_format(useOffset=False)


def page_of_cuts(view: FitView) -> draw.Page:
    """Return panels of c2 against lag at up to five ages, and the model; bars where the noise is known."""
    bins = map(int, view.shown)
    cuts = {f"bin {view.scan.label[b]}": partial(_cuts, view=view, b=b) for b in bins}
    words = "bars: standard errors of speckle and counting noise, correlated between lags and between ages"
    return draw.Page(cuts, 2, 1.9, "" if view.speckle_noise is None else words)


def _cuts(axes: Axes, view: FitView, b: int) -> None:
    scan, read = view.scan, view.cuts
    x, y = ("lag [s]", "g₂") if scan.is_table else ("lag t₂ − t₁ [s]", "c₂")
    x, y = ("exposure [s]", "1 + contrast") if scan.attributes.exposures else (x, y)
    draw.label_axes(axes, x, y, style.bin_name(scan, b), log="x")
    ages = means.ages(read, b, scan)
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, max(len(ages), 1)))
    for age, colour, marker in zip(ages, shades, style.MARKERS, strict=False):
        cut = view.cut(b, age)
        look = {"fmt": marker, "ms": 3, "color": colour}
        look["label"] = None if scan.is_table else style.with_powers(f"t₁ = {cut.t1[0]:.3g} s")
        bars = cut.stderr if np.isfinite(cut.stderr).any() else None
        draw.points(axes, cut.lag, cut.c2, bars, **look)
        axes.plot(*view.curve(b, cut), color=colour, lw=1.2)


def _reach(residual: np.ndarray) -> float:
    sizes = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(sizes, 0.99))) if len(sizes) else 3.0


def page_of_residuals(view: FitView) -> draw.Page:
    lag, residual = lags_and_residuals(view)
    by_lag = partial(_by_lag, lag=lag, residual=residual, is_table=view.scan.is_table)
    panels = {"distribution": partial(_histogram, residual=residual), "against lag": by_lag}
    return draw.Page(panels, 2, 1.9)


def lags_and_residuals(view: FitView) -> tuple[Curve, Curve]:
    """Return lags [s] and residuals of each known cell of the maps once."""
    middle = means.times_of(view.scan, view.axis.middles)
    lag = np.triu(middle - middle[:, None])
    residual = np.stack([bin_map.residual for bin_map in view.maps])
    usable = np.isfinite(residual) & (lag > 0)
    return np.broadcast_to(lag, usable.shape)[usable], residual[usable]


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


def page_of_passes(view: FitView) -> draw.Page:
    history = view.result.run.history
    full = [entry for entry in history if "pass" in entry]
    panels = {"chisqr": partial(_difference, full=full), "distance": partial(_distance, full=full)}
    return draw.Page(panels | {"seconds": partial(_durations, history=history)}, 3, 1.6)


def _difference(axis: Axes, full: History) -> None:
    draw.label_axes(axis, "pass", "χ² − lowest χ²", "χ² above its lowest")
    chisqr = np.array([entry["chisqr"] for entry in full], float)
    excess = chisqr - np.fmin.reduce(chisqr, initial=np.inf)
    positive = excess[excess > 0]
    if len(positive):
        smallest = 10.0 ** np.floor(np.log10(positive.min()))
        draw.logarithmic(axis, "y", "symlog", linthresh=smallest, linscale=ROOM_FOR_ZERO)
        axis.set_ylim(-0.3 * smallest, 3 * positive.max())
    _by_pass(axis, full, excess)


def _distance(axis: Axes, full: History) -> None:
    draw.label_axes(axis, "pass", "distance [stderr]", "distance to the minimum", log="y")
    enough = lm.SolverOptions().decrement
    decrement = np.array([entry["decrement"] for entry in full], float)
    positive = decrement[decrement > 0]
    axis.set_ylim(positive.min(initial=enough) / 3, positive.max(initial=enough) * 3)
    axis.axhline(enough, color=style.GREY, linestyle=":", label="convergence limit")
    _by_pass(axis, full, np.where(decrement > 0, decrement, np.nan))


def _by_pass(axis: Axes, full: History, values: np.ndarray) -> None:
    number, accepted = (np.array([entry[key] for entry in full]) for key in ("pass", "accepted"))
    axis.plot(number, values, color=style.UNKNOWN_COLOUR, zorder=1)
    for is_accepted, marker, label in ((True, "o", "accepted"), (False, "X", "rejected")):
        passes = np.isfinite(values) & (accepted == is_accepted)
        if passes.any():
            look = {"ms": 4.5, "color": style.COLOURS[not is_accepted], "label": label}
            axis.plot(number[passes], values[passes], marker, **look)
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, integer=True))


def _durations(axis: Axes, history: History) -> None:
    draw.label_axes(axis, "pass", "time of one pass [s]", "coarse and full passes", log="y")
    levels = [entry for entry in history if "level" in entry]
    begin = 1 - sum(entry["passes"] for entry in levels)
    for entry, colour, marker in zip(levels, style.COLOURS[2:], style.MARKERS[1:], strict=False):
        n, look = entry["passes"], {"color": colour, "ms": 4, "markerfacecolor": "none"}
        mean_seconds = [entry["seconds"] / max(n, 1)] * n
        label = level_name(entry["level"])
        axis.plot(range(begin, begin + n), mean_seconds, marker, label=label, **look)
        begin += n
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


def page_of_rates(view: FitView) -> draw.Page:
    """Return panels of J, γ̇ and the strain with bands, or the density of a distribution of rates."""
    if curves.has_distribution(view.result):
        distribution = curves.distribution_in(view.result)
        draw_density = partial(_density, distribution=distribution)
        has_bands = bool(distribution["low_95"].notnull().any())
        words = "bands: 68 % and 95 %, with the bias of smoothing" * has_bands
        return draw.Page({"distribution": draw_density}, 1, HEIGHT, words)
    rates, truth, axes = curves.rates_in(view), _truth(view), AXES
    if np.isnan(view.scan.q).any():
        axes = AXES | {"J": OF_UNKNOWN_Q}
    axes = {name: words for name, words in axes.items() if name in rates}
    panel = partial(_fitted_rate, rates=rates)
    panels = {n: partial(panel, name=n, words=axes[n], truth=truth.get(n)) for n in axes}
    symbols = {name: words[0].partition(" ")[0] for name, words in axes.items()}
    sentence = style.plain_label(_bands_sentence(rates, symbols))
    return draw.Page(panels, len(panels), HEIGHT, sentence)


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
    drawn_values = [value]
    if truth is not None:
        axis.plot(t, truth, "--", color=style.COLOURS[1], lw=1.2, label="truth")
        drawn_values.append(truth)
    splines = any(str(key).endswith("_power_law") for key in rates)
    if name != "strain":
        if not splines:  # which lie at equal distances
            draw.log_scale_if_wide(axis, "x", t)
        rises = splines and value[-1] > value[0]
        if not rises and (_edges(rates, name, "68") > 0).all():
            draw.log_scale_if_wide(axis, "y", value)
    draw.limits(axis, np.concatenate(drawn_values), _edges(rates, name, "95"))


def _bands_sentence(rates: xarray.Dataset, symbols: Mapping[str, str]) -> str:
    sentence = rates.attrs["bands"]
    if rates.attrs["covariance"] != "none":
        words = "bands: 68 % and 95 % at each time; dotted: 95 % at all times simultaneously"
        sentence = f"{words}; {sentence}"
    notes: dict[str, list[str]] = {}
    for name, key in product(symbols, curves.QUALIFICATIONS):
        if key in rates[name].attrs:
            notes.setdefault(rates[name].attrs[key], []).append(symbols[name])
    return "; ".join([sentence, *(f"{joined_with_and(notes[note])}: {note}" for note in notes)])


def _truth(view: FitView) -> dict[str, Curve]:
    if np.isnan(view.scan.q).any():
        return {}
    window, time = slice(*view.scan.frames), view.scan.time
    t = np.maximum(time, frame_spacing(time) / 2)[window]
    truth = dict(true_rates_of(view.result, t) or {})
    if "gamma_dot" in truth:
        rate = truth["gamma_dot"]
        of_steps = np.diff(time[window]) * (rate[:-1] + rate[1:]) / 2
        truth["strain"] = np.append(0.0, np.cumsum(of_steps))
    return truth


def _edges(rates: xarray.Dataset, name: str, suffix: str) -> Float[np.ndarray, "2 n"]:
    ends = np.stack([rates[f"{name}_{end}_{suffix}"].values for end in ("low", "high")])
    return np.where(np.isnan(ends), rates[name].values, ends)


def _density(axis: Axes, distribution: xarray.Dataset) -> None:
    rate, density = distribution["rate"].values, distribution["density"].values
    draw.label_axes(axis, "Γ [1/s]", "density", "distribution of ln Γ", log="x")
    low, high = (distribution[f"{end}_95"].values for end in ("low", "high"))
    for percent in (95, 68):
        edges = np.stack([distribution[f"{end}_{percent}"].values for end in ("low", "high")])
        draw.band(axis, rate, np.where(np.isnan(edges), density, edges), percent)
    axis.plot(rate, density, color=style.COLOURS[0], lw=1.4)
    draw.limits(axis, density, np.stack([low, high]))


OfModel = Callable[[FittedModel], Float[np.ndarray, " n"]]
"""A value of each bin of a model."""
AGE_FRACTION = 1 / 3
"""Share of the selected time: age at which the decays of the bins are compared at one lag."""
ACROSS = 4
"""Panels of influence in a row."""
LINE_POINTS = 181
"""Of a line of the model against φ."""
ALIKE = 0.01
"""Scatter of f below which bins do not differ."""
SAME_RING = 0.02
"""Relative range of q within which repeats have one ring."""
_Q = "q [Å⁻¹]"
MAX_SAMPLES = 12
"""Most frames, and most lags, at which the model is averaged over a cell."""


def page_of_angles(view: FitView) -> draw.Page:
    """Return panels of contrast, offset and decay of bins against φ, or q: decays of pairs without bars."""
    scan, table = view.scan, view.result.scaling
    hollow = table["undetermined"].values
    panel = partial(_by_angle, view=view, hollow=hollow)
    method = view.result.parameters.attrs["method"] or CLUSTER_ROBUST
    panels: dict[str, Any] = {}
    for name in ("contrast", "offset"):
        values = np.where(hollow & (name == "contrast"), np.nan, table[name].values)
        stderr = table[f"{name}_stderr"].values
        bars = f"bars: standard errors ({method})" if np.isfinite(stderr).any() else ""
        panels[name] = partial(panel, y=name, title=bars, values=values, stderr=stderr)
    decay = measured_decay_times(view)
    if np.isfinite([decay, decay_times(view.model, scan)]).any():
        middle = 0.5 * sum(means.used_span(scan))
        title = f"lag where f = 1/e{_age(scan, middle)}; line: model"
        look = {"y": "decay time [s]", "title": title, "values": decay, "log": True}
        panels["decay_time"] = partial(panel, **look, line=partial(decay_times, scan=scan))
    decays = at_one_lag(view)
    if decays is not None and np.isfinite(decays.f).any():
        age, lag = decays.t1.mean(), (decays.t2 - decays.t1).mean()
        title = style.with_powers(f"f at lag {lag:.3g} s{_age(scan, age)}; line: model")
        look = {"y": "(c₂ − offset) / contrast", "title": title, "values": decays.f}
        panels["f_at_lag"] = partial(panel, **look, line=decays.of_model)
    return draw.Page(panels, 2, 1.7)


def _age(scan: Scan, age: float) -> str:
    return "" if scan.is_table else f", age {age:.3g} s"


def measured_decay_times(view: FitView) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which the data of each bin fall to 1/e, mid-record; NaN where they do not."""
    scan, read = view.scan, view.cuts
    middle = 0.5 * sum(means.used_span(scan))
    cells = means.cells_of_age(read, read.age[np.argmin(np.abs(read.t1 - middle))])
    log_lag = np.log(read.t2[cells] - read.t1[cells])
    return np.exp([fall_to_1_e(log_lag, f) for f in _measured(view, cells)])


def _measured(view: FitView, cells: Int[np.ndarray, " n"]) -> Float[np.ndarray, "bin n"]:
    table = view.result.scaling
    decaying = (table["ndata"].values > 0) & ~table["undetermined"].values
    contrast = np.where(decaying, table["contrast"].values, np.nan)[:, None]
    return (view.cuts.c2[:, cells] - table["offset"].values[:, None]) / contrast


class AtLag(NamedTuple):
    """The decay of every bin at one age and lag: means over the pairs of one cell of the cuts."""

    t1: Float[np.ndarray, " n"]
    """s, of pairs spread over the cell: f at its centre is not the mean of f."""
    t2: Float[np.ndarray, " n"]
    f: Float[np.ndarray, " bin"]
    """Measured, (c2 - offset)/contrast."""

    def of_model(self, model: FittedModel) -> Float[np.ndarray, " n"]:
        return model.shape(np.arange(len(model.phi)), self.t1, self.t2).mean(axis=1)


def at_one_lag(view: FitView) -> AtLag | None:
    """Return the decay at the lag where the bins differ most, or f is 1/2; None if none is known for all."""
    scan, read = view.scan, view.cuts
    with_data = view.result.scaling["ndata"].values > 0
    cells = np.flatnonzero(np.isfinite(read.c2[with_data]).all(axis=0)) if with_data.any() else []
    if not len(cells):
        return None
    first, last = means.used_span(scan)
    age = read.age[cells[np.argmin(np.abs(read.t1[cells] - first - AGE_FRACTION * (last - first)))]]
    cells = cells[read.age[cells] == age]
    f = view.model.shape(np.arange(len(scan.bins)), read.t1[cells], read.t2[cells])
    differ = f[with_data].std(axis=0)
    if differ.max() < ALIKE:
        differ = -np.abs(f[with_data].mean(axis=0) - 0.5)
    cell = int(cells[np.argmax(np.nan_to_num(differ, nan=-1.0))])
    # times of pairs spread over the cell
    edges = read.age_edges[read.age[cell] :], read.lag_edges[read.lag[cell] :]
    starts, lags = (_spread(int(ends[0]), int(ends[1])) for ends in edges)
    later = starts[:, None] + lags
    in_record = later < scan.n_frames
    earlier = np.broadcast_to(starts[:, None], later.shape)
    t1, t2 = scan.time[earlier[in_record]], scan.time[later[in_record]]
    return AtLag(t1, t2, _measured(view, np.array([cell]))[:, 0])


def _spread(begin: int, stop: int) -> Int[np.ndarray, " n"]:
    n = min(stop - begin, MAX_SAMPLES)
    return begin + ((np.arange(n) + 0.5) * (stop - begin) / n).astype(int)


def page_of_influence(view: FitView) -> draw.Page:
    table = view.result.diagnosis.influence
    has_influence = influential(view.result)
    if table is None or not has_influence.any():
        raise OptionError("the result does not contain the influence of bins: it has no errors")
    names, change = table["param"].values[has_influence], table["change"].values[:, has_influence]

    def influence(axes: Axes, name: str, change: Float[np.ndarray, " bin"]) -> None:
        axes.axhspan(-1, 1, color=style.UNKNOWN_COLOUR, alpha=0.5, linewidth=0)
        axes.axhline(0, color=style.GREY, linewidth=0.8)
        has_error = np.isfinite(view.result.parameters["stderr"].sel(param=name))
        y = "change / stderr" if has_error else "change / naive error"
        _by_angle(axes, view, change, y, style.symbol(name), ms=3)

    columns = zip(map(str, names), change.T, strict=True)
    panels = {name: partial(influence, name=name, change=values) for name, values in columns}
    return draw.Page(panels, min(len(names), ACROSS), 1.2, left=0.6)


def influential(result: FitValues) -> Bool[np.ndarray, " p"]:
    """Return for which parameters, but not coefficients of a rate, the influence of any bin is known."""
    table = result.diagnosis.influence
    if table is None:
        return np.zeros(0, bool)
    is_parameter = ~np.isin(table["param"].values, list(coefficients_of(result)))
    return is_parameter & np.isfinite(table["change"].values).any(axis=0)


def _by_angle(
    axis: Axes,
    view: FitView,
    values: Float[np.ndarray, " bin"],
    y: str,
    title: str,
    stderr: Float[np.ndarray, " bin"] | None = None,
    hollow: Bool[np.ndarray, " bin"] | None = None,
    line: OfModel | None = None,
    log: bool = False,
    ms: float = 4,
) -> None:
    """Draw a value of each bin, with its error, against `_place`; line: the same of a model, also between."""
    scan, drawn_values = view.scan, [values]
    x, name = _place(scan)
    draw.label_axes(axis, name, y, title)
    hollow = np.zeros(len(x), bool) if hollow is None else hollow
    group_of_bin, styles = _groups(scan)
    for value, colour, marker, label in styles:
        in_group = (group_of_bin == value) | np.isnan(value)
        for empty in (False, True):
            bins = in_group & (hollow == empty)
            if not bins.any():
                continue
            error = None if stderr is None or not np.isfinite(stderr).any() else stderr[bins]
            look = {"fmt": marker, "ms": ms, "color": colour, "hollow": empty}
            look["label"] = "no decay: contrast unknown" if empty else label
            draw.points(axis, x[bins], values[bins], error, **look)
        if line is None:
            continue
        line_x, line_y = _line_of_model(view, line, x, in_group, hollow, name.startswith("φ"))
        single = len(np.unique(line_x)) == 1  # a line of one point is not seen
        look = {"marker": "_", "ms": 14} if single else {}
        of_all = style.GREY if group_of_bin is not scan.q else colour  # one model of all scans
        axis.plot(line_x, line_y, color=of_all, lw=1, **look)
        drawn_values.append(line_y)
    if log:
        draw.log_scale_if_wide(axis, "y", np.concatenate(drawn_values))
    _tick_places(axis, name, x)


def _tick_places(axis: Axes, name: str, x: Float[np.ndarray, " bin"]) -> None:
    steps = [1, 1.5, 3, 4.5, 9, 10] if name.startswith("φ") else None
    counted = name != _Q
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, steps=steps, integer=counted))
    if counted and np.ptp(x) < 1:
        middle, reach = float(np.mean(x)), 50.0 if steps else 1.0
        axis.set_xlim(middle - reach, middle + reach)


def _line_of_model(
    view: FitView, line: OfModel, x: np.ndarray, ring: np.ndarray, hollow: np.ndarray, of_phi: bool
) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x[ring])
    line_x = x[ring][order]
    if not of_phi:
        return line_x, np.where(hollow, np.nan, line(view.model))[ring][order]
    line_x, q = np.linspace(line_x[0], line_x[-1], LINE_POINTS), float(np.mean(view.scan.q[ring]))
    return line_x, line(view.at_angles(q if np.isfinite(q) else 1.0, line_x))


def _place(scan: Scan) -> tuple[Float[np.ndarray, " bin"], str]:
    """Return what bins are drawn against: φ; at one φ the number of the scan, or q; or the bin."""
    rings, has_phi = not _one_ring(scan) and np.isfinite(scan.q).all(), np.isfinite(scan.phi).all()
    if has_phi and np.ptp(scan.phi) < 1 and scan.has_repeats:
        return scan.scan_number.astype(float), "scan"
    if rings and (not has_phi or np.ptp(scan.phi) < 1):
        return scan.q, _Q
    if not has_phi:
        return scan.label.astype(float), "bin"
    return scan.phi, "φ [°]"


def _groups(scan: Scan) -> tuple[Float[np.ndarray, " bin"], style.RingStyles]:
    against = _place(scan)[1]
    if scan.has_repeats and _one_ring(scan) and against != "scan":
        numbers = scan.scan_number.astype(float)
        return numbers, style.ring_styles(numbers, "scan {:.0f}")
    return scan.q, style.ring_styles(scan.q if against != _Q else np.array([np.nan]))


def _one_ring(scan: Scan) -> bool:
    return bool(np.isfinite(scan.q).all() and np.ptp(scan.q) <= SAME_RING * scan.q.mean())


PICTURES: dict[str, Callable[[FitView], draw.Page]] = {"maps": page_of_maps, "cuts": page_of_cuts}
PICTURES |= {"angles": page_of_angles, "rates": page_of_rates, "passes": page_of_passes}
PICTURES |= {"residuals": page_of_residuals, "influence": page_of_influence}


def save_all(view: FitView, folder: Path, suffix: str = "png") -> list[Path]:
    """Write every figure that a result has, as PNG and as `suffix`; return the paths of the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    result = view.result
    has_figure = {
        "maps": not view.scan.is_table,
        "rates": curves.has_rates(result) or curves.has_distribution(result),
        "angles": result.outcome is not Outcome.NO_DECAY and len(view.scan.bins) > 1,
        "influence": influential(result).any(),
    }
    paths = [folder / f"{name}.png" for name in PICTURES if has_figure.get(name, True)]
    for path in paths:
        about = {
            "Title": style.TITLES[path.stem],
            "Description": style.alternative(path.stem, view),
        }
        picture = PICTURES[path.stem](view).figure()
        write_file(path, png_of(picture, about))
        if suffix != "png":
            write_file(path.with_suffix(f".{suffix}"), vector_of(picture, suffix))
    return paths
