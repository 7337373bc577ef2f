"""Reports of several fits: a series with tests of whether its fits agree, and a comparison of models."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote

import numpy as np

from homodyne_dask.document.blocks import (
    Document,
    Figures,
    Link,
    Picture,
    Section,
    Sentences,
    Table,
    Verdict,
    table_document,
)
from homodyne_dask.models.derived_models import FROZEN_FRACTION
from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data import fit_rows
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data import series as series_data
from homodyne_dask.results.data.comparison import ComparisonValues
from homodyne_dask.results.data.derived_quantities import shown_names
from homodyne_dask.results.data.findings import CATALOGUE, OF_MISFIT, Severity
from homodyne_dask.results.data.fitted_parameters import nearest_turn
from homodyne_dask.text import counted, in_brackets, joined_with_and, some_of, with_unit

SURE, DOUBTFUL = 0.01, 0.05
"""p-values: below the first, over the number of quantities, the fits disagree; below the second the agreement
is marginal."""
SMALLEST_P = 1e-99
"""Smaller ones are not written: they may be rounded to 0."""
MOST_ROWS, MOST_SENTENCES, MOST_NAMED = 200, 20, 4
"""Fits and sentences on the page of a watcher, the newest; its table has all."""
_ERRORS = {
    "stderr": "p is computed from standard errors ({}) and their degrees of freedom",
    "stderr_naive": "p is computed from naive errors, which are too small for correlated speckle: a small p "
    "does not prove a difference",
}
_WHICH_POWER = (
    "quote this power of q (2 for diffusion): {}, and its error includes scatter; "
    "power_of_q of a single fit is a test whether it is 2, right only near 2, and q_exponent of a model "
    "holds if the form of its decay does"
)
_OVERLAP = "the windows overlap: their fits are not independent, so their agreement is not tested"
AGES_ALIKE = 0.01
"""Rates at mean ages that differ by more are not compared: rates change with age."""
_TESTED = ["quantity", "fits", "agreement", "weighted mean", "χ²", "dof", "p"]
_CORRELATED = (
    "points of one curve are correlated, so that naive errors tell neither whether the fits agree nor the "
    "power of q: fit all curves together, or two-time data"
)


def report_of_series(series: series_data.SeriesValues) -> Document:
    title, rows = series_title(series), series.entries
    return report_of_fits(title, series.names, rows, len(rows), fit_rows.PARTS, series=series)


def series_title(series: series_data.SeriesValues) -> str:
    results = [result for result in series.results if result is not None]
    if not results:
        return "no fit"
    store, *further = dict.fromkeys(result.provenance.inputs["store"] for result in results)
    stores = f"{store} and {counted(len(further), 'other store')}" if further else store
    places = series_data.WORDS.get(series.over, f"fits over {series.over}")
    both = "fits of rings and " * (series.over == "age" and "q" in series.entries[0].at)
    return f"{results[0].config['model']} fitted to {stores}: {len(series.entries)} {both}{places}"


def report_of_fits(
    title: str,
    names: Sequence[str],
    rows: Sequence[fit_rows.FitRow],
    total: int,
    prefix: str,
    folder: Path | None = None,
    pictures: Sequence[Picture] = (),
    series: series_data.SeriesValues | None = None,
    watcher: Sequence[str] = (),
) -> Document:
    """Return the report of the fits done so far, of `total` in all, and of their series when all are done.

    prefix: SCANS or PARTS. folder: of the page, from which the reports of the fits are linked. watcher:
    sentences of a watcher, whose page shows the newest fits first.
    """
    # a watcher is told of a misfit at once: the next scan can still be measured differently
    as_wanted = all(
        row.outcome_words == fit_rows.CONVERGED if watcher else row.converged for row in rows
    )
    counts, notes = fit_rows.outcome_counts(rows, total, prefix), []
    kind = "ring" if series and series.over == "q" else fit_rows.ONE_OF[prefix]
    good = bool(rows) and as_wanted and len(rows) == total
    if watcher:
        newest = list(reversed(rows))
        rows, findings = newest[:MOST_ROWS], _failures(newest)[:MOST_SENTENCES]
        notes = [f"{prefix}.csv lists all {prefix}, with all messages"]
    else:
        findings = [*_failures(rows), *_findings_of(rows, kind)]
    figures, verdict = Section("Figures", [Figures(pictures)]), Verdict(good, counts, findings)
    fits = _section_of_fits(names, rows, folder, fit_rows.ONE_OF[prefix], notes, series)
    outcome = [Sentences(watcher), verdict, Sentences(_joint_fit(series) if series else [])]
    sections = [Section("Outcome", outcome), fits]
    if series is not None:
        sections.append(Section("Agreement of the fits", _agreement(series)))
        sections.append(Section("Rates over q", _powers(series)))
    # who watches looks at the figures first; the table of many fits is long
    sections.insert(1 if watcher else len(sections), figures)
    return Document(title, sections)


def _failures(rows: Sequence[fit_rows.FitRow]) -> list[tuple[str, str]]:
    return [("failed", f"{row.name}: {row.message}") for row in rows if row.message]


def _findings_of(rows: Sequence[fit_rows.FitRow], kind: str) -> list[tuple[str, str]]:
    """Return each finding of several fits once: its severity, and which fits have it with its meaning.

    A misfit whose cause is found is said by that alone.
    """
    fits: dict[str, list[str]] = {}
    for row in rows:
        codes = list(dict.fromkeys(row.findings.at_least("warning").codes))
        causes = {*row.findings.at_least("error").codes}
        for code, following in zip_longest(codes, codes[1:]):
            if not ("next finding" in CATALOGUE[code].remedy and following in causes):
                fits.setdefault(code, []).append(row.name)
    fitted = [(row, row.result) for row in rows if row.result]
    by_chance = [row.name for row, result in fitted if len(row.findings) < len(result.findings)]
    chance = (
        f"of {len(rows)} fits, one deviates so far by chance in over 1 of 200 series: not counted"
    )
    sentences = [("note", by_chance, chance)] * bool(by_chance)
    quantities = fit_rows.quantities_in(rows)
    for code, names in fits.items():
        entry = CATALOGUE[code]
        named = {name for row in rows for said in row.findings.of(code) for name in said.about}
        about = joined_with_and([name for name in quantities if name in named][:MOST_NAMED])
        words = f"{about}{': ' * bool(about)}{entry.meaning}; {entry.remedy} ({code})"
        # a command that lists such fits has done what it was told: none of this is its error
        level = "not usable" if entry.severity is Severity.ERROR else entry.severity.value
        sentences.append((level, names, words))
    return [(level, f"{_which(names, rows, kind)}: {words}") for level, names, words in sentences]


def _which(names: Sequence[str], rows: Sequence[fit_rows.FitRow], kind: str) -> str:
    if len(names) == len(rows) > 1:
        return f"all {len(rows)} {kind}s"
    some = some_of(names, MOST_NAMED)
    return f"{len(names)} of {len(rows)} {kind}s ({some})" if len(names) > 1 else some


def _section_of_fits(
    names: Sequence[str],
    rows: Sequence[fit_rows.FitRow],
    folder: Path | None,
    kind: str,
    notes: list[str],
    series: series_data.SeriesValues | None,
) -> Section:
    constant = fit_rows.constant_quantities(rows)
    quantities = fit_rows.quantities_in(rows)
    names = [name for name in shown_names(names, quantities) if name not in constant]
    words = [row.outcome_words for row in rows]
    columns = [
        [kind, *(_linked(row, folder) for row in rows)],
        ["outcome", *(f"{'✓' if word == fit_rows.CONVERGED else '✗'} {word}" for word in words)],
        ["reduced χ²", *(numbers.or_dash(row.redchi, ".4f") for row in rows)],
        *_places(rows, series),
        *(column for name in names for column in _columns_of(name, rows, names)),
    ]
    table = Table(f"Outcome and parameters of each {kind}", list(zip(*columns, strict=True)), 2)
    return Section(f"{kind.capitalize()}s", [table, Sentences([*_on_fits(rows, constant), *notes])])


def _places(
    rows: Sequence[fit_rows.FitRow], series: series_data.SeriesValues | None
) -> Iterator[list[str]]:
    """Yield the column of a variable of the scans, and of mean ages that differ."""
    if series is not None and series.over not in series_data.UNITS:
        head = in_brackets(series.over, series.unit_of(series.over))
        yield [head, *(f"{row.at[series.over]:.6g}" for row in rows)]
    ages = [row.at.get("age", np.nan) for row in rows]
    if any("age" in row.at for row in rows) and len(set(ages)) > 1:
        yield ["mean age [s]", *(numbers.or_dash(age, ".6g") for age in ages)]


def _on_fits(rows: Sequence[fit_rows.FitRow], constant: Mapping[str, str]) -> list[str]:
    methods = fit_rows.methods_of(rows)
    methods = f" ({methods})" if methods else ""
    values = ", ".join(f"{name} = {value}" for name, value in constant.items())
    misfit = any(quantity.misfit for row in rows for quantity in row.quantities.values())
    on_errors = (
        f"± is the standard error{methods}; values without ± have no standard error, but "
        f"the report of each fit says why and lists naive errors"
    )
    return [*[f"constant: {values}"] * bool(values), on_errors, *[OF_MISFIT] * misfit]


def _columns_of(
    name: str, entries: Sequence[fit_rows.FitRow], names: Sequence[str]
) -> list[list[str]]:
    """Return the column of a quantity, in one notation, and of its intervals where a rate has any."""
    unit = next((row.quantities[name].unit for row in entries if name in row.quantities), "")
    quantities = [row.quantities.get(name, fit_rows.UNKNOWN_QUANTITY) for row in entries]
    pairs = [(abs(quantity.value), quantity.stderr) for quantity in quantities]
    largest = max((max(pair) for pair in pairs if np.isfinite(pair).all()), default=0.0)
    label = f"{_label(name, names)}{' at mean age' * (name in RATES)}"
    column = [in_brackets(label, unit), *(quantity.text(largest) for quantity in quantities)]
    intervals = [quantity.interval for quantity in quantities]
    if name not in RATES or not any(intervals):
        return [column]
    return [column, [f"95 % interval of {name}", *(interval or "-" for interval in intervals)]]


def _label(name: str, names: Sequence[str]) -> str:
    twice = {"D0": "D_SE", "J": "D"}.get(name)
    return f"{name} = 2 {twice}" if twice in names else name


def _linked(entry: fit_rows.FitRow, folder: Path | None) -> str:
    if entry.folder is None or folder is None or entry.outcome == fit_rows.FAILED:
        return entry.name
    link = Path(os.path.relpath(entry.folder, folder), "report.html").as_posix()
    return Link(entry.name, quote(os.fsencode(link)))


def shared_parameters(series: series_data.SeriesValues) -> list[str]:
    """Return the names of fitted parameters that have one value in all fits of a series."""
    if series.global_fit is None:
        return []
    table = series.global_fit.parameters
    return [n for n in table["param"].values[~table["fixed"].values].tolist() if " of " not in n]


def _joint_fit(series: series_data.SeriesValues) -> list[str]:
    joint, shared = series.global_fit, shared_parameters(series)
    if joint is None:
        return []
    place = {"age": "window", "phi": "angle"}.get(series.over, series.over)
    verb = "is" if len(shared) == 1 else "are"
    clauses = [f"{joined_with_and(joint.per_scan)} for each {place}"] * bool(joint.per_scan)
    clauses += [f"{joined_with_and(shared)} {verb} shared"] * bool(shared)
    return [
        f"one fit of all {series_data.WORDS.get(series.over, 'scans')}: {'; '.join(clauses)}; reduced χ² "
        f"{joint.redchi:.4f}",
        *map(str, joint.findings),
    ]


def _agreement(series: series_data.SeriesValues) -> list[Table | Sentences]:
    if series.overlap or series.correlated:
        return [Sentences([_OVERLAP if series.overlap else _CORRELATED])]
    if not series.agreement:
        return []
    # rates change with age, and rates in 1/s with q: a test that they do not would say nothing
    in_hertz = [n for n in series.names if series.unit(n) == "1/s" and "J" not in series.names]
    differ = in_hertz if len({entry.at.get("q") for entry in series.entries}) > 1 else []
    ages = [entry.at["age"] for entry in series.entries if "age" in entry.at]
    if ages and not np.allclose(ages, ages[0], rtol=AGES_ALIKE):
        differ = [*differ, *RATES]
    quantities = fit_rows.quantities_in(series.entries)
    names = [n for n in shown_names(series.agreement, quantities) if n not in differ]
    # Bonferroni's bound; D_SE is D0 again, and no second test
    sure = SURE / max(len(shown_names(names, quantities, copies=False)), 1)
    rows = [[*_tested(series, name, sure), *_difference(series, name)] for name in names]
    rows.insert(0, [*_TESTED, *["difference"] * (len(series.entries) == 2)])
    table = Table("Agreement of the converged fits", rows, 3)
    return [table, _repeats(series), Sentences([*_on_agreement(series, names)])]


def _difference(series: series_data.SeriesValues, name: str) -> list[str]:
    """Return the second value of a quantity less the first, of a series of two fits alone."""
    if len(series.entries) != 2:
        return []
    first, second = (entry.quantities.get(name) for entry in series.entries)
    result = series.entries[0].result
    if first is None or second is None or result is None or np.isnan(first.value + second.value):
        return ["-"]
    difference = second.value - first.value
    difference = float(
        nearest_turn(np.array(difference), 0.0, result.config["periods"].get(name, 0.0))
    )
    text = numbers.value_and_error(difference, float(np.hypot(first.stderr, second.stderr)))
    return [with_unit(text, series.unit(name))]


def _repeats(series: series_data.SeriesValues) -> Table:
    repeats = series.repeats.items()
    quantities = fit_rows.quantities_in(series.entries)
    tests = [
        (place, fits, name)
        for place, fits in repeats
        for name in shown_names(fits.agreement, quantities)
    ]
    rows = [[place, *_tested(fits, name, SURE / len(tests))] for place, fits, name in tests]
    return Table(f"Repeats at one {series.over}", [["repeats", *_TESTED], *rows], 4)


def _on_agreement(series: series_data.SeriesValues, names: Sequence[str]) -> Iterator[str]:
    yield _ERRORS[series.errors].format(fit_rows.methods_of(series.entries))
    if (joint := series.global_fit) is not None:
        shared = "p takes the shared parameters as known"
        yield shared if joint.per_scan else "p is of each scan alone"
    if series.correlations:
        share = f"{100 * series.correlations[0]:.0f} %"
        yield f"next rings may share speckle, {share} of the variance of errors; means and p allow for it"
    compared = {name: series.agreement[name].freedom + 1 for name in names}
    if incomplete := [name for name in names if compared[name] < len(series.entries)]:
        yield (
            f"{joined_with_and(incomplete)}: fits that did not converge, or in which a parameter of the same "
            f"rate is at a bound, are not compared"
        )


def _tested(series: series_data.SeriesValues, name: str, sure: float) -> list[str]:
    test, words = series.agreement[name], ("consistent", "marginal", "inconsistent")
    if series.is_of_variable or (name == FROZEN_FRACTION and "q" in series.entries[0].at):
        words = "no change", "marginal", "changes"
    mean = with_unit(numbers.value_and_error(test.mean, test.stderr), series.unit(name))
    quoted = test.p >= sure and series.global_fit is None
    fits = f"{test.freedom + 1} of {len(series.entries)}"
    verdict = words[(test.p < DOUBTFUL) + (test.p < sure)]
    return [_label(name, series.names), fits, verdict, mean if quoted else "-", *_scatter(test)]


def _powers(series: series_data.SeriesValues) -> list[Table | Sentences]:
    over_q = series.over_q.items()
    laws = [(place, rings, *law) for place, rings in over_q for law in rings.powers_of_q.items()]
    if not laws:
        return []
    sure = SURE / len(laws)  # Bonferroni's bound
    rows = [["rate", "power of q", "agreement", "χ²", "dof", "p", "mean D"]]
    for place, rings, name, law in laws:
        age = next(row.result.mean_age for row in rings.entries if row.result is not None)
        rate = f"{name} at {age:.4g} s" if "J" in rings.names and not place else name
        head = ", ".join(filter(None, (rate, place)))
        power = numbers.value_and_error(law.exponent, law.stderr)
        if (used := law.freedom + 2) < len(rings.entries):
            power += f" ({used} of {len(rings.entries)} fits)"
        mean, verdict = "-", _verdict_on(law, sure)
        if verdict in ("as for diffusion", "-") and (D := consistent(rings, "D", sure)) is not None:
            mean = with_unit(numbers.value_and_error(D.mean, D.stderr), rings.unit("D"))
        rows.append([head, power, verdict, *_scatter(law), mean])
    shared = joined_with_and(shared_parameters(series))
    how = f"rates of rings share {shared} of this fit" if shared else "each ring is fitted alone"
    return [Table("Rates as powers of q", rows), Sentences([_WHICH_POWER.format(how)])]


def _verdict_on(law: series_data.PowerLawOfQ, sure: float) -> str:
    reach = numbers.half_width(95.0, law.dof) * law.stderr
    if not (law.freedom and np.isfinite(reach)):
        return "-" if law.freedom else "too few rings"  # any two rates are a power of q
    if law.p < sure:
        return "no power law"
    return "as for diffusion" if abs(law.exponent - 2) < reach else "not diffusion"


def consistent(
    series: series_data.SeriesValues, name: str, level: float
) -> series_data.HomogeneityTest | None:
    """Return the test of a quantity whose fits agree at a level; None where they do not, or it is unknown."""
    test = series.agreement.get(name)
    return None if test is None or test.p < level else test


def _scatter(test: series_data.HomogeneityTest | series_data.PowerLawOfQ) -> list[str]:
    if not test.freedom:
        return ["-", "0", "-"]
    p = f"{test.p:.2g}" if test.p >= SMALLEST_P else f"< {SMALLEST_P:g}"
    return [f"{test.chisqr:.3g}", f"{test.freedom:,}", p]


_OF_LEFT_OUT = (
    "score: logarithm of the predictive density of the left-out bins (larger is better); ± from its "
    "scatter over bins"
)
_ON_CRITERIA = (
    "CLIC allows for correlated pairs; the naive AIC treats pairs as independent and favours too many "
    "parameters"
)
_OF_CLIC = "score: -CLIC/2 (larger is better); ± as if the additional parameters were not needed"


def report_of_comparison(comparison: ComparisonValues) -> Document:
    rows = [["fit", "parameters", "χ²", "reduced χ²", "score", "worse by", "ΔCLIC", "ΔAIC (naive)"]]
    criteria = np.array([[fit.clic, fit.aic_naive] for fit in comparison.fits])
    criteria -= np.fmin.reduce(criteria)  # fmin: NaN of a fit without a score is no minimum
    for fit, above_lowest in zip(comparison.fits, criteria, strict=True):
        size = f"{fit.parameters}+{numbers.or_dash(fit.linear, '.0f')}"
        values = [f"{fit.chisqr:.6g}", f"{fit.redchi:.4f}", numbers.or_dash(fit.score, ".6g")]
        worse = "best" if fit.best else numbers.value_and_error(fit.worse_by, fit.stderr)
        deltas = [numbers.or_dash(value, ".4g") for value in above_lowest]
        rows.append([fit.name, size, *values, worse, *deltas])
    method, on_score = "CLIC, as there are fewer than eight independent bins", _OF_CLIC
    if comparison.by_left_out:
        method = f"leaving out each of the {comparison.bins} independent bins in turn"
        on_score = _OF_LEFT_OUT
    caption = f"{len(comparison.fits)} fits to {comparison.store}, compared by {method}"
    notes = [comparison.sentence, comparison.sentence_of_not_compared, on_score, _ON_CRITERIA]
    return table_document(caption, rows, notes=[*filter(None, notes)])
