"""Several fits as text: a series with tests of whether its fits agree, and a comparison of models."""

from collections.abc import Collection, Sequence

import numpy as np

from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.results.data.comparison import Comparison
from homodyne_dask.results.data.fit_rows import (
    SeriesEntry,
    constant_quantities,
    constants_sentence,
    methods_of,
)
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.results.data.series import FitSeries, HomogeneityTest, PowerLawOfQ
from homodyne_dask.text import (
    aligned_columns,
    html_table,
    joined_with_and,
    printed_lines,
    with_unit,
    wrapped,
)

SURE, DOUBTFUL = 0.001, 0.05
"""p-values: below the first the fits disagree, below the second the agreement is marginal."""
SMALLEST_P = 1e-99
"""Smaller ones are not written: they may be rounded to 0."""
WIDTH = 100
_WHERE = {
    "q": "at {} values of q",
    "phi": "at {} angles",
    "age": "in {} age windows",
    "scan": "in {} scans",
}
_NOT_ONE = {
    "q": "one value does not describe all q",
    "phi": "one value does not describe all angles",
    "age": "one set of parameters does not describe the whole record",
    "scan": "the scans do not repeat one measurement",
}
_EVERYWHERE = {
    "q": "at all q",
    "phi": "at all angles",
    "age": "in all windows",
    "scan": "in all scans",
}
_SOMEWHERE = {
    "q": "at {} of {} values of q",
    "phi": "at {} of {} angles",
    "age": "in {} of {} windows",
    "scan": "in {} of {} scans",
}
_ERRORS = {
    "stderr": "standard errors ({}); p accounts for the degrees of freedom of these errors",
    "stderr_naive": "naive errors, which are too small for correlated speckle: a small p does not prove a "
    "difference",
}


