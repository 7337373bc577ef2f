"""JSON files of results: with a checksum of their content, read unchanged or not at all.

Results, series and comparisons as plain values, as JSON holds them, and a result as one Dataset.

The formats of files: their names, versions and places, and what writes and reads each.

Those below are read back, and are JSON with a checksum; `saved_results` makes results of what they read.
`result_folder.WRITERS` are the tables, texts and netCDF in the folder of a fit. Applications and other
packages add formats by entry points of the group homodyne_dask.writers: a function from a `FitView` to bytes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import xarray

from homodyne_dask.errors import PackageError, SourceError, one_line, printable, why_unreadable
from homodyne_dask.plugins import applications_in, load_application, loaded, offered_in
from homodyne_dask.results.data.comparison import ComparisonValues
from homodyne_dask.results.data.dataclass_json import plain_values, read_as, read_fields
from homodyne_dask.results.data.derived_quantities import derived_quantities
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import (
    DATASET_UNITS,
    LIMITS,
    PARAMETER_COLUMNS,
    PARTS,
    FitValues,
    covariances_in,
    parameter_table,
    plain_rows,
    scaling_table,
)
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import check_replaceable, path_of, read_regular_file, write_atomic

CHECKSUM = "sha256"
"""Key of the checksum: of all other keys and values, sorted, without spaces."""
MAX_BYTES = 2_000_000_000
"""Bytes of the largest file that is read."""


def write_with_checksum(values: Mapping[str, object], path: str | Path) -> None:
    """Write plain values and their checksum, atomically; NaN is a ValueError.

    Raises OptionError for what is not a path.
    """
    whole = dict(values) | {CHECKSUM: _digest(values)}
    text = json.dumps(whole, indent=1, allow_nan=False) + "\n"
    write_atomic(path_of("path", path), text)


def read_with_checksum(
    path: Path,
    form: str,
    version: int,
    remedy: str,
    *,
    required: bool = False,
    max_bytes: int = MAX_BYTES,
) -> dict[str, Any]:
    """Return the values of a file of that format and version, without the checksum.

    Files from which the checksum was removed by hand are read, unless it is required. remedy: what to give
    instead, the end of the sentence. Raises SourceError.
    """
    try:
        read = json.loads(read_regular_file(path, max_bytes))
    except OSError as e:
        raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {remedy}") from e
    except (ValueError, RecursionError) as e:
        raise SourceError(
            f"{path} is damaged or is not JSON ({why_unreadable(e)}): {remedy}"
        ) from e
    if not isinstance(read, dict) or read.get("format") != form:
        raise SourceError(f"{path} is not a {form}: {remedy}")
    checksum = read.pop(CHECKSUM, None)
    if (required or checksum is not None) and checksum != _digest(read):
        again = f"fit again, or remove its last entry, {CHECKSUM}, to read it as it is"
        raise SourceError(
            f"{path} was changed after it was written (its checksum does not match): "
            f"{remedy if required else again}"
        )
    if read.get("format_version") != version:
        raise SourceError(
            f"{path} has format version {read.get('format_version')}, but this program reads {version}: "
            f"fit again"
        )
    return read


@contextmanager
def missing_values(path: Path) -> Iterator[None]:
    """Turn errors from values that are missing or of another kind into a SourceError."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        StopIteration,
        RecursionError,
    ) as e:
        raise SourceError(
            f"{path} lacks values of a result, or has unexpected ones "
            f"({type(e).__name__}: {one_line(str(e))[:100]}): fit again"
        ) from e


def is_plain_name(name: object) -> bool:
    """Return whether a name read from a file is that of something in a folder, and leads nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {*"/\0"} & {*name}


def _digest(values: Mapping[str, object]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


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


WRITERS = "homodyne_dask.writers"


class Format(NamedTuple):
    """A format of files that are read back."""

    name: str
    version: int
    file: str
    """The name of such a file in the folder of a fit, '' where it has none."""
    remedy: str
    """What to give in place of another file: the end of a sentence."""
    summary: Callable[[Any], dict[str, Any]]
    """Makes plain values of what is written."""
    max_bytes: int = MAX_BYTES
    """Of the largest file that is read."""

    def to_dict(self, values: Any) -> dict[str, Any]:
        """Return what is written as plain values, beginning with its format."""
        return {"format": self.name, "format_version": self.version} | self.summary(values)

    def read(self, path: Path) -> dict[str, Any]:
        """Return the plain values in a file; raises SourceError for one of another format or version."""
        expected = self.name, self.version, self.remedy
        return read_with_checksum(path, *expected, max_bytes=self.max_bytes)


RESULT = Format(
    "homodyne_dask result",
    2,
    "summary.json",
    "give a folder made by fit, or its summary.json",
    summary_of,
)
SERIES = Format(
    "homodyne_dask series",
    1,
    "series.json",
    "give a folder made by fit --over, or its series.json",
    partial(series_summary, dict_of=RESULT.to_dict),
)
COMPARISON = Format(
    "homodyne_dask comparison",
    1,
    "",
    "give a file that Comparison.to_json wrote",
    comparison_summary,
)


def write_json(values: Mapping[str, Any], path: str | Path) -> None:
    """Write plain values with their checksum; raises OptionError where a file of another kind is."""
    check_replaceable(path_of("path", path), b"{")
    write_with_checksum(values, path)


def writer_of(name: str, what: str) -> Callable[[FitView], bytes]:
    """Return what writes a format that an application or another package adds.

    what: what needs it, as an error begins. Raises PackageError where nothing writes it.
    """
    for point in applications_in(WRITERS):
        if point.name == name:
            return load_application(point, what)
    for point in offered_in(WRITERS):
        if point.name == name:
            return loaded(point, callable, "a function")
    raise PackageError(f"{what} needs the application {name!r}, which is not installed")
