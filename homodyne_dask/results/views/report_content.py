"""The report of a fit: outcome, parameters with errors, contrast and offset; then the details."""

import math
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import xarray

from homodyne_dask.document.blocks import (
    Document,
    Facts,
    Outcome,
    Picture,
    Pictures,
    Section,
    Sentences,
    Table,
)
from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.results.data.finding_catalogue import Severity
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.data.fitted_parameters import confidence_intervals
from homodyne_dask.results.data.known_truth import pulls, truth_of
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.posterior_section import posterior_section
from homodyne_dask.solver.covariance import SPECKLE
from homodyne_dask.store.arrays import sigma_words
from homodyne_dask.store.rings import describe_rings
from homodyne_dask.store.scan import shown_ranges
from homodyne_dask.text import counted, with_unit

ON_PULLS = (
    "pull: (value − truth) / stderr as a normal deviate, beyond ±2 in 5 of 100 fits for any dof"
)
MORE = "all details: `homodyne-dask show FOLDER --all`, or in Python print(result.report(all=True))"
VIEW = (
    "To see data, model and residuals down to single pairs, type `homodyne-dask view .` in the folder of "
    "this report."
)
MAX_MINIMA = 6
"""Most minima listed."""
_MEANING = {
    "physical": "shear enters as sinc²(½ q L cos φ ΔG), the average over the gap of a linear "
    "velocity profile",
    "homodyne": "shear enters as sinc⁴(q L cos φ ΔG / 2π), as in the packages homodyne and "
    "xpcsjax; γ̇ is about 2.22 times that of the physical convention",
}


def report_of(
    result: FitResult,
    pictures: Sequence[Picture] | None = None,
    of_posterior: Sequence[Picture] = (),
) -> Document:
    """Return the report of a fit; pictures: figures for a page, of the fit and of its posterior."""
    held = result.errors.posterior
    rows, notes, on_noise = parameter_rows(result)
    good = result.converged and not result.misfit
    return Document(
        report_title(result),
        [
            Section("Outcome", [Outcome(good, result.verdict, reservations(result))]),
            Section("Parameters", [Table("", rows, 3), Sentences(notes)]),
            *([] if held is None else [posterior_section(held, of_posterior)]),
            Section("Contrast and offset", [Sentences([scaling_sentence(result), _data(result)])]),
            *([] if pictures is None else [Section("Figures", [Pictures(pictures, VIEW)])]),
            Section("Bins", [Table(_on_bins(result), bin_rows(result), 0)], detail=True),
            Section("Noise", [Sentences(on_noise)], detail=True),
            Section("Influence of single bins and scaling mode", _sensitivity(result), detail=True),
            Section("Fit and data", [Facts(facts(result)), _minima(result)], detail=True),
        ],
        MORE,
    )


def intervals_of(result: FitResult | FitSeries, percent: float) -> Document:
    """Return the confidence intervals of a fit, or of each fit of a series."""
    if isinstance(result, FitResult):
        return Document("", [_intervals(result, percent, "")])
    fits = [(entry.result, f" of {entry.name}") for entry in result.entries if entry.result]
    return Document("", [_intervals(fit, percent, name) for fit, name in fits])


def _intervals(result: FitResult, percent: float, of_fit: str) -> Section:
    ends, method = (
        confidence_intervals(result.parameters, percent),
        result.parameters.attrs["method"],
    )
    dof = np.where(np.isfinite(ends["low"].values), result.parameters["dof"].values, np.nan)
    rows = [
        ["parameter", *map(str, ends["param"].values)],
        ["from", *(_or_dash(low, ".6g") for low in ends["low"].values)],
        ["to", *(_or_dash(high, ".6g") for high in ends["high"].values)],
        ["unit", *map(str, ends["unit"].values)],
        ["dof", *(_or_dash(of, ".1f") for of in dof)],
    ]
    note = f"from standard errors ({method}) and Student's t distribution for their dof"
    if not method:
        note = "no standard error is known; other errors give no interval (`homodyne-dask explain errors`)"
    table = Table(f"{percent:g} % confidence intervals{of_fit}", list(zip(*rows, strict=True)))
    return Section("Confidence intervals", [table, Sentences([note])])