def series_text(series: FitSeries) -> str:
    """Return a series as text: outcome and parameters with errors of each fit, and their agreement."""
    entries = series.entries
    result = next((entry.result for entry in entries if entry.result is not None), None)
    where = _WHERE[series.over].format(len(entries))
    head = [
        "no fit" if result is None else
        f"{result.config['model']} fitted to {result.provenance.inputs['store']} {where}"
    ]  # fmt: skip
    failed = [f"{entry.name} failed: {entry.message}" for entry in entries if entry.result is None]
    head += wrapped("", (*_fitted_together(series), *failed))
    agreement = wrapped("- ", tuple(agreement_sentences(series)))
    constant = constant_quantities(series.names, [entry.quantities for entry in entries])
    same = wrapped("", tuple(filter(None, [constants_sentence(constant)])))
    # groups of fits whose columns fit in one line
    per_line = max(1, (WIDTH - 23) // max([20, *(len(entry.name) + 2 for entry in entries)]))
    groups = [entries[n : n + per_line] for n in range(0, len(entries), per_line)]
    tables = [_columns(series, some, constant) for some in groups if series.names]
    parts = [head, *tables, same, agreement]
    return "\n\n".join(printed_lines(part) for part in parts if part)


def _fitted_together(series: FitSeries) -> list[str]:
    """Return how the scans were fitted together; nothing of independent fits."""
    together = series.global_fit
    if together is None:
        return []
    names = together.parameters["param"].values[~together.parameters["fixed"].values].tolist()
    shared = [name for name in names if " of scan " not in name]
    words = f"; {joined_with_and(shared)} {'is' if len(shared) == 1 else 'are'} shared" * bool(
        shared
    )
    return [
        f"one fit of all scans: {joined_with_and(together.per_scan)} for each scan{words}; "
        f"χ²/N {together.redchi:.4f}",
        *map(str, together.findings),
    ]


def _columns(
    series: FitSeries, entries: Sequence[SeriesEntry], constant: Collection[str]
) -> list[str]:
    """Return the table of some fits, a column each, without quantities that are the same in all."""
    rows = [["", *(entry.name for entry in entries)]]
    if series.over == "age":
        rows.append(["mean age [s]", *(f"{entry.at['age']:.6g}" for entry in entries)])
    rows.append(["outcome", *(entry.outcome_words for entry in entries)])
    redchi = ["-" if e.result is None else f"{e.result.redchi:.4f}" for e in entries]
    rows.append(["χ²/N", *redchi])
    for name in (name for name in series.names if name not in constant):
        unit = series.unit(name)
        row = [None if e.result is None else e.quantities[name] for e in entries]
        known = [q for q in row if q is not None and np.isfinite(q.stderr)]
        largest = max((max(abs(q.value), q.stderr) for q in known), default=0.0)
        cells = ["-" if q is None else q.text(largest) for q in row]  # in one notation
        at = f"{name} at mean age" if name in RATES else name
        rows.append([f"{at} [{unit}]" if unit else at, *cells])
        wide = [e.quantities[name].interval if name in e.quantities else "" for e in entries]
        if name in RATES and any(wide):
            rows.append(["95 % interval", *(cell or "-" for cell in wide)])
    return aligned_columns(rows, left=1)


def agreement_sentences(series: FitSeries) -> list[str]:
    """Return sentences on the fits left out, the agreement of the others and the q dependence of J."""
    if series.overlap:
        return [
            "the windows overlap: their fits are not independent, so their agreement is not tested"
        ]
    ended = [e for e in series.entries if e.result is not None and not e.converged]
    names = ", ".join(f"{entry.name} ({entry.outcome_words})" for entry in ended)
    excluded = [f"not converged, and therefore not in the tests below: {names}"] if ended else []
    excluded += _at_bounds(series)
    misfits = [e.name for e in series.entries if e.result is not None and e.result.misfit]
    if misfits:
        reports = "the reports of these fits" if len(misfits) > 1 else "the report of this fit"
        names = joined_with_and(misfits)
        excluded.append(f"the model does not describe the data of {names}: see {reports}")
    if not series.agreement:
        return excluded
    sentences = excluded + [
        f"{name}: {_agreement(series, name, same)}" for name, same in series.agreement.items()
        if not (series.over == "age" and name in RATES)
    ]  # fmt: skip
    sentences += [_power_of_q(series, name) for name in series.decay_rates]
    used = _ERRORS[series.errors].format(methods_of(series.entries))
    return [*(s for s in sentences if s), f"χ² and p use {used}"]


def _agreement(series: FitSeries, name: str, same: HomogeneityTest) -> str:
    fits, every = same.freedom + 1, len(series.entries)
    everywhere = _SOMEWHERE[series.over].format(fits, every)
    everywhere = _EVERYWHERE[series.over] if fits == every else everywhere
    unit = series.unit(name)
    mean = with_unit(numbers.value_and_error(same.mean, same.stderr), unit)
    scatter = _scatter(same)
    if series.global_fit is not None:
        differs = "consistent" if same.p >= DOUBTFUL else "inconsistent"
        return f"{differs} {everywhere} ({scatter}), if the shared parameters are taken as known"
    if same.p >= DOUBTFUL:
        return f"consistent {everywhere} ({scatter}), weighted mean {mean}"
    if same.p >= SURE:
        return f"marginally consistent {everywhere} ({scatter}), weighted mean {mean}"
    return f"inconsistent {everywhere} ({scatter}): {_NOT_ONE[series.over]}"


def _at_bounds(series: FitSeries) -> list[str]:
    """Return a sentence for each parameter that ended at a bound in some fits."""
    sentences = []
    for name in series.names:
        bounded = [e for e in series.entries if e.converged and e.quantities[name].at_bound]
        fits = [e.name for e in bounded if e.quantities[name].conditional]
        if fits:
            together = next((list(of) for of in RATES.values() if name in of), [name])
            sentences.append(
                f"{name} is at a bound in {joined_with_and(fits)}: {joined_with_and(together)} of "
                f"{'these fits' if len(fits) > 1 else 'this fit'} "
                f"{'are' if len(fits) > 1 or len(together) > 1 else 'is'} not compared"
            )
    return sentences


def _power_of_q(series: FitSeries, name: str) -> str:
    """Return the power of q of a rate of decorrelation, and whether that is diffusion; '' if unknown.

    J is a rate divided by q².
    """
    law = series.power_of_q(name)
    if law is None:
        return ""
    J = name == "J"
    what = f"J at {series.entries[0].at['age']:.4g} s" if J else name
    power = numbers.value_and_error(law.exponent, law.stderr)
    rate = numbers.value_and_error(2 + law.exponent, law.stderr)
    if law.p < SURE:
        of_rate = f" (for the rate q²J: {rate})" * J
        return (
            f"{what} does not follow a power law of q ({_scatter(law)}): the nearest power is "
            f"{power}{of_rate}, with errors "
            f"widened by the scatter"
        )
    reach = half_width(95.0, law.dof) * law.stderr
    diffusive = abs(law.exponent - (0 if J else 2)) < reach
    expected = "0 and 2" if J else "2"
    words = "as expected for diffusion" if diffusive else f"whereas diffusion gives {expected}"
    words = f", {words}" if np.isfinite(reach) else ""
    tested = f" ({_scatter(law)})" if law.freedom else ""
    of_rate = f", and the rate q²J as q to the power {rate}" * J
    return f"{what} scales as q to the power {power}{of_rate}{tested}{words}"


def _scatter(of: HomogeneityTest | PowerLawOfQ) -> str:
    """Return χ², degrees of freedom and p."""
    freedom = f"{of.freedom:,} degree{'s' * (of.freedom > 1)} of freedom"
    p = f"p = {of.p:.2g}" if of.p >= SMALLEST_P else f"p below {SMALLEST_P:g}"
    return f"χ² {of.chisqr:.3g} for {freedom}, {p}"


_HEAD = ["fit", "parameters", "χ²", "χ²/N", "score", "worse by", "ΔCLIC", "ΔAIC (naive)"]
_NOTES = (
    "score: logarithm of the predictive density of the left-out angles (larger is better); ± from its "
    "scatter over angles",
    "CLIC allows for correlated pairs; the naive AIC treats pairs as independent and favours too many "
    "parameters",
)


def _comparison_title(comparison: Comparison) -> str:
    fits = f"{len(comparison.fits)} fits to {comparison.store}"
    return f"{fits}, compared by leaving out each of the {comparison.bins} independent bins in turn"


def _comparison_cells(comparison: Comparison) -> list[list[str]]:
    clic, aic = (
        np.array([getattr(fit, key) for fit in comparison.fits]) for key in ("clic", "aic_naive")
    )
    clic, aic = clic - np.fmin.reduce(clic), aic - aic.min()
    return [
        [
            fit.name, f"{fit.parameters}+{fit.linear}", f"{fit.chisqr:.6g}", f"{fit.redchi:.4f}",
            _number_or_dash(fit.score, ".6g"),
            "best" if fit.best else value_and_error(fit.worse_by, fit.stderr),
            _number_or_dash(clic[n], ".4g"), _number_or_dash(aic[n], ".4g"),
        ]
        for n, fit in enumerate(comparison.fits)
    ]  # fmt: skip


def _number_or_dash(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "-"


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison as text: a line for each fit, and the verdict."""
    rows = aligned_columns([_HEAD, *_comparison_cells(comparison)], left=1)
    words = [*wrapped("", (comparison.sentence,)), "", *wrapped("", _NOTES)]
    return printed_lines([_comparison_title(comparison), "", *rows, "", *words])


def comparison_html(comparison: Comparison) -> str:
    """Return a comparison as an HTML table with the verdict, for Jupyter."""
    rows = [_HEAD, *_comparison_cells(comparison)]
    return html_table(_comparison_title(comparison), rows, (comparison.sentence, *_NOTES))
