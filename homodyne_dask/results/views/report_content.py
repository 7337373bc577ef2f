"""The content of the report of a fit, for text and HTML: table rows and sentences."""

import math
from math import isfinite
from typing import Any

import numpy as np
import xarray

from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.results.data.finding_catalogue import Severity
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.data.known_truth import pulls, truth_of
from homodyne_dask.solver.covariance import SPECKLE
from homodyne_dask.store.arrays import sigma_words
from homodyne_dask.store.rings import describe_rings
from homodyne_dask.store.scan import shown_ranges
from homodyne_dask.text import counted, with_unit

ON_PULLS = (
    "pull: (value − truth) / stderr, converted to a normal deviate, which is beyond ±2 in 5 of 100 fits "
    "for any dof"
)
MAX_MINIMA = 5
"""Most minima listed beside the best."""
_MEANING = {
    "physical": "shear enters as sinc²(½ q L cos φ ΔG), the average over the gap of a linear "
    "velocity profile",
    "homodyne": "shear enters as sinc⁴(q L cos φ ΔG / 2π), as in the packages homodyne and "
    "xpcsjax; γ̇ is about 2.22 times that of the physical convention",
}


def facts(result: FitResult) -> list[tuple[str, str]]:
    """Return (name, text) of each fact about the fit and its data."""
    config, inputs, timings = result.config, result.provenance.inputs, result.run.timings
    gap = config.get("gap_angstrom")
    compiled = ", ".join(
        f"{name} compiled {counted(times, 'time')}"
        for name, times in result.run.compilations.items()
        if times
    )
    first, stop = inputs["frames"]
    begin, end = inputs["seconds"]
    others = [f"{name} {number}" for name, number in result.provenance.versions.items()]
    return [
        *_cost(result),
        (
            datum(result),
            f"{numbers.format_count(_measured(result))}, each counted once, in {_bins(result)}",
        ),
        *([("independent", _independent(result))] if _independent(result) else []),
        ("excluded", _excluded(result)),
        ("passes", _passes(result)),
        *(
            [("starts", _minima(result))]
            if config.get("starts") and result.diagnosis.minima
            else []
        ),
        ("time", ", ".join(f"{name} {numbers.format_seconds(t)}" for name, t in timings.items())),
        ("kernels", compiled or "none compiled"),
        *(
            [("computed on", f"{on['on']} ({on['why']})")]
            if (on := config.get("computed_on"))
            else []
        ),
        ("convention", f"{config['convention']}: {_meaning(result)}"),
        *([("gap", f"{gap / 1e4:g} um")] if gap is not None else []),
        *([("models", _comparison(result))] if result.diagnosis.comparison else []),
        *([("options", _changed(config))] if config.get("changed") else []),
        ("data", f"{inputs['store']} from {inputs['source_file']} ({inputs['source_format']})"),
        ("SHA-256", f"{inputs['source_sha256'][:16]}..."),
        (
            "frames",
            f"{first} to {stop - 1}, {inputs['frame_time']:g} s each; times {begin:g} to {end:g} s",
        ),
        ("σ", sigma_words(inputs["sigma_source"])),
        *(("note", note) for note in inputs["notes"]),
        ("version", ", ".join([f"homodyne-dask {result.provenance.version}", *others])),
    ]


def _comparison(result: FitResult) -> str:
    """Return χ² of the bins left out of each compared model, from the lowest, and the choice."""
    above = [(row["model"], row["above_lowest"]) for row in result.diagnosis.comparison]
    rows = [
        f"{name} {value:.3g}" if value is not None and isfinite(value) else f"{name} -"
        for name, value in above
    ]
    chosen = (
        f"{result.config['model']} was chosen by the χ² of left-out bins (differences from the lowest: "
        f"{', '.join(rows)})"
    )
    return f"no model is adequate; {chosen}" if result.misfit else chosen


def _changed(config: dict[str, Any]) -> str:
    """Return the options that differ from their defaults and are shown nowhere else in the report."""
    return "; ".join(f"{name} {_option_value(config[name])}" for name in config["changed"])


