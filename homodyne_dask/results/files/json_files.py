"""JSON files of results: with a checksum of their content, read unchanged or not at all.

`saved_results` makes results of what they read. Applications and other packages add formats by entry points
of the group homodyne_dask.writers: a function from a `FitView` to bytes."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import xarray

from homodyne_dask.errors import PackageError, SourceError, one_line, printable, why_unreadable
from homodyne_dask.plugins import applications_in, load_application, loaded, offered_in
from homodyne_dask.results.data import fit_result
from homodyne_dask.results.data.comparison import ComparisonValues
from homodyne_dask.results.data.dataclass_json import plain_values, read_as, read_fields
from homodyne_dask.results.data.derived_quantities import derived_quantities
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.files import check_replaceable, path_of, read_regular_file, write_atomic

CHECKSUM = "sha256"
"""Key of the checksum: of all other keys and values, sorted, without spaces."""
MAX_BYTES = 2_000_000_000
"""Bytes of the largest file that is read."""
WRITERS = "homodyne_dask.writers"
"""The group of entry points of further formats."""


class Format(NamedTuple):
    """A kind of JSON file: its first two keys, how it is made, and what is said where another is given."""

    name: str
    version: int
    file: str
    """The name of such a file in the folder of a fit, '' where it has none."""
    remedy: str
    """What to give in place of another file: the end of a sentence."""
    summary: Callable[[Any], dict[str, Any]]
    """Makes plain values of what is written, without the format."""
    sealed: bool = False
    """Whether a file without a checksum is refused; else one is read from which it was removed by hand."""

    def to_dict(self, values: Any) -> dict[str, Any]:
        """Return what is written as plain values, beginning with its format."""
        return {"format": self.name, "format_version": self.version} | self.summary(values)

    def read(self, path: Path) -> dict[str, Any]:
        """Return the plain values in a file; raises SourceError for one of another format or version."""
        try:
            read = json.loads(read_regular_file(path, MAX_BYTES))
        except OSError as e:
            raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {self.remedy}") from e
        except (ValueError, RecursionError) as e:
            reason = why_unreadable(e)
            raise SourceError(f"{path} is damaged or is not JSON ({reason}): {self.remedy}") from e
        if not isinstance(read, dict) or read.get("format") != self.name:
            raise SourceError(f"{path} is not a {self.name}: {self.remedy}")
        checksum = read.pop(CHECKSUM, None)
        if (self.sealed or checksum is not None) and checksum != _digest(read):
            again = f"fit again, or remove its last entry, {CHECKSUM}, to read it as it is"
            raise SourceError(
                f"{path} was changed after it was written (its checksum does not match): "
                f"{self.remedy if self.sealed else again}"
            )
        if (version := read.get("format_version")) != self.version:
            raise SourceError(
                f"{path} has format version {version}, but this program reads {self.version}: "
                f"{self.remedy if self.sealed else 'fit again'}"
            )
        return read


def write_with_checksum(values: Mapping[str, object], path: str | Path) -> None:
    """Write plain values and their checksum, atomically; NaN is a ValueError."""
    sealed_values = dict(values) | {CHECKSUM: _digest(values)}
    text = json.dumps(sealed_values, indent=1, allow_nan=False) + "\n"
    write_atomic(path_of("path", path), text)


_UNEXPECTED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_UNEXPECTED += (StopIteration, RecursionError)


@contextmanager
def missing_values(path: Path) -> Iterator[None]:
    """Turn errors from values that are missing or of another kind into a SourceError."""
    try:
        yield
    except _UNEXPECTED as e:
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


def _summary_of(result: fit_result.FitValues) -> dict[str, Any]:
    values = {
        key: value
        for record in fit_result.PARTS
        for key, value in vars(getattr(result, record)).items()
    }
    del values["definition"]
    return plain_values(
        {
            **{key: result.config[key] for key in ("model", "convention", "scaling")},
            "outcome": result.outcome,
            "outcome_sentence": result.verdict,
            "model_status": result.model_status,
            "usable": result.usable,
            "model_check": values.pop("check"),
            "parameters": fit_result.plain_rows(result.parameters, "param"),
            "derived": derived_quantities(result),
            "scaling_per_bin": dict(result.scaling.data_vars) | {"label": result.scaling["label"]},
            "redchi_per_bin": result.scaling["redchi"],
            **values,
        }
    )


_CHECKED: tuple[tuple[str, Any, str], ...] = (
    ("config", str, "model"),
    ("config", dict[str, Any] | None, "bounds tie splines"),
    ("inputs", str, "store store_path store_sha256 source_file"),
    ("inputs", tuple[int, ...], "labels"),
    ("inputs", tuple[str, ...], "notes"),
)
"""What readers of options and inputs rely on: the part, the type and the names."""


def fields_in_summary(read: dict[str, Any]) -> dict[str, Any]:
    rows = read["parameters"]
    columns = {key: [row[key] for row in rows.values()] for key in fit_result.PARAMETER_COLUMNS}
    ended = read["history"][-1]["theta"] if read["outcome"] == "NO_DECAY" else columns["value"]
    rows_and_ends = zip(rows.values(), ended, strict=True)  # earlier files have no optimum
    columns["optimum"] = [row.get("optimum", value) for row, value in rows_and_ends]
    columns |= {key: [row.get(key) for row in rows.values()] for key in fit_result.LIMITS}
    for record, annotation, names in _CHECKED:
        for name in names.split():
            read_as(annotation, read[record][name])
    read = read | fit_result.covariances_in(read, list(rows)) | {"check": read["model_check"]}
    findings = Findings.from_plain(read["findings"])
    return {
        "outcome": Outcome[read["outcome"]],
        "parameters": fit_result.parameter_table(columns | {"param": list(rows)}, findings),
        "scaling": fit_result.scaling_table(read["scaling_per_bin"]),
        **{name: read_fields(record, read) for name, record in fit_result.PARTS.items()},
    }


def _series_summary(series: SeriesValues) -> dict[str, Any]:
    fits = [
        {
            **{key: getattr(entry, key) for key in ("name", "at", "message", "outcome")},
            "usable": entry.converged and not entry.findings.at_least("error"),
            "folder": None if entry.folder is None else entry.folder.name,
            "values": {name: quantity.to_dict() for name, quantity in entry.quantities.items()},
            "result": None if entry.result is None else RESULT.to_dict(entry.result),
        }
        for entry in series.entries
    ]
    values: dict[str, Any] = {"over": series.over, "fits": fits}
    if series.global_fit is not None:
        values["global_fit"] = series.global_fit
    values |= {"agreement": series.agreement, "powers_of_q": series.powers_of_q}
    values["correlations"] = series.correlations
    if series.repeats:
        values["repeats"] = {place: repeats.agreement for place, repeats in series.repeats.items()}
    if series.over != "q" and (rings := series.over_q):
        keys = ("powers_of_q", "agreement")
        values["over_q"] = {place: {k: getattr(s, k) for k in keys} for place, s in rings.items()}
    return plain_values(values)


def _comparison_summary(comparison: ComparisonValues) -> dict[str, Any]:
    values = vars(comparison) | {"chosen": comparison.chosen, "sentence": comparison.sentence}
    del values["results"]
    return plain_values(values)


def dataset_of(result: fit_result.FitValues) -> xarray.Dataset:
    numbers = {name: getattr(result, name) for name in ("chisqr", "redchi", "ndata", "passes")}
    for name in ("covariance", "covariance_naive"):
        if (table := getattr(result.errors, name)) is not None:
            numbers[name] = table
    if derived := derived_quantities(result):
        rows = [quantity.to_dict() for quantity in derived.values()]
        numbers |= {f"derived_{key}": ("derived", [row[key] for row in rows]) for key in rows[0]}
        numbers["derived"] = "derived", list(derived)
    bins = result.scaling.rename(redchi="redchi_per_bin", ndata="ndata_per_bin")
    dataset = xarray.merge([result.parameters, bins]).assign(numbers)
    dataset = dataset.set_coords(["unit", "q", "phi"])
    for name in fit_result.DATASET_UNITS.keys() & dataset.variables.keys():
        dataset[name].attrs["units"] = fit_result.DATASET_UNITS[name]
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
    return dataset.assign_attrs({name: printable(text) for name, text in about.items()})


_FIT = "give a folder made by fit, or its summary.json"
RESULT = Format("homodyne_dask result", 2, "summary.json", _FIT, _summary_of)
_SERIES_FILE = "give a folder made by fit --over, or its series.json"
SERIES = Format("homodyne_dask series", 1, "series.json", _SERIES_FILE, _series_summary)
_COMPARISON_FILE = "give a file that Comparison.to_json wrote"
COMPARISON = Format("homodyne_dask comparison", 2, "", _COMPARISON_FILE, _comparison_summary)


def write_json(values: Mapping[str, Any], path: str | Path) -> None:
    """Write plain values with their checksum; raises OptionError where a file of another kind is."""
    check_replaceable(path_of("path", path), b"{")
    write_with_checksum(values, path)


def writer_of(name: str, what: str) -> Callable[[FitView], bytes]:
    """Return what writes a format that an application or another package adds; what: what needs it."""
    for point in (point for point in applications_in(WRITERS) if point.name == name):
        return load_application(point, what)
    for point in (point for point in offered_in(WRITERS) if point.name == name):
        return loaded(point, callable, "a function")
    raise PackageError(f"{what} needs the application {name!r}, which is not installed")
