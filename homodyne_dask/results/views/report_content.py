"""The report of a fit: outcome, parameters with errors, contrast and offset; then the details."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import xarray

from homodyne_dask.document.blocks import (
    Document,
    Facts,
    Figures,
    Picture,
    Section,
    Sentences,
    Table,
    Verdict,
)
from homodyne_dask.errors import PackageError
from homodyne_dask.models import MODELS
from homodyne_dask.models.rate_forms import LOG_DENSITY, RATES
from homodyne_dask.plugins import application
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.derived_quantities import (
    coefficients_of,
    derived_quantities,
    fitted_quantities,
    shown_names,
)
from homodyne_dask.results.data.findings import OF_MISFIT, Severity
from homodyne_dask.results.data.fit_result import FitValues, plain_rows
from homodyne_dask.results.data.fitted_parameters import pulls, truth_of
from homodyne_dask.results.data.numbers_and_intervals import or_dash
from homodyne_dask.results.data.rate_curves import resolution_sentences
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.solver.covariance import CLUSTER_ROBUST, SPECKLE
from homodyne_dask.store.arrays import sigma_words
from homodyne_dask.store.rings_and_clusters import describe_rings
from homodyne_dask.store.selection import datum_of
from homodyne_dask.text import counted, shown_ranges, with_unit

ON_PULLS = (
    "pull: (value − truth) / stderr as a normal deviate, beyond ±2 in 5 of 100 fits for any dof"
)
MORE = "all details: `homodyne-dask show FOLDER --all`, or in Python print(result.report(all=True))"
VIEW = (
    "To see data, model and residuals down to single pairs, type `homodyne-dask view .` in the folder of "
    "this report."
)
MAX_MINIMA = 6
_MEANING = {
    "physical": "shear enters as sinc²(½ q L cos φ ΔG), the average over the gap of a linear "
    "velocity profile",
    "homodyne": "shear enters as sinc⁴(q L cos φ ΔG / 2π), as in the packages homodyne and "
    "xpcsjax; γ̇ is about 2.22 times that of the physical convention",
}
_HOW = {
    SPECKLE: "from speckle and counting noise, assuming Gaussian speckle (method: speckle)",
    CLUSTER_ROBUST: "cluster-robust (CR3, clustered by bin)",
    "": "unknown",
}
"""How standard errors are computed."""


def report_of(
    result: FitValues,
    pictures: Sequence[Picture] | None = None,
    of_posterior: Sequence[Picture] = (),
) -> Document:
    """Return the report of a fit; pictures: figures for a page, of the fit and of its posterior."""
    posterior, inputs = result.errors.posterior, result.provenance.inputs
    # the verdict has those of severity error
    findings = [finding for finding in result.findings if finding.severity is not Severity.ERROR]
    lesser_findings = [(finding.severity.value, finding.sentence) for finding in findings]
    return Document(
        f"{result.config['model']} fitted to {inputs['store']}",
        [
            Section("Outcome", [Verdict(result.success, result.verdict, lesser_findings)]),
            Section("Parameters", [Table("", _parameters(result), 3), _on_parameters(result)]),
            *([] if posterior is None else [_posterior_section(posterior, of_posterior)]),
            Section("Contrast and offset", [_on_scaling(result)]),
            *([] if pictures is None else [Section("Figures", [Figures(pictures, VIEW)])]),
            Section("Bins", [_bins_table(result)], detail=True),
            Section("Influence of single bins and scaling mode", _sensitivity(result), detail=True),
            Section("Fit and data", [Facts(facts(result)), _minima(result)], detail=True),
        ],
        MORE,
    )


def _posterior_section(plain: dict[str, Any], pictures: Sequence[Picture]) -> Section:
    try:
        section = application("posterior_section", "the section on the posterior")
    except PackageError as e:
        return Section("Posterior", [Sentences([str(e)])])
    return section(plain, pictures)


def intervals_of(result: FitValues | SeriesValues, percent: float) -> Document:
    if isinstance(result, FitValues):
        return Document("", [_intervals(result, percent, "")])
    fits = [(entry.result, f" of {entry.name}") for entry in result.entries if entry.result]
    return Document("", [_intervals(fit, percent, name) for fit, name in fits])


def _intervals(result: FitValues, percent: float, of_fit: str) -> Section:
    method, rows = result.parameters.attrs["method"], [["parameter", "from", "to", "unit", "dof"]]
    table = result.ci(percent).reset_coords("unit").assign(dof=result.parameters["dof"])
    for name, row in plain_rows(table, "param").items():
        low, high = (or_dash(row[key], ".6g") for key in ("low", "high"))
        dof = or_dash(row["dof"] if isfinite(row["low"]) else np.nan, ".1f")
        rows.append([name, low, high, str(row["unit"]), dof])
    note = f"from standard errors ({method}) and Student's t distribution for their dof"
    if not method:
        note = "no standard error is known; other errors give no interval (`homodyne-dask explain errors`)"
    table = Table(f"{percent:g} % confidence intervals{of_fit}", rows)
    return Section("Confidence intervals", [table, Sentences([note])])


def _parameters(result: FitValues) -> list[list[str]]:
    """Return the table of parameters; one row for all coefficients of a rate, which lies between them."""
    table, truth, pull = result.parameters, truth_of(result), pulls(result)
    robust = bool(np.isfinite(table["stderr"].values).any())
    head = ["parameter", "value ± stderr", "unit", *["dof"] * robust, "naive error"]
    rows, parameters, quantities = [], plain_rows(table, "param"), fitted_quantities(result)
    for rate, spline in _free_rates(result).items():
        coefficients = [parameters.pop(f"{rate}_{n + 1}") for n in range(int(spline["splines"]))]
        values = [row["value"] for row in coefficients if isfinite(row["value"])] or [np.nan]
        spread = " to ".join(or_dash(end(values), ".4g") for end in (min, max))
        row = [f"{len(coefficients)} coefficients of {rate}", spread, coefficients[0]["unit"]]
        rows.append([*row, *["-"] * (len(head) - 3)])
    for name, columns in parameters.items():
        quantity = quantities[name]
        dof = [f"{quantity.dof:.1f}" if isfinite(quantity.stderr) else "-"] * robust
        state = "fixed" if columns["fixed"] else "at bound" if quantity.at_bound else ""
        naive = state or numbers.format_error(quantity.stderr_naive)
        row = [name, quantity.without_bound(), quantity.unit, *dof, naive]
        if truth is not None:
            row.append(or_dash(truth.get(name, np.nan), ".6g"))
            row.append(or_dash(pull.get(name, np.nan), "+.1f"))
        rows.append(row)
    return [head + ["truth", "pull"] * (truth is not None), *rows]


def _free_rates(result: FitValues) -> dict[str, dict[str, Any]]:
    table = result.diagnosis.smoothing
    return {} if table is None else plain_rows(table, "rate")


def _on_parameters(result: FitValues) -> Sentences:
    units = {name: row["unit"] for name, row in plain_rows(result.parameters, "param").items()}
    priors = [
        with_unit(f"prior: {name} = {mean:g} ± {sd:g}", units[name])
        for name, (mean, sd) in (result.config["prior"] or {}).items()
    ]
    free = [
        f"{rate}({'ln Γ' if rate == LOG_DENSITY else 't'}): {int(spline['splines'])} splines with "
        f"{spline['effective']:.1f} effective degrees of freedom, smoothness {spline['strength']:.3g}, "
        f"design effect {spline['design_effect']:.3g}"
        for rate, spline in _free_rates(result).items()
    ]
    averaged = result.config["weighting"] == "speckle"
    naive = "the weights are the covariance" if averaged else "noise is uncorrelated"
    errors = f"stderr: {_HOW[result.parameters.attrs['method']]}; naive error: as if {naive}"
    errors += f"; {OF_MISFIT}" * result.misfit
    on_pulls = [ON_PULLS] * bool(pulls(result))
    sentences = [*derived_sentences(result), *resolution_sentences(result)]
    return Sentences([*priors, *free, *sentences, errors, *on_pulls])


def derived_sentences(result: FitValues) -> list[str]:
    """Return a line for what follows from the parameters: 'D_SE = 1.2 ± 0.1 Å²/s (D0 / 2)', and for rates."""
    derived, values = derived_quantities(result), result.parameters["optimum"].values
    return [
        with_unit(f"{name} {'= ' * (not quantity.limit)}{quantity}", quantity.unit)
        + (f" {quantity.formula}" if name in RATES else f" ({quantity.formula})")
        + f"; 95 % interval: {quantity.interval}" * bool(name in RATES and quantity.interval)
        for name in shown_names(derived, fitted_quantities(result) | derived)
        for quantity in [derived[name]]
        if quantity.limit or isfinite(quantity.stderr if name in RATES else quantity.value)
        if name not in (*RATES, "Gamma") or quantity.optimum not in values
    ]


def _on_scaling(result: FitValues) -> Sentences:
    table = result.scaling
    with_data = table["ndata"].values > 0
    decays = with_data & ~table["undetermined"].values
    contrast = numbers.format_range(table["contrast"].values[decays], ".5f")
    offset = numbers.format_range(table["offset"].values[with_data], ".5f")
    number, gap = f"{_measured(result)} {_datum(result)}", ""
    if (model := MODELS.get(result.config["model"])) and model.needs_gap:
        source = f" ({result.config['gap_from']})" if "gap_from" in result.config else ""
        gap = f"; gap {result.config['gap_angstrom'] / 1e4:g} um{source}"
    scaling = f"{result.config['scaling']} scaling: contrast {contrast}, offset {offset}"
    quality = f"reduced χ² {result.redchi:.5g} for {number} in {_bins(result)}{gap}"
    return Sentences([scaling, quality])


def _bins_table(result: FitValues) -> Table:
    table, scans = result.scaling, result.provenance.inputs.get("scans")
    empty, unknown = table["ndata"].values == 0, table["undetermined"].values

    def column(name: str, form: str, hidden: Any = False) -> list[str]:
        return [or_dash(value, form) for value in np.where(hidden, np.nan, table[name].values)]

    contrast = column("contrast", ".5f", empty)
    columns = [
        *([] if scans is None else [["scan", *map(str, scans)]]),
        ["label", *map(str, table["label"].values)],
        ["q [1/Å]", *column("q", ".6g")],
        ["φ [°]", *column("phi", ".2f")],
        ["contrast", *np.where(unknown & ~empty, "no decay", contrast).tolist()],
        ["offset", *column("offset", ".5f", empty)],
        [_datum(result), *map(numbers.format_count, table["ndata"].values)],
        ["reduced χ²", *column("redchi", ".4f")],
    ]
    caption = f"Contrast, offset, {_datum(result)} and reduced χ² of each bin"
    return Table(caption, list(zip(*columns, strict=True)), 0)


def _sensitivity(result: FitValues) -> list[Sentences | Table]:
    modes, has_error = result.diagnosis.scalings, np.isfinite(result.error_used)
    naive = (has_error & ~np.isfinite(result.parameters["stderr"].values)).any()
    unit = "naive errors" if naive else "the standard errors"
    on_modes = (
        f"each mode is evaluated after one Gauss–Newton step from this optimum; AIC and BIC are differences "
        f"from the lowest, corrected for correlated pairs, and absent where the model does not describe the "
        f"data; changes are in units of {unit}"
    )
    profiles = result.errors.profiles.items()
    return [
        Table(f"Influence of individual bins, in units of {unit}", _influence(result)),
        *([] if modes is None else [Table("Scaling modes", _modes(modes)), Sentences([on_modes])]),
        *(Table(f"Profile of {name}", _profile(points), 0) for name, points in profiles),
    ]


def _influence(result: FitValues) -> list[list[str]]:
    table, rows = result.diagnosis.influence, [["parameter", "largest change", "without"]]
    if table is None:
        return rows
    coefficients = coefficients_of(result)
    bins = zip(table["label"].values, result.scaling["phi"].values, strict=True)
    change, excluded = table["change"], [f"bin {label} (φ {phi:.2f}°)" for label, phi in bins]
    if "change_of_scan" in table:
        change, names = table["change_of_scan"], result.provenance.inputs["scan_names"]
        excluded = [f"scan {n} ({names[n - 1]})" for n in table["scan"].values]
    for name, changes in zip(map(str, table["param"].values), change.values.T, strict=True):
        if np.isfinite(changes).any() and name not in coefficients:
            largest = int(np.nanargmax(np.abs(changes)))
            rows.append([name, f"{changes[largest]:+.1f}", excluded[largest]])
    return rows


def _modes(table: xarray.Dataset) -> list[list[str]]:
    rows = [["scaling", "free", "χ²", "AIC", "BIC", "largest change"]]
    lowest = {key: table[key].values.min() for key in ("aic", "bic")}
    for n, mode in enumerate(table["mode"].values):
        values, change = table.isel(mode=n), table["change"].values[n]
        move = "-"
        if np.nanmax(np.abs(change), initial=0.0) >= 0.05:
            largest = int(np.nanargmax(np.abs(change)))
            move = f"{table['param'].values[largest]} {change[largest]:+.1f}"
        row = [str(mode), f"{values['fitted'].item():.0f}", f"{values['chisqr'].item():.8g}"]
        row += [or_dash(values[key].item() - lowest[key], "+.1f") for key in lowest]
        rows.append([*row, move])
    return rows


def _profile(table: xarray.Dataset) -> list[list[str]]:
    middle = int(table["parabola"].values.argmin())
    best = table["chisqr"].values[middle]
    value = [f"{number:.6g}" for number in table["value"].values]
    rises = ([f"{chisqr - best:.3g}" for chisqr in table[k].values] for k in ("chisqr", "parabola"))
    points = [list(row) for row in zip(value, *rises, strict=True)]
    del points[middle]
    return [["value", "χ² − lowest χ²", "of a parabola"], *points]


def _minima(result: FitValues) -> Table:
    minima = result.diagnosis.minima
    if not (minima and result.config["starts"]):
        return Table("", [])
    rows = [["fits", "χ² − lowest χ²", *minima[0]["theta"]]]
    for minimum in minima[:MAX_MINIMA]:
        excess, theta = "-", (f"{value:.4g}" for value in minimum["theta"].values())
        if minimum["chisqr"] is not None:  # where all else is fixed, there is nothing to search
            excess = f"{minimum['chisqr'] - minima[0]['chisqr']:.4g}"
        rows.append([str(minimum["starts"]), excess, *theta])
    note = f"; summary.json lists all {len(minima)}" * (len(minima) > MAX_MINIMA)
    return Table(f"Minima in which fits to binned averages ended{note}", rows, 0)


def facts(result: FitValues) -> list[tuple[str, str]]:
    config, inputs = result.config, result.provenance.inputs
    (first_frame, stop), (begin, end) = inputs["frames"], inputs["seconds"]
    independent, bins = inputs["independent_bins"], inputs["bins"]
    on, history = config.get("computed_on"), result.run.history
    read = 100 * history[-1].get("read", 1.0) if history else 100
    times = (f"{name} {numbers.format_seconds(t)}" for name, t in result.run.timings.items())
    changed = (f"{name} {_value(config[name])}" for name in config["changed"])
    versions = {"homodyne-dask": result.provenance.version, **result.provenance.versions}
    meaning = _MEANING[config["convention"]]
    if "phi0" not in result.parameters["param"].values:
        meaning = f"{config['model']} has no shear"
    spacing = f"{inputs['frame_time']:g} s each; times {begin:g} to {end:g} s"
    record = "frames", f"{first_frame} to {stop - 1}, {spacing}"
    if _datum(result) == "points":
        record = "delays", f"up to {end:g} s"
    rows = [
        ("χ²", f"{result.chisqr:.8g}, reduced {result.redchi:.5f}"),
        ("loss", _loss(result)),
        (_datum(result), f"{_measured(result)}, each counted once, in {_bins(result)}"),
        ("independent", f"{independent} of {bins} bins" if independent != bins else ""),
        ("excluded", _excluded(result)),
        *_noise_facts(result),
        ("passes", _passes(result)),
        ("chunks read", f"{read:.0f} %: elsewhere f is below 1e-16" if read < 100 else ""),
        ("time", ", ".join(times)),
        ("computed on", f"{on['on']} ({on['why']})" if on else ""),
        ("convention", f"{config['convention']}: {meaning}"),
        ("models", _comparison(result)),
        ("options", "; ".join(changed)),
        ("data", f"{inputs['store']} from {inputs['source_file']} ({inputs['source_format']})"),
        ("SHA-256", f"{inputs['source_sha256'][:16]}..."),
        record,
        ("σ", sigma_words(inputs["sigma_source"])),
        *(("note", note) for note in inputs["notes"]),
        ("version", ", ".join(f"{name} {number}" for name, number in versions.items())),
    ]
    return [(name, text) for name, text in rows if text]


def _loss(result: FitValues) -> str:
    weight, config = result.statistics.mean_weight, result.config
    if weight is None:  # of least squares
        return ""
    return f"{config['loss']}, scale {config['loss_scale']:g} σ, mean weight {100 * weight:.1f} %"


def _passes(result: FitValues) -> str:
    levels = [entry for entry in result.run.history if "level" in entry]
    coarse = (f"{entry['passes']} over {numbers.level_name(entry['level'])}" for entry in levels)
    return ", ".join([str(result.passes), *coarse])


def _comparison(result: FitValues) -> str:
    words = ", ".join(
        f"{row['name']} {numbers.value_and_error(row['worse_by'] or 0.0, row['stderr'] or 0.0)}"
        for row in result.diagnosis.comparison
        if row["score"] is not None and isfinite(row["score"])
    )
    return f"chosen by comparison; score below the best: {words}" if words else ""


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bins(result: FitValues) -> str:
    number, _, rings = describe_rings(result.scaling["q"].values).partition(", ")
    return counted(result.statistics.nbins, "bin") + (f" of {number} ({rings})" if number else "")


def _datum(result: FitValues) -> str:
    """Return what is measured: a pair of frames, a mean over a cell of age and lag, or a point of g2."""
    averaged = result.provenance.inputs.get("cells") or result.config["weighting"] == "speckle"
    return "cells" if averaged else datum_of(result.provenance.inputs["sigma_source"])


def _measured(result: FitValues) -> str:
    return numbers.format_count(result.ndata - len(result.config["prior"] or {}))


def _excluded(result: FitValues) -> str:
    """Return how many pairs of the selection were excluded, and why; '' where cells were fitted."""
    inputs, shortest = result.provenance.inputs, result.config["min_lag"]
    if _datum(result) != "pairs":
        return ""
    begin, stop = inputs["frames"]
    possible = (stop - begin - shortest) * (stop - begin - shortest + 1) // 2 * inputs["bins"]
    missing = possible - result.ndata + len(result.config["prior"] or {})
    words = [
        f"{numbers.format_count(missing)} pairs masked or unknown",
        f"{counted(inputs['frames_masked'], 'frame')} masked",
        f"frames {shown_ranges(inputs['frames_excluded'])}" if inputs["frames_excluded"] else "",
        "the diagonal" if shortest == 1 else f"lags below {shortest}",
    ]
    return ", ".join(filter(None, words))


def _noise_facts(result: FitValues) -> list[tuple[str, str]]:
    noise = result.errors.noise
    if noise is None or noise["objection"].item():
        return []
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = result.parameters["stderr"].values / noise["stderr"].values
    compared = np.isfinite(ratio).any() and result.parameters.attrs["method"] != SPECKLE

    def fact(name: str, form: str, words: str) -> str:
        values = noise[name].values
        return f"{numbers.format_range(values, form)} {words}" * bool(np.isfinite(values).any())

    return [
        ("pixels", fact("pixels", ",.0f", "independent ones per bin")),
        ("counts", fact("mean_counts", ".2g", "per pixel and frame")),
        ("stderr", f"{np.nanmedian(ratio):.2g} times that of this noise alone" if compared else ""),
        ("weighting", fact("weighted_ratio", ".2g", "times the errors with speckle")),
    ]