def _option_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_option_value(of)}" for name, of in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_option_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bins(result: FitResult) -> str:
    rings = describe_rings(result.scaling["q"].values)
    number, _, where = rings.partition(", ")
    return counted(result.statistics.nbins, "bin") + (f" of {number} ({where})" if rings else "")


def _cost(result: FitResult) -> list[tuple[str, str]]:
    """Return χ², and the loss if there was one."""
    found = f"{result.chisqr:.8g}, reduced {result.redchi:.5f}"
    if result.statistics.mean_weight is None:
        return [("χ²", found)]
    loss, scale = (result.config[key] for key in ("loss", "loss_scale"))
    left = f"mean weight of the {datum(result)} {100 * result.statistics.mean_weight:.1f} %"
    return [
        ("loss", f"{loss} with a scale of {scale:g} σ, {left}"),
        ("χ²", f"{found}; both are computed with the loss, as is χ²/N of each bin"),
    ]


def datum(result: FitResult) -> str:
    """Return what a measurement is: a pair of frames, or the mean over a cell of age and lag."""
    cells = result.provenance.inputs.get("cells") or _of_averages(result)
    return "cells" if cells else "pairs"


def _of_averages(result: FitResult) -> bool:
    """Return whether averages over cells were fitted, weighted by speckle noise."""
    return result.config.get("weighting") == "speckle"


def _measured(result: FitResult) -> int:
    """Return the number of pairs or cells: of data without priors."""
    return result.ndata - len(result.config.get("prior") or {})


def _excluded(result: FitResult) -> str:
    """Return how many pairs of the selection, or cells of the store, were excluded, and why."""
    if _of_averages(result):
        if result.provenance.inputs.get("cells"):
            return "none: the cells are averages of the cells in the file"
        if result.config.get("averages") == "read":
            return (
                "none: the cells are averages of all pairs, which were read once because the stored "
                "averages do not match the selection"
            )
        return "none: the cells are stored averages of all pairs; no pair was read"
    if cells := result.provenance.inputs.get("cells"):
        missing = cells * result.provenance.inputs["bins"] - _measured(result)
        return f"{numbers.format_count(missing)} cells unknown or not entirely inside the selection"
    first, stop = result.provenance.inputs["frames"]
    shortest = result.config["min_lag"]
    possible = (stop - first - shortest) * (stop - first - shortest + 1) // 2
    missing = possible * result.provenance.inputs["bins"] - _measured(result)
    words = [f"{numbers.format_count(missing)} pairs masked or unknown"]
    words += [f"{counted(result.provenance.inputs['frames_masked'], 'frame')} masked"]
    if frames := result.provenance.inputs.get("frames_excluded"):
        words += [f"frames {shown_ranges(frames)} excluded"]
    words += ["the diagonal"] if shortest == 1 else [f"lags below {shortest}"]
    return ", ".join(words)


def _independent(result: FitResult) -> str:
    """Return how many bins see speckle of their own, '' where all do or it is not known."""
    inputs = result.provenance.inputs
    number = inputs.get("independent_bins", inputs["bins"])
    return (
        ""
        if number == inputs["bins"]
        else f"{number} of {inputs['bins']} bins (the bins of a Friedel pair count as one)"
    )


def _passes(result: FitResult) -> str:
    """Return the number of passes at each resolution, and what share of the data they needed."""
    words = [f"{result.passes} over {'the averages' if _of_averages(result) else 'all data'}"]
    for entry in result.run.history:
        if "level" in entry:
            compared = entry["candidates"]
            more = f", and one that compares {compared} initial values" if compared else ""
            words.append(
                f"before these, {entry['passes']} over {numbers.level_name(entry['level'])}{more}"
            )
    last = result.run.history[-1] if result.run.history else {}
    if last.get("computed", 1.0) < 1.0:
        words.append(
            f"the last pass computed {100 * last['computed']:.0f} % of the (t₁, t₂) plane and needed "
            f"{100 * last['read']:.0f} % of the chunks: elsewhere f is below 1e-16"
        )
    return "; ".join(words)


