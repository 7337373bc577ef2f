"""A series of fits as text: the table, and whether the parts agree, in plain words."""

from homodyne_dask.models.rates import RATES
from homodyne_dask.results import numbers
from homodyne_dask.results.homogeneity import HomogeneityTest
from homodyne_dask.results.series import FitSeries
from homodyne_dask.results.series_entry import SeriesEntry
from homodyne_dask.results.text import aligned_columns, wrapped

SURE, DOUBTFUL = 0.001, 0.05
"""p below which values are said to differ, and below which they hardly agree."""
WIDTH = 100
_PARTS = {"q": "q", "age": "windows of age"}
_ERRORS = {
    "stderr": "cluster-robust errors (CR2), p allowing for their degrees of freedom",
    "stderr_lower": "errors that are a lower bound (from blocks of frames, at least the naive ones), so "
    "that a small p may come from errors that are too small",
    "stderr_naive": "naive errors, too small for correlated speckle, so that a small p says little",
}


def series_text(series: FitSeries) -> str:
    """Return a series as text: how each fit ended, its values with errors, whether they agree."""
    ended = series.ended
    result = next((entry.result for entry in ended if entry.result is not None), None)
    of = f"each of {len(ended)} {_PARTS[series.over]}"
    head = [
        "no fit" if result is None else
        f"{result.config['model']} fitted to {result.inputs['store']}, {of}"
    ]  # fmt: skip
    failed = [f"{entry.name} failed: {entry.message}" for entry in ended if entry.result is None]
    head += wrapped("", tuple(failed))
    parts = [head, *(_columns(series, some) for some in _blocks(series)), _said(series)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _said(series: FitSeries) -> list[str]:
    return wrapped("- ", tuple(agreement_sentences(series)))


def _blocks(series: FitSeries) -> list[list[SeriesEntry]]:
    """Return the fits in groups whose columns fit a line."""
    if not series.names:
        return []
    per_line = max(1, (WIDTH - 23) // max(20, *(len(e.name) + 2 for e in series.ended)))
    return [list(series.ended[n : n + per_line]) for n in range(0, len(series.ended), per_line)]


def _columns(series: FitSeries, ended: list[SeriesEntry]) -> list[str]:
    """Return the table of some fits, a column each."""
    rows = [["", *(entry.name for entry in ended)]]
    if series.over == "age":
        rows.append(["mean age [s]", *(f"{entry.at['age']:.6g}" for entry in ended)])
    rows.append(["outcome", *(entry.outcome.lower().replace("_", " ") for entry in ended)])
    redchi = ["-" if e.result is None else f"{e.result.redchi:.4f}" for e in ended]
    rows.append(["χ²/N", *redchi])
    for name in series.names:
        unit = series.unit(name)
        cells = [_cell(entry, name) for entry in ended]
        at = f"{name} at mean age" if name in RATES else name
        rows.append([f"{at} [{unit}]" if unit else at, *cells])
    return aligned_columns(rows, left=1)


def _cell(entry: SeriesEntry, name: str) -> str:
    if entry.result is None:
        return "-"
    found = entry.quantities[name]
    return numbers.value_and_best_error(found.value, found.stderr, found.stderr_naive)


def agreement_sentences(series: FitSeries) -> list[str]:
    """Return in sentences whether the fits agree, and what J does with q."""
    if series.overlap:
        return ["the windows overlap: their fits are not independent, and no agreement is stated"]
    if not series.agreement:
        return []
    sentences = [
        f"{name}: {_agreement(series, name, same)}" for name, same in series.agreement.items()
        if not (series.over == "age" and name in RATES)
    ]  # fmt: skip
    sentences += [_diffusion(series)] if series.over == "q" else []
    return [*(s for s in sentences if s), f"χ² and p are of {_ERRORS[series.errors]}"]


def _agreement(series: FitSeries, name: str, same: HomogeneityTest) -> str:
    everywhere = {"q": "at all q", "age": "in all windows"}[series.over]
    unit = series.unit(name)
    mean = numbers.value_and_error(same.mean, same.stderr) + (f" {unit}" if unit else "")
    freedom = f"{same.freedom} degree{'s' * (same.freedom > 1)} of freedom"
    scatter = f"χ² {same.chisqr:.3g} for {freedom}, p = {same.p:.2g}"
    if same.p >= DOUBTFUL:
        return f"the same {everywhere} within errors ({scatter}), weighted mean {mean}"
    if same.p >= SURE:
        return f"hardly the same {everywhere} ({scatter}), weighted mean {mean}"
    return f"not the same {everywhere} ({scatter}): {_differs(series.over, name)}"


def _differs(over: str, name: str) -> str:
    if over == "q":
        return "one value does not describe all q"
    return "one set of parameters does not describe the whole record"


def _diffusion(series: FitSeries) -> str:
    """Return what the q dependence of J says of the kind of motion."""
    law = series.q_dependence
    if law is None:
        return ""
    age = series.ended[0].at["age"]
    power = numbers.value_and_error(law.exponent, law.stderr)
    rate = numbers.value_and_error(2 + law.exponent, law.stderr)
    diffusive = abs(law.exponent) < 2 * law.stderr
    words = "as diffusion asks" if diffusive else "where diffusion asks for 2"
    return f"J at {age:.4g} s goes as q to the power {power}, the rate q²J to the power {rate}, {words}"