def facts(result: FitResult) -> list[tuple[str, str]]:
    """Return (name, text) of each fact about the fit and its data."""
    config, inputs, gap = result.config, result.provenance.inputs, result.config.get("gap_angstrom")
    (first, stop), (begin, end) = inputs["frames"], inputs["seconds"]
    on, independent = config.get("computed_on"), inputs.get("independent_bins", inputs["bins"])
    versions = {"homodyne-dask": result.provenance.version, **result.provenance.versions}
    times = (f"{name} {numbers.format_seconds(t)}" for name, t in result.run.timings.items())
    with_loss = "" if result.statistics.mean_weight is None else "; both are computed with the loss"
    rows = [
        ("loss", _loss(result)),
        ("χ²", f"{result.chisqr:.8g}, reduced {result.redchi:.5f}{with_loss}"),
        (datum(result), f"{_measured(result)}, each counted once, in {_bins(result)}"),
        (
            "independent",
            f"{independent} of {inputs['bins']} bins (the bins of a Friedel pair count as one)"
            if independent != inputs["bins"]
            else "",
        ),
        ("excluded", _excluded(result)),
        ("passes", _passes(result)),
        ("time", ", ".join(times)),
        ("computed on", f"{on['on']} ({on['why']})" if on else ""),
        ("convention", f"{config['convention']}: {_meaning(result)}"),
        ("gap", "" if gap is None else f"{gap / 1e4:g} um"),
        ("models", _comparison(result)),
        (
            "options",
            "; ".join(f"{name} {_value(config[name])}" for name in config.get("changed", ())),
        ),
        ("data", f"{inputs['store']} from {inputs['source_file']} ({inputs['source_format']})"),
        ("SHA-256", f"{inputs['source_sha256'][:16]}..."),
        (
            "frames",
            f"{first} to {stop - 1}, {inputs['frame_time']:g} s each; times {begin:g} to {end:g} s",
        ),
        ("σ", sigma_words(inputs["sigma_source"])),
        *(("note", note) for note in inputs["notes"]),
        ("version", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    return [(name, text) for name, text in rows if text]


def _comparison(result: FitResult) -> str:
    """Return χ² of the bins left out of each compared model, from the lowest, and the choice; '' for none."""
    rows = [
        f"{row['model']} {_or_dash(math.nan if row['above_lowest'] is None else row['above_lowest'], '.3g')}"
        for row in result.diagnosis.comparison
    ]
    if not rows:
        return ""
    chosen = f"{result.config['model']} was chosen by the χ² of left-out bins"
    return f"{chosen} (differences from the lowest: {', '.join(rows)})"


def _value(value: Any) -> str:
    """Return the value of an option."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(of)}" for name, of in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bins(result: FitResult) -> str:
    rings = describe_rings(result.scaling["q"].values)
    number, _, where = rings.partition(", ")
    return counted(result.statistics.nbins, "bin") + (f" of {number} ({where})" if rings else "")


def _loss(result: FitResult) -> str:
    """Return the loss, '' for least squares."""
    weight = result.statistics.mean_weight
    if weight is None:
        return ""
    loss, scale = (result.config[key] for key in ("loss", "loss_scale"))
    return f"{loss} with a scale of {scale:g} σ, mean weight of the {datum(result)} {100 * weight:.1f} %"


def datum(result: FitResult) -> str:
    """Return what a measurement is: a pair of frames, or the mean over a cell of age and lag."""
    cells = result.provenance.inputs.get("cells") or _of_averages(result)
    return "cells" if cells else "pairs"


def _of_averages(result: FitResult) -> bool:
    """Return whether averages over cells were fitted, weighted by speckle noise."""
    return result.config.get("weighting") == "speckle"


def _count(result: FitResult) -> int:
    """Return the number of pairs or cells: of data without priors."""
    return result.ndata - len(result.config.get("prior") or {})


def _measured(result: FitResult) -> str:
    return numbers.format_count(_count(result))


def _excluded(result: FitResult) -> str:
    """Return how many pairs of the selection, or cells of the store, were excluded, and why."""
    inputs, shortest = result.provenance.inputs, result.config["min_lag"]
    cells = inputs.get("cells")
    if _of_averages(result):
        read = result.config.get("averages") == "read"
        how = "the pairs were read once, as the stored averages do not match the selection"
        pairs = f"all pairs; {how if read else 'no pair was read'}"
        return f"none: the cells are averages of {'the cells in the file' if cells else pairs}"
    if cells:
        missing = numbers.format_count(cells * inputs["bins"] - _count(result))
        return f"{missing} cells unknown or not entirely inside the selection"
    first, stop = inputs["frames"]
    possible = (stop - first - shortest) * (stop - first - shortest + 1) // 2
    missing = numbers.format_count(possible * inputs["bins"] - _count(result))
    words = [
        f"{missing} pairs masked or unknown",
        f"{counted(inputs['frames_masked'], 'frame')} masked",
    ]
    if frames := inputs.get("frames_excluded"):
        words.append(f"frames {shown_ranges(frames)} excluded")
    return ", ".join([*words, "the diagonal" if shortest == 1 else f"lags below {shortest}"])


def _passes(result: FitResult) -> str:
    """Return the number of passes at each resolution, and what share of the data the last one needed."""
    history = result.run.history
    words = [f"{result.passes} over {'the averages' if _of_averages(result) else 'all data'}"]
    levels = [entry for entry in history if "level" in entry]
    words += [
        f"before these, {at['passes']} over {numbers.level_name(at['level'])}" for at in levels
    ]
    if history and history[-1].get("computed", 1.0) < 1.0:
        computed, read = (100 * history[-1][key] for key in ("computed", "read"))
        words.append(
            f"the last pass computed {computed:.0f} % of the (t₁, t₂) plane and needed {read:.0f} % of the "
            f"chunks: elsewhere f is below 1e-16"
        )
    return "; ".join(words)


def _minima(result: FitResult) -> Table:
    """Return the competing minima in which the fits to binned averages ended, from the lowest."""
    minima = result.diagnosis.minima
    if not (minima and result.config.get("starts")):
        return Table("", [])
    rows = [["fits", "χ² − lowest χ²", *minima[0]["theta"]]]
    for at in minima[:MAX_MINIMA]:
        above = f"{at['chisqr'] - minima[0]['chisqr']:.4g}"
        rows.append([str(at["starts"]), above, *(f"{value:.4g}" for value in at["theta"].values())])
    more = f"; summary.json lists all {len(minima)}" * (len(minima) > MAX_MINIMA)
    return Table(f"Minima in which fits to binned averages ended{more}", rows, 0)


def _meaning(result: FitResult) -> str:
    if "phi0" not in result.parameters["param"].values:
        return f"{result.config['model']} has no shear"
    return _MEANING[result.config["convention"]]


LARGEST_GAIN_SAID = 0.9
"""Errors with weighting speckle over those of a fit of pairs, above which it is not worth saying."""
SMALL_RATIO, LARGE_RATIO = 0.8, 2.0
"""Errors from the scatter of bins over those of speckle, outside which it is said what that means."""
_ON_MODES = (
    "each mode is evaluated after one Gauss–Newton step from this optimum; AIC and BIC are differences from "
    "the lowest, corrected for correlated pairs, and absent where the model does not describe the data; "
    "changes are in units of {}"
)


def report_title(result: FitResult) -> str:
    """Return what was fitted to what."""
    return f"{result.config['model']} fitted to {result.provenance.inputs['store']}"


def errors_of_changes(result: FitResult) -> str:
    """Return in which errors changes of parameters are given (`FitResult.error_used`)."""
    other = np.isfinite(result.error_used) & ~np.isfinite(result.parameters["stderr"].values)
    return "naive errors" if other.any() else "the standard errors"


def reservations(result: FitResult) -> list[tuple[str, str]]:
    """Return (severity, sentence) of the findings about a fit that the verdict does not say."""
    findings = (one for one in result.findings if one.severity is not Severity.ERROR)
    return [(one.severity.value, one.sentence) for one in findings]


def parameter_rows(result: FitResult) -> tuple[list[list[str]], list[str], list[str]]:
    """Return the table of parameters, header first, notes on it, and what is known of the noise."""
    table, truth, pull = result.parameters, truth_of(result), pulls(result)
    robust = bool(np.isfinite(table["stderr"].values).any())
    head = ["parameter", "value ± stderr", "unit", *["dof"] * robust, "naive error"]
    free = _coefficients(result)
    rows = [_free_rate_row(result, rate, own, len(head)) for rate, own in free.items()]
    coefficients = [name for own in free.values() for name in own]
    for n, name in enumerate(map(str, table["param"].values)):
        if name in coefficients:
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
    noise, caution = _on_noise(result)
    notes = [
        *_priors(result),
        *_free_rates(result),
        *derived_sentences(result),
        *mean_rates(result),
        _on_errors(result, robust),
        *caution,
        *([ON_PULLS] if pull else []),
    ]
    return [head, *rows], notes, noise


def _priors(result: FitResult) -> list[str]:
    """Return a line for each prior of a parameter: 'prior: D0 = 2500 ± 300 Å²/s'."""
    units = dict(zip(*(result.parameters[key].values for key in ("param", "unit")), strict=True))
    return [
        with_unit(f"prior: {name} = {mean:g} ± {sd:g}", units[name])
        for name, (mean, sd) in (result.config.get("prior") or {}).items()
    ]


def _coefficients(result: FitResult) -> dict[str, list[str]]:
    """Return the parameters that are the coefficients of each rate of free form."""
    table = result.diagnosis.smoothing
    if table is None:
        return {}
    sizes = zip(table["rate"].values, table["splines"].values, strict=True)
    return {str(rate): [f"{rate}_{n + 1}" for n in range(int(splines))] for rate, splines in sizes}


def _free_rate_row(result: FitResult, rate: str, own: list[str], width: int) -> list[str]:
    """Return one row for all coefficients of a rate."""
    values = result.parameters.sel(param=own)["value"].values
    unit = str(result.parameters.sel(param=own[0])["unit"].values)
    shown = f"{values.min():.4g} to {values.max():.4g}"
    return [f"{rate}(t)", shown, unit, *["-"] * (width - 3)]


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


def _on_errors(result: FitResult, robust: bool) -> str:
    """Return how the standard errors are computed, and what the naive ones assume."""
    if not robust:
        if np.isfinite(result.parameters["stderr_naive"].values).any():
            return "only the naive error is known, which assumes uncorrelated noise"
        return "the errors of the parameters are not known"
    how, assumption = "cluster-robust (CR3, clustered by bin)", "assumes uncorrelated noise"
    if result.parameters.attrs["method"] == SPECKLE:
        how = (
            "computed from speckle and counting noise, assuming Gaussian speckle (method: speckle)"
        )
    weights = ""
    if _of_averages(result):
        weights = "cells are weighted by the inverse of their covariance; "
        assumption = "treats this covariance as known"
    return (
        f"{weights}stderr is {how}, with the degrees of freedom given in column dof; the naive error "
        f"{assumption}"
    )


def _on_noise(result: FitResult) -> tuple[list[str], list[str]]:
    """Return the pixels and counts that explain the noise, and why robust errors may be wrong."""
    noise, test = result.errors.noise, result.diagnosis.hausman
    if noise is None or noise["objection"].item():
        return [], []
    lines = []
    if np.isfinite(noise["pixels"].values).any():
        pixels, counts = (_two_digits(noise[name].values) for name in ("pixels", "mean_counts"))
        lines.append(
            f"the noise is that of {pixels} independent pixels per bin with a mean count of {counts} per "
            f"pixel and frame"
        )
    gain = noise["weighted_ratio"].values if "weighted_ratio" in noise else np.full(1, np.nan)
    if np.isfinite(gain).any() and np.nanmin(gain) < LARGEST_GAIN_SAID:
        lines.append(
            f"with --weighting speckle, errors would be at most {_two_digits(gain)} times the present ones"
        )
    if test is not None and not test.differs:
        lines.append(
            f"the estimates agree with those of all pairs (Hausman test, p = {test.p:.2g})"
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = result.parameters["stderr"].values / noise["stderr"].values
    if result.parameters.attrs["method"] == SPECKLE or not np.isfinite(ratio).any():
        return lines, []
    typical = float(np.nanmedian(ratio))
    words = f"stderr is {typical:.2g} times the error expected from speckle and counting alone"
    if typical > LARGE_RATIO:
        return lines, [f"{words}: bins differ, because of the beam, the sample or a wrong model"]
    if typical < SMALL_RATIO:
        return lines, [f"{words}, so it may be too small"]
    return [*lines, words], []


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


def _data(result: FitResult) -> str:
    number = f"{_measured(result)} {datum(result)}"
    return f"reduced χ² {result.redchi:.5g} for {number} in {_bins(result)}"


def _on_bins(result: FitResult) -> str:
    return f"Contrast, offset, {datum(result)} and reduced χ² of each bin"


def bin_rows(result: FitResult) -> list[tuple[str, ...]]:
    """Return the table of bins, header first."""
    table, scans = result.scaling, result.provenance.inputs.get("scans")
    empty, unknown = table["ndata"].values == 0, table["undetermined"].values
    contrast = [
        _or_dash(value, ".5f") for value in np.where(empty, np.nan, table["contrast"].values)
    ]
    columns = [
        *([] if scans is None else [["scan", *map(str, scans)]]),
        ["label", *map(str, table["label"].values)],
        ["q [1/Å]", *(_or_dash(value, ".6g") for value in table["q"].values)],
        ["φ [°]", *(_or_dash(value, ".2f") for value in table["phi"].values)],
        ["contrast", *np.where(unknown & ~empty, "no decay", contrast).tolist()],
        ["offset", *(_or_dash(v, ".5f") for v in np.where(empty, np.nan, table["offset"].values))],
        [datum(result), *map(numbers.format_count, table["ndata"].values)],
        ["χ²/N", *(_or_dash(value, ".4f") for value in table["redchi"].values)],
    ]
    return list(zip(*columns, strict=True))


def influence_sentences(result: FitResult) -> tuple[str, ...]:
    """Return a sentence on the bins whose exclusion changes parameters most; none where it is unknown."""
    table = result.diagnosis.influence
    if table is None:
        return ()
    change = table["change"].values
    moved = np.isfinite(change).any(axis=0)
    if not moved.any():
        return ()
    rings, bins = describe_rings(result.scaling["q"].values), result.scaling
    where = [
        f"label {label} ({f'q {q:.6g} 1/Å, ' * bool(rings)}φ {phi:.2f}°)"
        for label, q, phi in zip(
            table["label"].values, bins["q"].values, bins["phi"].values, strict=True
        )
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


def _sensitivity(result: FitResult) -> list[Sentences | Table]:
    """Return the influence of single bins, the scaling modes and the profiles."""
    table, modes = result.diagnosis.influence, result.diagnosis.scalings
    of = "scans" if table is not None and "change_of_scan" in table else "bins"
    title = f"influence of individual {of}, in units of {errors_of_changes(result)}"
    head = ["value", "χ² − lowest χ²", "of a parabola"]
    return [
        Sentences([f"{title}: {sentence}" for sentence in influence_sentences(result)]),
        *([] if modes is None else [Table("Scaling modes", mode_rows(modes))]),
        Sentences(_on_modes(result)),
        *(
            Table(f"Profile of {name}", [head, *profile_rows(points)], 0)
            for name, points in result.errors.profiles.items()
        ),
    ]


def _on_modes(result: FitResult) -> list[str]:
    """Return a note on the table of scaling modes, or why there is none."""
    if result.diagnosis.scalings is not None:
        return [_ON_MODES.format(errors_of_changes(result))]
    if result.config.get("loss", "linear") != "linear":
        return [
            "scaling modes are not compared: under a robust loss each mode has its own outliers"
        ]
    limits = (f"{part}_{by}" for part in ("contrast", "offset") for by in ("bounds", "prior"))
    if any(result.config.get(name) is not None for name in limits):
        return [
            "scaling modes are not compared: the bounds and priors apply only to the mode of this fit"
        ]
    return []


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