def _minima(result: FitResult) -> str:
    """Return the competing minima in which the fits of binned averages ended."""
    best = result.diagnosis.minima[0]
    total = sum(at["starts"] for at in result.diagnosis.minima)
    n = len(result.diagnosis.minima)
    words = [
        f"{total} fits to binned averages ended in {n} {'minimum' if n == 1 else 'competing minima'}"
    ]
    words.append(f"{best['starts']} in the minimum with the lowest χ²")
    for at in result.diagnosis.minima[1 : MAX_MINIMA + 1]:
        where = ", ".join(f"{name} {value:.4g}" for name, value in at["theta"].items())
        words.append(
            f"{at['starts']} where χ² is higher by {at['chisqr'] - best['chisqr']:.4g} ({where})"
        )
    if n > MAX_MINIMA + 1:
        words.append("summary.json lists all minima")
    return "; ".join(words)


def _meaning(result: FitResult) -> str:
    if "phi0" not in result.parameters["param"].values:
        return f"{result.config['model']} has no shear"
    return _MEANING[result.config["convention"]]


LARGEST_GAIN_SAID = 0.9
"""Errors with weighting speckle over those of a fit of pairs, above which it is not worth saying."""
SMALL_RATIO, LARGE_RATIO = 0.8, 2.0
"""Errors from the scatter of bins over those of speckle, outside which it is said what that means."""
MODES_NOTE = (
    "each mode is evaluated after one Gauss–Newton step from this optimum; "
    "{}changes are in units of {}"
)
"""What AIC and BIC are and in which errors changes are go into the braces."""
CRITERIA = "AIC and BIC are differences from the lowest, corrected for correlated pairs; "
WITHOUT_CRITERIA = (
    "AIC and BIC are not given, because the model does not describe the data: they would treat its misfit "
    "as noise"
)


def report_title(result: FitResult) -> str:
    """Return what was fitted to what."""
    return f"{result.config['model']} fitted to {result.provenance.inputs['store']}"


def errors_of_changes(result: FitResult) -> str:
    """Return in which errors changes of parameters are given (`FitResult.error_used`)."""
    other = np.isfinite(result.error_used) & ~np.isfinite(result.parameters["stderr"].values)
    return "naive errors" if other.any() else "the standard errors"


def influence_title(result: FitResult) -> str:
    """Return what the sentences on influence are about."""
    table = result.diagnosis.influence
    of = "scans" if table is not None and "change_of_scan" in table else "bins"
    return f"influence of individual {of}, in units of {errors_of_changes(result)}"


def reservations(result: FitResult) -> list[tuple[str, str]]:
    """Return (severity, sentence) of the findings about a fit that the verdict does not say."""
    findings = (one for one in result.findings if one.severity is not Severity.ERROR)
    return [(one.severity.value, one.sentence) for one in findings]


def parameter_rows(result: FitResult) -> tuple[list[list[str]], tuple[str, ...]]:
    """Return the table of parameters, header first, and notes on its errors."""
    table, truth, pull = result.parameters, truth_of(result), pulls(result)
    robust, naive = (
        bool(np.isfinite(table[key].values).any()) for key in ("stderr", "stderr_naive")
    )
    head = [
        "parameter",
        "value ± stderr",
        "unit",
        *["dof"] * robust,
        "naive error",
    ]
    rows = []
    splines = coefficients(result)
    for n, name in enumerate(map(str, table["param"].values)):
        if name in splines:
            rows += _free_rate_row(result, name, splines[name], len(head))
            continue
        column = {str(key): table[key].values[n] for key in table.data_vars}
        shown = numbers.value_and_error(column["value"], column["stderr"])
        state = "fixed" if column["fixed"] else "at bound" if column["at_bound"] else ""
        dof = [f"{column['dof']:.1f}" if np.isfinite(column["stderr"]) else "-"] * robust
        naive_error = state or numbers.format_error(column["stderr_naive"])
        row = [name, shown, column["unit"], *dof, naive_error]
        if truth is not None:
            row.append(f"{truth[name]:.6g}" if name in truth else "-")
            row.append(f"{pull[name]:+.1f}" if name in pull else "-")
        rows.append(row)
    if truth is not None:
        head += ["truth", "pull"]
    notes = (
        *_priors(result),
        *_free_rates(result),
        *derived_sentences(result),
        *mean_rates(result),
        _on_errors(robust, naive, table.attrs["method"], _of_averages(result)),
        *_on_noise(result),
        *([ON_PULLS] if pull else []),
    )
    return [head, *rows], notes


