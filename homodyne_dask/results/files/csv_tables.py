"""Results as CSV: parameters and bins of a fit, a row for each of several fits; unknown cells are empty."""

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray

from homodyne_dask.errors import in_line
from homodyne_dask.results.data.derived_quantities import ERRORS, derived_quantities
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.fit_rows import UNKNOWN_QUANTITY, FitRow
from homodyne_dask.results.data.known_truth import truth_of
from homodyne_dask.results.data.rate_curves import WORDS
from homodyne_dask.results.data.result_tables import plain_rows
from homodyne_dask.results.data.series import UNITS

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""Letters with which a formula begins, those of full width in some spreadsheets."""


def parameters_csv(result: FitValues) -> str:
    """Return a row for each parameter, and for what follows from them with its formula.

    Name, value, errors, flags, true value, prior, 95 % interval.
    """
    truth, priors = truth_of(result) or {}, result.config["prior"] or {}
    rows = []
    known, ends = plain_rows(result.parameters, "param"), plain_rows(result.ci(95.0), "param")
    for name, columns in known.items():
        row = {"name": name, **columns, "truth": truth.get(name)}
        if priors:
            row["prior_mean"], row["prior_sd"] = priors.get(name, (None, None))
        rows.append(
            row | {f"{end}_95": value for end, value in ends[name].items()} | {"formula": ""}
        )
    rows += [{"name": name} | of.to_dict() for name, of in derived_quantities(result).items()]
    return rows_csv(rows)


def columns_csv(table: xarray.Dataset, first: str) -> str:
    """Return a row for each point of a table of one dimension; first: the coordinate in the first column."""
    names = [first, *map(str, table.data_vars)]
    return _csv([names, *zip(*(table[name].values for name in names), strict=True)])


def rates_csv(rates: xarray.Dataset) -> str:
    """Return a row for each time of `result.rates`, with the units of the time and of each curve."""
    units = {}
    for name in ("t", *(name for name in WORDS if name in rates)):
        unit = rates[name].attrs["units"].replace("angstrom", "Å").replace("^2", "²")
        units[f"{name}_unit"] = "t", [unit] * rates.sizes["t"]
    return columns_csv(rates.assign(units), "t")


def entries_csv(
    names: Sequence[str],
    entries: Sequence[FitRow],
    folder: Path,
    name_column: str,
    of_rings: Sequence[Mapping[str, float]] | None = None,
) -> str:
    """Return a row for each fit: name, outcome, parameters with errors, its folder relative to `folder`.

    Beside each quantity and place with a unit there is a column of it. of_rings: `FitSeries.of_rings`.
    """
    rows = []
    for n, entry in enumerate(entries):
        row: dict[str, Any] = {name_column: entry.name, **entry.at, "outcome": entry.outcome}
        row |= {f"{key}_unit": UNITS[key] for key in entry.at if key in UNITS}
        row |= {key: getattr(entry, key) for key in ("redchi", "ndata", "passes")}
        for name in names:
            quantity = entry.quantities.get(name, UNKNOWN_QUANTITY)
            row[name] = quantity.value
            row |= {f"{name}_{key}": getattr(quantity, key) for key in (*ERRORS, "unit")}
        row |= {**(of_rings[n] if of_rings else {}), "method": entry.method}
        row["at_bound"] = " ".join(name for name, of in entry.quantities.items() if of.at_bound)
        row["folder"] = "" if entry.folder is None else os.path.relpath(entry.folder, folder)
        rows.append(row | {"message": entry.message})
    return rows_csv(rows)


def rows_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV with the keys of the first, which come first."""
    return _csv([list(rows[0]), *([row.get(key) for key in rows[0]] for row in rows)])


def _csv(lines: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, line) for line in lines)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a table holds it: an unknown number is an empty cell.

    A text that spreadsheets would run as a formula begins with an apostrophe.
    """
    value = value.item() if hasattr(value, "item") else value
    unknown = value is None or (isinstance(value, float) and not math.isfinite(value))
    if isinstance(value, str):
        text = in_line(value)
        return f"'{text}" if text.lstrip()[:1] in FORMULA else text
    return "" if unknown else value
