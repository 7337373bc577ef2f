"""Results, series and comparisons as plain values, as JSON holds them, and a result as one Dataset."""

import json
from collections.abc import Callable
from typing import Any

import xarray

from homodyne_dask.errors import printable
from homodyne_dask.results.data.comparison import ComparisonValues
from homodyne_dask.results.data.dataclass_json import plain_values, read_as, read_fields
from homodyne_dask.results.data.derived_quantities import derived_quantities
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import PARTS, FitValues
from homodyne_dask.results.data.result_tables import (
    DATASET_UNITS,
    LIMITS,
    PARAMETER_COLUMNS,
    covariances_in,
    parameter_table,
    plain_rows,
    scaling_table,
)
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.solver.state import Outcome


def summary_of(result: FitValues) -> dict[str, Any]:
    """Return a result as plain values, but for its format."""
    values = {key: value for part in PARTS for key, value in vars(getattr(result, part)).items()}
    del values["definition"]
    return plain_values(
        {
            **{key: result.config[key] for key in ("model", "convention", "scaling")},
            "outcome": result.outcome,
            "outcome_sentence": result.verdict,
            "model_check": values.pop("check"),
            "parameters": plain_rows(result.parameters, "param"),
            "derived": derived_quantities(result),
            "scaling_per_bin": dict(result.scaling.data_vars) | {"label": result.scaling["label"]},
            "redchi_per_bin": result.scaling["redchi"],
            **values,
        }
    )


def fields_in_summary(read: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a result from its plain values, as read from JSON."""
    rows = read["parameters"]
    columns = {key: [row[key] for row in rows.values()] for key in PARAMETER_COLUMNS}
    ended = read["history"][-1]["theta"] if read["outcome"] == "NO_DECAY" else columns["value"]
    each = zip(rows.values(), ended, strict=True)  # earlier files have no optimum
    columns["optimum"] = [row.get("optimum", value) for row, value in each]
    columns |= {key: [row.get(key) for row in rows.values()] for key in LIMITS}
    read_as(str, read["config"]["model"])
    for name in ("bounds", "tie", "splines"):
        read_as(dict, read["config"][name] or {})
    for name in ("store", "store_path", "store_sha256", "source_file"):
        read_as(str, read["inputs"][name])
    read_as(tuple[int, ...], read["inputs"]["labels"])
    read_as(tuple[str, ...], read["inputs"]["notes"])
    read = read | covariances_in(read, list(rows)) | {"check": read["model_check"]}
    findings = Findings.from_plain(read["findings"])
    return {
        "outcome": Outcome[read["outcome"]],
        "parameters": parameter_table(columns | {"param": list(rows)}, findings),
        "scaling": scaling_table(read["scaling_per_bin"]),
        **{part: read_fields(kind, read) for part, kind in PARTS.items()},
    }


def series_summary(
    series: SeriesValues, dict_of: Callable[[FitValues], dict[str, Any]]
) -> dict[str, Any]:
    """Return a series as plain values, but for its format; dict_of: makes those of a result, with it."""
    fits = [
        {
            **{key: getattr(entry, key) for key in ("name", "at", "message")},
            "folder": None if entry.folder is None else entry.folder.name,
            "result": None if entry.result is None else dict_of(entry.result),
        }
        for entry in series.entries
    ]
    values: dict[str, Any] = {"over": series.over, "fits": fits}
    if series.global_fit is not None:
        values["global_fit"] = series.global_fit
    values |= {"agreement": series.agreement, "powers_of_q": series.powers_of_q}
    if series.repeats:
        values["repeats"] = {place: again.agreement for place, again in series.repeats.items()}
    if series.over != "q" and series.over_q:
        values["over_q"] = {
            place: {"powers_of_q": rings.powers_of_q, "agreement": rings.agreement}
            for place, rings in series.over_q.items()
        }
    return plain_values(values)


def comparison_summary(comparison: ComparisonValues) -> dict[str, Any]:
    """Return a comparison as plain values, but for its format and its fits."""
    values = vars(comparison) | {"chosen": comparison.chosen, "sentence": comparison.sentence}
    del values["results"]
    return plain_values(values)


def dataset_of(result: FitValues) -> xarray.Dataset:
    """Return all numbers of a result as a Dataset with units; see `FitResult.to_dataset`."""
    numbers = {name: getattr(result, name) for name in ("chisqr", "redchi", "ndata", "passes")}
    for name in ("covariance", "covariance_naive"):
        if (table := getattr(result.errors, name)) is not None:
            numbers[name] = table
    if derived := derived_quantities(result):
        rows = [quantity.to_dict() for quantity in derived.values()]
        numbers |= {f"derived_{key}": ("derived", [row[key] for row in rows]) for key in rows[0]}
        numbers["derived"] = "derived", list(derived)
    bins = result.scaling.rename(redchi="redchi_per_bin", ndata="ndata_per_bin")
    whole = xarray.merge([result.parameters, bins]).assign(numbers)
    whole = whole.set_coords(["unit", "q", "phi"])
    for name in DATASET_UNITS.keys() & whole.variables.keys():
        whole[name].attrs["units"] = DATASET_UNITS[name]
    inputs = result.provenance.inputs
    about = {
        "title": f"{result.config['model']} fitted to {inputs['store']}",
        "model": result.config["model"],
        "convention": result.config["convention"],
        "outcome": result.outcome.name,
        "outcome_sentence": result.verdict,
        "findings": json.dumps(plain_values(result.findings), ensure_ascii=False),
        "source": inputs["source_file"],
        "source_sha256": inputs["source_sha256"],
        "history": f"homodyne-dask {result.provenance.version}",
        "config": json.dumps(plain_values(result.config)),
    }
    # names of files need not be UTF-8, which netCDF holds
    return whole.assign_attrs({name: printable(text) for name, text in about.items()})