def _priors(result: FitResult) -> list[str]:
    """Return a line for each prior of a parameter: 'prior: D0 = 2500 ± 300 Å²/s'."""
    units = dict(zip(*(result.parameters[key].values for key in ("param", "unit")), strict=True))
    return [
        with_unit(f"prior: {name} = {mean:g} ± {sd:g}", units[name])
        for name, (mean, sd) in (result.config.get("prior") or {}).items()
    ]


def coefficients(result: FitResult) -> dict[str, str]:
    """Return the rate of free form of each parameter that is one of its coefficients."""
    table = result.diagnosis.smoothing
    if table is None:
        return {}
    return {
        f"{rate}_{n + 1}": str(rate)
        for rate, splines in zip(table["rate"].values, table["splines"].values, strict=True)
        for n in range(int(splines))
    }


def _free_rate_row(result: FitResult, name: str, rate: str, width: int) -> list[list[str]]:
    """Return one row for all coefficients of a rate, in place of its first."""
    if name != f"{rate}_1":
        return []
    own = [one for one, of in coefficients(result).items() if of == rate]
    values = result.parameters.sel(param=own)["value"].values
    unit = str(result.parameters.sel(param=name)["unit"].values)
    shown = f"{values.min():.4g} to {values.max():.4g}"
    return [[f"{rate}(t)", shown, unit, *["-"] * (width - 3)]]


def _free_rates(result: FitResult) -> list[str]:
    """Return a line for each rate of free form, with the correlation of what the data say of it."""
    table = result.diagnosis.smoothing
    if table is None:
        return []
    keys = ("rate", "splines", "effective", "strength", "design_effect")
    return [
        f"{rate}(t): {int(splines)} splines with {effective:.1f} effective degrees of freedom and a "
        f"smoothness of {strength:.3g}, with χ² divided by {effect:.3g} to allow for correlated pairs "
        f"(design effect)"
        for rate, splines, effective, strength, effect in zip(
            *(table[key].values for key in keys), strict=True
        )
    ]


def derived_sentences(result: FitResult) -> list[str]:
    """Return a line for each quantity that follows from the parameters: 'D_SE = 1.2 ± 0.1 Å²/s (D0 / 2)'."""
    return [
        with_unit(f"{name} = {numbers.value_and_error(of.value, of.stderr)}", of.unit)
        + f" ({of.formula})"
        for name, of in result.derived.items()
    ]


def mean_rates(result: FitResult) -> list[str]:
    """Return a line for each rate at the mean age, unless it is constant: 'J = 1.2 ± 0.1 Å²/s at 15 s'."""
    age = float(np.mean(result.provenance.inputs["seconds"]))
    found = SeriesEntry("", None, result, at={"age": age}).quantities
    values = result.parameters["value"].values
    return [
        f"{name} = {of} {of.unit} at the mean age of {age:.4g} s"
        + f"; 95 % interval: {of.interval}" * bool(of.interval)
        for name, of in found.items()
        if name in RATES and isfinite(of.stderr) and of.value not in values
    ]


def _on_errors(robust: bool, naive: bool, method: str, averages: bool) -> str:
    if averages and robust:
        return (
            f"cells are weighted by the inverse of their covariance, which is computed from speckle and "
            f"counting noise, assuming Gaussian speckle; stderr is {method}, with the degrees of freedom "
            f"given in column dof; the naive error treats the covariance as known"
        )
    if robust and method == SPECKLE:
        return (
            "stderr is computed from speckle and counting noise, assuming Gaussian speckle (method: "
            "speckle), with the degrees of freedom given in column dof; the naive error assumes uncorrelated "
            "noise"
        )
    if robust:
        return (
            "stderr is cluster-robust (CR3, clustered by bin), with the degrees of freedom given in column "
            "dof; the naive error assumes uncorrelated noise"
        )
    if naive:
        return "only the naive error is known, which assumes uncorrelated noise"
    return "the errors of the parameters are not known"


