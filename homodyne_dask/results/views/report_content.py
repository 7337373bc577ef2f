"""The report of a fit: outcome, parameters with errors, contrast and offset; then the details."""

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
from homodyne_dask.results.data.fit_rows import quantities_of
from homodyne_dask.results.data.known_truth import pulls, truth_of
from homodyne_dask.results.data.number_format import or_dash
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.posterior_section import posterior_section
from homodyne_dask.solver.covariance import CLUSTER_ROBUST, SPECKLE
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
    good = result.converged and not result.misfit
    notes = [
        *_priors(result),
        *_free_rates(result),
        *derived_sentences(result),
        *mean_rates(result),
        _on_errors(result),
        *([ON_PULLS] if pulls(result) else []),
    ]
    return Document(
        report_title(result),
        [
            Section("Outcome", [Outcome(good, result.verdict, reservations(result))]),
            Section("Parameters", [Table("", parameter_rows(result), 3), Sentences(notes)]),
            *([] if held is None else [posterior_section(held, of_posterior)]),
            Section("Contrast and offset", [Sentences(_on_scaling(result))]),
            *([] if pictures is None else [Section("Figures", [Pictures(pictures, VIEW)])]),
            Section("Bins", [_bins_table(result)], detail=True),
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
        result.ci(percent),
        result.parameters.attrs["method"],
    )
    dof = np.where(np.isfinite(ends["low"].values), result.parameters["dof"].values, np.nan)
    rows = [
        ["parameter", *map(str, ends["param"].values)],
        ["from", *(or_dash(low, ".6g") for low in ends["low"].values)],
        ["to", *(or_dash(high, ".6g") for high in ends["high"].values)],
        ["unit", *map(str, ends["unit"].values)],
        ["dof", *(or_dash(of, ".1f") for of in dof)],
    ]
    note = f"from standard errors ({method}) and Student's t distribution for their dof"
    if not method:
        note = "no standard error is known; other errors give no interval (`homodyne-dask explain errors`)"
    table = Table(f"{percent:g} % confidence intervals{of_fit}", list(zip(*rows, strict=True)))
    return Section("Confidence intervals", [table, Sentences([note])])


def facts(result: FitResult) -> list[tuple[str, str]]:
    """Return (name, text) of each fact about the fit, its noise and its data."""
    config, inputs = result.config, result.provenance.inputs
    (first, stop), (begin, end) = inputs["frames"], inputs["seconds"]
    independent, bins = inputs["independent_bins"], inputs["bins"]
    on, gap, history = config.get("computed_on"), config["gap_angstrom"], result.run.history
    levels = (
        f", {at['passes']} over {numbers.level_name(at['level'])}"
        for at in history
        if "level" in at
    )
    read = 100 * history[-1].get("read", 1.0) if history else 100
    times = (f"{name} {numbers.format_seconds(t)}" for name, t in result.run.timings.items())
    changed = (f"{name} {_value(config[name])}" for name in config["changed"])
    versions = {"homodyne-dask": result.provenance.version, **result.provenance.versions}
    weight, loss = result.statistics.mean_weight, ""
    if weight is not None:  # of least squares there is none
        scale = f"{config['loss_scale']:g} σ"
        loss = f"{config['loss']}, scale {scale}, mean weight {100 * weight:.1f} %"
    meaning = _MEANING[config["convention"]]
    if "phi0" not in result.parameters["param"].values:
        meaning = f"{config['model']} has no shear"
    rows = [
        ("χ²", f"{result.chisqr:.8g}, reduced {result.redchi:.5f}"),
        ("loss", loss),
        (datum(result), f"{_measured(result)}, each counted once, in {_bins(result)}"),
        ("independent", f"{independent} of {bins} bins" if independent != bins else ""),
        ("excluded", _excluded(result)),
        *_noise_facts(result),
        ("passes", f"{result.passes}{''.join(levels)}"),
        ("chunks read", f"{read:.0f} %: elsewhere f is below 1e-16" if read < 100 else ""),
        ("time", ", ".join(times)),
        ("computed on", f"{on['on']} ({on['why']})" if on else ""),
        ("convention", f"{config['convention']}: {meaning}"),
        ("gap", "" if gap is None else f"{gap / 1e4:g} um"),
        ("models", _comparison(result)),
        ("options", "; ".join(changed)),
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
    """Return the score of each compared model; '' for none."""
    words = ", ".join(
        f"{row['name']} {numbers.value_and_error(row['worse_by'] or 0.0, row['stderr'] or 0.0)}"
        for row in result.diagnosis.comparison
        if row["score"] is not None and isfinite(row["score"])
    )
    return f"chosen by left-out bins; score below the best: {words}" if words else ""


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


def datum(result: FitResult) -> str:
    """Return what a measurement is: a pair of frames, or the mean over a cell of age and lag."""
    averaged = result.provenance.inputs.get("cells") or result.config["weighting"] == "speckle"
    return "cells" if averaged else "pairs"


def _measured(result: FitResult) -> str:
    """Return the number of pairs or cells: of data without priors."""
    return numbers.format_count(result.ndata - len(result.config["prior"] or {}))


def _excluded(result: FitResult) -> str:
    """Return how many pairs of the selection were excluded, and why; '' where cells were fitted."""
    inputs, shortest = result.provenance.inputs, result.config["min_lag"]
    if datum(result) == "cells":
        return ""
    first, stop = inputs["frames"]
    possible = (stop - first - shortest) * (stop - first - shortest + 1) // 2 * inputs["bins"]
    missing = possible - result.ndata + len(result.config["prior"] or {})
    words = [
        f"{numbers.format_count(missing)} pairs masked or unknown",
        f"{counted(inputs['frames_masked'], 'frame')} masked",
        f"frames {shown_ranges(inputs['frames_excluded'])}" if inputs["frames_excluded"] else "",
        "the diagonal" if shortest == 1 else f"lags below {shortest}",
    ]
    return ", ".join(filter(None, words))


def _noise_facts(result: FitResult) -> list[tuple[str, str]]:
    """Return what is known of speckle and counting noise, and the errors beside those of this noise."""
    noise, test = result.errors.noise, result.diagnosis.hausman
    if noise is None or noise["objection"].item():
        return []
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = result.parameters["stderr"].values / noise["stderr"].values
    known = np.isfinite(ratio).any() and result.parameters.attrs["method"] != SPECKLE
    return [
        ("pixels", _known(noise["pixels"].values, ",.0f", "independent ones per bin")),
        ("counts", _known(noise["mean_counts"].values, ".2g", "per pixel and frame")),
        ("stderr", f"{np.nanmedian(ratio):.2g} times that of this noise alone" if known else ""),
        (
            "weighting",
            _known(noise["weighted_ratio"].values, ".2g", "times the errors with speckle"),
        ),
        ("Hausman test", "" if test is None else f"against all pairs: p = {test.p:.2g}"),
    ]


def _known(values: np.ndarray, form: str, words: str) -> str:
    return f"{numbers.format_range(values, form)} {words}" if np.isfinite(values).any() else ""


def _minima(result: FitResult) -> Table:
    """Return the competing minima in which the fits to binned averages ended, from the lowest."""
    minima = result.diagnosis.minima
    if not (minima and result.config["starts"]):
        return Table("", [])
    rows = [["fits", "χ² − lowest χ²", *minima[0]["theta"]]]
    for at in minima[:MAX_MINIMA]:
        above = f"{at['chisqr'] - minima[0]['chisqr']:.4g}"
        rows.append([str(at["starts"]), above, *(f"{value:.4g}" for value in at["theta"].values())])
    more = f"; summary.json lists all {len(minima)}" * (len(minima) > MAX_MINIMA)
    return Table(f"Minima in which fits to binned averages ended{more}", rows, 0)


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


def parameter_rows(result: FitResult) -> list[list[str]]:
    """Return the table of parameters, header first."""
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
    return [head + ["truth", "pull"] * (truth is not None), *rows]


def _priors(result: FitResult) -> list[str]:
    """Return a line for each prior of a parameter: 'prior: D0 = 2500 ± 300 Å²/s'."""
    units = dict(zip(*(result.parameters[key].values for key in ("param", "unit")), strict=True))
    return [
        with_unit(f"prior: {name} = {mean:g} ± {sd:g}", units[name])
        for name, (mean, sd) in (result.config["prior"] or {}).items()
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
        f"{rate}(t): {int(splines)} splines with {effective:.1f} effective degrees of freedom, smoothness "
        f"{strength:.3g}, design effect {effect:.3g}"
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
    found = quantities_of(result, age)
    values = result.parameters["value"].values
    return [
        f"{name} = {of} {of.unit} at the mean age of {age:.4g} s"
        + f"; 95 % interval: {of.interval}" * bool(of.interval)
        for name, of in found.items()
        if name in RATES and isfinite(of.stderr) and of.value not in values
    ]


def _on_errors(result: FitResult) -> str:
    """Return how the standard errors are computed, and what the naive ones assume."""
    how = {
        SPECKLE: "from speckle and counting noise, assuming Gaussian speckle (method: speckle)",
        CLUSTER_ROBUST: "cluster-robust (CR3, clustered by bin)",
        "": "unknown",
    }[result.parameters.attrs["method"]]
    averaged = result.config["weighting"] == "speckle"
    naive = "the weights are the covariance" if averaged else "noise is uncorrelated"
    return f"stderr: {how}; naive error: as if {naive}"


def _on_scaling(result: FitResult) -> list[str]:
    """Return how contrast and offset were fitted, which values they have, and how large the residuals are."""
    table = result.scaling
    empty = table["ndata"].values == 0
    contrast = table["contrast"].values[~(table["undetermined"].values | empty)]
    contrast = numbers.format_range(contrast, ".5f")
    offset = numbers.format_range(table["offset"].values[~empty], ".5f")
    number = f"{_measured(result)} {datum(result)}"
    return [
        f"{result.config['scaling']} scaling: contrast {contrast}, offset {offset}",
        f"reduced χ² {result.redchi:.5g} for {number} in {_bins(result)}",
    ]


def _bins_table(result: FitResult) -> Table:
    """Return a row for each bin."""
    table, scans = result.scaling, result.provenance.inputs.get("scans")
    empty, unknown = table["ndata"].values == 0, table["undetermined"].values
    contrast = [
        or_dash(value, ".5f") for value in np.where(empty, np.nan, table["contrast"].values)
    ]
    columns = [
        *([] if scans is None else [["scan", *map(str, scans)]]),
        ["label", *map(str, table["label"].values)],
        ["q [1/Å]", *(or_dash(value, ".6g") for value in table["q"].values)],
        ["φ [°]", *(or_dash(value, ".2f") for value in table["phi"].values)],
        ["contrast", *np.where(unknown & ~empty, "no decay", contrast).tolist()],
        ["offset", *(or_dash(v, ".5f") for v in np.where(empty, np.nan, table["offset"].values))],
        [datum(result), *map(numbers.format_count, table["ndata"].values)],
        ["χ²/N", *(or_dash(value, ".4f") for value in table["redchi"].values)],
    ]
    caption = f"Contrast, offset, {datum(result)} and reduced χ² of each bin"
    return Table(caption, list(zip(*columns, strict=True)), 0)


def influence_rows(result: FitResult) -> list[list[str]]:
    """Return, header first, by how many errors each parameter changes most without one bin, and which."""
    table, rows = result.diagnosis.influence, [["parameter", "largest change", "without"]]
    if table is None:
        return rows
    bins, change = (
        zip(table["label"].values, result.scaling["phi"].values, strict=True),
        table["change"].values,
    )
    where = [f"bin {label} (φ {phi:.2f}°)" for label, phi in bins]
    if "change_of_scan" in table:
        change, names = table["change_of_scan"].values, result.provenance.inputs["scan_names"]
        where = [f"scan {n} ({names[n - 1]})" for n in table["scan"].values]
    for name, of in zip(map(str, table["param"].values), change.T, strict=True):
        if np.isfinite(of).any():
            most = int(np.nanargmax(np.abs(of)))
            rows.append([name, f"{of[most]:+.1f}", where[most]])
    return rows


def _sensitivity(result: FitResult) -> list[Sentences | Table]:
    """Return the influence of single bins, the scaling modes and the profiles."""
    modes, unit = result.diagnosis.scalings, errors_of_changes(result)
    head = ["value", "χ² − lowest χ²", "of a parabola"]
    return [
        Table(f"Influence of individual bins, in units of {unit}", influence_rows(result)),
        *([] if modes is None else [Table("Scaling modes", mode_rows(modes))]),
        Sentences([] if modes is None else [_ON_MODES.format(unit)]),
        *(
            Table(f"Profile of {name}", [head, *profile_rows(points)], 0)
            for name, points in result.errors.profiles.items()
        ),
    ]


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
        rows.append([*row, *(or_dash(at[key] - least[key], "+.1f") for key in least), move])
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