def _on_noise(result: FitResult) -> list[str]:
    """Return the pixels and counts that explain the noise, and how robust errors compare with theirs."""
    noise = result.errors.noise
    if noise is None or noise["objection"].item():
        return []
    lines = []
    if np.isfinite(noise["pixels"].values).any():
        pixels, counts = (_two_digits(noise[name].values) for name in ("pixels", "mean_counts"))
        lines.append(
            f"the noise is that of {pixels} independent pixels per bin with a mean count of {counts} per "
            f"pixel and frame"
        )
    gain = noise["weighted_ratio"].values if "weighted_ratio" in noise else np.full(1, np.nan)
    if np.isfinite(gain).any() and np.nanmin(gain) < LARGEST_GAIN_SAID:
        at_most = _two_digits(gain)
        lines.append(
            f"with --weighting speckle, the upper limit on the errors would be {at_most} times the present "
            f"errors" + ", depending on the parameter" * (" to " in at_most)
        )
    if (test := result.diagnosis.hausman) is not None and not test.differs:
        lines.append(
            f"the estimates agree with those of all pairs (Hausman test, p = {test.p:.2g})"
        )
    if result.parameters.attrs["method"] != SPECKLE:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = result.parameters["stderr"].values / noise["stderr"].values
        if np.isfinite(ratio).any():
            typical = float(np.nanmedian(ratio))
            low = typical < SMALL_RATIO
            lines.append(
                f"stderr is {'only ' * low}{typical:.2g} times the error expected from speckle and counting "
                f"alone"
                + (
                    ": bins differ by more than speckle explains, because of the beam, the sample or a "
                    "wrong model"
                    if typical > LARGE_RATIO
                    else ", so it may be too small" * low
                )
            )
    return lines


def _two_digits(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    low, high = (f"{float(f'{value:.2g}'):,g}" for value in (known.min(), known.max()))
    return low if low == high else f"{low} to {high}"


def scaling_sentence(result: FitResult) -> str:
    """Return how contrast and offset were fitted and which values they have."""
    table, mode = result.scaling, result.config["scaling"]
    empty = table["ndata"].values == 0
    unknown = table["undetermined"].values | empty
    contrast = _range(table["contrast"].values[~unknown], "unknown (no decay)")
    return (
        f"{mode} scaling{_constraints(result)}: contrast {contrast}, "
        f"offset {_range(table['offset'].values[~empty])}"
    )


def _constraints(result: FitResult) -> str:
    """Return the bounds and priors of contrast and offset, or ''."""
    words = []
    for name in ("contrast", "offset"):
        if bounds := result.config.get(f"{name}_bounds"):
            words.append(f"{name} bounded between {bounds[0]:g} and {bounds[1]:g}")
        if prior := result.config.get(f"{name}_prior"):
            words.append(f"prior {name} {prior[0]:g} ± {prior[1]:g}")
    return "".join(f", {word}" for word in words)


def _range(values: np.ndarray, without: str = "unknown") -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return without
    low, high = float(known.min()), float(known.max())
    return f"{low:.5f}" if low == high else f"{low:.5f} to {high:.5f}"


def bin_rows(result: FitResult) -> list[list[str]]:
    """Return the table of bins, header first."""
    table = result.scaling
    empty = table["ndata"].values == 0
    rows = [["label", "q [1/Å]", "φ [°]", "contrast", "offset", datum(result), "χ²/N"]]
    scans = ["scan", *map(str, result.provenance.inputs.get("scans", ()))]
    for b in range(len(empty)):
        at: dict[str, Any] = {str(key): table[key].values[b] for key in table.data_vars}
        contrast = "no decay" if at["undetermined"] else _or_dash(at["contrast"], ".5f")
        rows.append(
            [
                str(table["label"].values[b]),
                _or_dash(at["q"], ".6g"),
                _or_dash(at["phi"], ".2f"),
                "-" if empty[b] else contrast,
                "-" if empty[b] else _or_dash(at["offset"], ".5f"),
                numbers.format_count(at["ndata"]),
                _or_dash(at["redchi"], ".4f"),
            ]
        )
    if len(scans) == 1:
        return rows
    return [[scan, *row] for scan, row in zip(scans, rows, strict=True)]


def influence_sentences(result: FitResult) -> tuple[str, ...]:
    """Return a sentence on the bins whose exclusion changes parameters most; none where it is unknown."""
    table = result.diagnosis.influence
    if table is None:
        return ()
    change = table["change"].values
    moved = np.isfinite(change).any(axis=0)
    if not moved.any():
        return ()
    rings, phi = describe_rings(result.scaling["q"].values), result.scaling["phi"].values
    where = [f"q {q:.6g} 1/Å, " * bool(rings) for q in result.scaling["q"].values]
    where = [f"{ring}φ {angle:.2f}°" for ring, angle in zip(where, phi, strict=True)]
    where = [
        f"label {label} ({at})" for label, at in zip(table["label"].values, where, strict=True)
    ]
    if "change_of_scan" in table:
        change, names = table["change_of_scan"].values, result.provenance.inputs["scan_names"]
        where = [f"scan {n} ({names[n - 1]})" for n in table["scan"].values]
    largest = np.nanargmax(np.abs(np.where(moved, np.nan_to_num(change), 0.0)), axis=0)
    words = [
        f"{name} changes by {change[b, p]:+.1f} without {where[b]}"
        for p, (name, b) in enumerate(zip(table["param"].values, largest, strict=True))
        if moved[p] and abs(change[b, p]) > 1
    ]
    return ("; ".join(words) or "no parameter changes by more than 1",)


def mode_notes(result: FitResult) -> tuple[str, ...]:
    """Return notes on the table of scaling modes, or why there is none."""
    if result.diagnosis.scalings is not None:
        note = MODES_NOTE.format("" if result.misfit else CRITERIA, errors_of_changes(result))
        return (note, WITHOUT_CRITERIA) if result.misfit else (note,)
    constraints = [
        f"{part}_{kind}" for part in ("contrast", "offset") for kind in ("bounds", "prior")
    ]
    if result.config.get("loss", "linear") != "linear":
        return (
            "scaling modes are not compared: under a robust loss each mode has its own outliers",
        )
    if any(result.config.get(name) is not None for name in constraints):
        return (
            "scaling modes are not compared: the bounds and priors apply only to the mode of this fit",
        )
    return ()


def mode_rows(table: xarray.Dataset) -> list[list[str]]:
    """Return the table of scaling modes, header first."""
    rows = [["scaling", "free", "χ²", "AIC", "BIC", "largest change"]]
    least = {key: table[key].values.min() for key in ("aic", "bic")}
    for n, mode in enumerate(table["mode"].values):
        at = {key: float(table[key].values[n]) for key in ("fitted", "chisqr", "aic", "bic")}
        change = table["change"].values[n]
        move = "-"
        if np.nanmax(np.abs(change), initial=0.0) >= 0.05:
            most = int(np.nanargmax(np.abs(change)))
            move = f"{table['param'].values[most]} {change[most]:+.1f}"
        row = [str(mode), f"{at['fitted']:.0f}", f"{at['chisqr']:.8g}"]
        rows.append([*row, *(_or_dash(at[key] - least[key], "+.1f") for key in least), move])
    return rows


def profile_rows(table: xarray.Dataset) -> list[list[str]]:
    """Return the points of a profile but for the optimum: value, χ² - lowest χ², and that of a parabola."""
    middle = int(table["parabola"].values.argmin())
    best = table["chisqr"].values[middle]
    return [
        [
            f"{table['value'].values[n]:.6g}",
            f"{table['chisqr'].values[n] - best:.3g}",
            f"{table['parabola'].values[n] - best:.3g}",
        ]
        for n in range(len(table["value"]))
        if n != middle
    ]


def _or_dash(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"
