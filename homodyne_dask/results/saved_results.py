"""Results that were written, read back: of a fit, a series, a comparison; fits in folders compared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from homodyne_dask.document.blocks import Reportable
from homodyne_dask.errors import OptionError, require_type, shown
from homodyne_dask.results.data.dataclass_json import read_as, read_fields
from homodyne_dask.results.data.fit_rows import FitRow, fit_row, without_chance
from homodyne_dask.results.data.fit_view import FitView, fitted_scan
from homodyne_dask.results.data.series import GlobalFit
from homodyne_dask.results.files import json_files as formats
from homodyne_dask.results.files.json_files import fields_in_summary, is_plain_name, missing_values
from homodyne_dask.results.files.result_folder import write_pictures, write_series_for_print
from homodyne_dask.results.result_classes import Comparison, FitResult, FitSeries, compare_fits
from homodyne_dask.store.files import AnyPath, any_path, path_of
from homodyne_dask.store.object_stores import UrlPath
from homodyne_dask.store.scan import Scan

SUMMARY, SERIES = formats.RESULT.file, formats.SERIES.file
Fit = FitResult | str | Path


def load_result(path: str | Path) -> FitResult:
    """Read a result written by `to_json`, or the summary.json of a result folder.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.load_result("A0123_fit").params["D0"]
    <D0 68600 ± 1500 Å²/s>
    """
    return _load(formats.RESULT, path, lambda read, _: from_summary(read))


def _load[R: Reportable](
    form: formats.Format, path: str | Path, restored: Callable[[dict[str, Any], Path], R]
) -> R:
    """Return what a file or folder holds; restored: makes it of plain values, and the folder of the file."""
    file = path_of("path", path)
    file = file / form.file if form.file and file.is_dir() else file
    read = form.read(file)
    with missing_values(file):
        return reportable(restored(read, file.parent))


def from_summary(read: dict[str, Any]) -> FitResult:
    return FitResult(**fields_in_summary(read))


def reportable[R: Reportable](restored: R) -> R:
    """Return what was read from a file, if its report can be made of it, as of what was written."""
    str(restored)
    return restored


def fits_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that hold a result; none of a store."""
    if (folder / "zarr.json").exists():
        return []
    return sorted(file.parent.name for file in folder.glob(f"*/{SUMMARY}") if file.is_file())


def data_of(result: FitResult, folder: Path, way_out: str, store: AnyPath | None = None) -> Scan:
    """Return the data of a result that was read from a folder: of a store that was asked for, else its own.

    Its own is opened only on disk: whoever sends a result could have any server asked with the keys of its
    reader. way_out: how to ask for it, with {} for where it is.
    """
    named = any_path(f"store_path of {folder}", result.provenance.inputs["store_path"])
    if store is None and isinstance(named, UrlPath):
        raise OptionError(
            f"the data of {folder} are at {named}, which is asked only on request: {way_out.format(named)}"
        )
    return fitted_scan(result, store)


def load_series(path: str | Path) -> FitSeries:
    """Read a series written by `to_json`, or the series.json of a folder.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.load_series("A0123_fit_q").names[:2]
    ['D0', 'alpha']
    """
    return _load(formats.SERIES, path, _series)


def _series(read: dict[str, Any], folder: Path) -> FitSeries:
    rows = [_entry(fit, folder) for fit in read["fits"]]
    joint = read.get("global_fit") and GlobalFit.from_plain(read["global_fit"])
    correlations = read_as(tuple[float, ...], read.get("correlations", ()))  # of no earlier file
    return FitSeries(read["over"], tuple(without_chance(rows, len(rows))), joint, correlations)


def _entry(read: dict[str, Any], folder: Path) -> FitRow:
    if not (read["folder"] is None or is_plain_name(read["folder"])):
        raise ValueError(f"folder = {shown(read['folder'])}")
    path = None if read["folder"] is None else folder / read["folder"]
    result = None if read["result"] is None else from_summary(read["result"])
    name = read_as(str, read["name"])
    return fit_row(name, path, result, read["message"], read["at"])


def load_comparison(path: str | Path) -> Comparison:
    """Read a comparison written by `to_json`; path: the file. Raises SourceError if it is not such a file.

    >>> fits = [hd.fit("A0123_c2.zarr", name) for name in ("brownian", "power_law")]
    >>> hd.compare(fits).to_json("models.json")
    >>> hd.load_comparison("models.json").chosen
    'power_law'
    """
    return _load(formats.COMPARISON, path, lambda read, _: read_fields(Comparison, read))


def compare(results: Sequence[Fit] | Mapping[str, Fit]) -> Comparison:
    """Compare finished fits of several models to the same data, by bins left out; no data are read.

    results: two or more, each a FitResult, or the folder of one. A mapping gives them names;
        otherwise they are named after their models or, if models are equal, after their folders.

    The score of a fit measures how well it predicts independent bins that were left out, or, with fewer than
    8 independent bins of known noise, is -CLIC/2 (see `Comparison`); the comparison says which. Raises
    OptionError for fits that differ in data, weights or treatment of contrast and offset, or have a robust
    loss, and if none converged; SourceError for a folder without a result.

    >>> fits = [hd.fit("A0123_c2.zarr", name) for name in ("brownian", "power_law")]
    >>> hd.compare(fits).chosen
    'power_law'
    """
    return compare_fits(_named(results))


def compare_results(results: Sequence[Fit] | Mapping[str, Fit]) -> FitSeries:
    """Show finished fits of different data side by side, and test whether their parameters agree.

    results: two or more, as in `compare`, of any models, whose parameters of the same name are compared, and
        of any data: two-time data and a table of g2, or two temperatures.

    Returns a series over 'scan': `agreement` has the mean, χ² and p of each quantity, and its report the
    difference ± error of two fits, whose errors are taken as independent. Rates at mean ages that differ are
    shown, but not compared. Raises OptionError for fits that share bins and frames, whose errors are not
    independent (`compare` is for these), and for parameters of different units or conventions.

    >>> scan = hd.open_dataset("A0123_c2.zarr")
    >>> fits = {f"{phi}°": hd.fit(scan.select(phi=phi), "brownian") for phi in (-80, 80)}
    >>> hd.compare_results(fits).names[:2]
    ['D0', 'alpha']
    """
    named = _named(results)
    for (name, fit), (other_name, other) in combinations(named.items(), 2):
        _require_comparable(name, fit, other_name, other)
    rows = [
        fit_row(name, None, fit, "", {"scan": n, "age": fit.mean_age})
        for n, (name, fit) in enumerate(named.items(), 1)
    ]
    return FitSeries("scan", tuple(without_chance(rows, len(rows))))


def _require_comparable(name: str, fit: FitResult, other_name: str, other: FitResult) -> None:
    both, inputs, other_inputs = (
        f"{name} and {other_name}",
        fit.provenance.inputs,
        other.provenance.inputs,
    )
    (first, stop), (other_first, other_stop) = inputs["frames"], other_inputs["frames"]
    overlap = max(first, other_first) < min(stop, other_stop)
    same_store = inputs["store_sha256"] == other_inputs["store_sha256"]
    if same_store and overlap and not _bins(inputs).isdisjoint(_bins(other_inputs)):
        raise OptionError(
            f"{both} are fits of the same bins and frames of {inputs['store']}, or of some of them, so that "
            f"their errors are not independent: compare models by hd.compare"
        )
    parameters, others = fit.params, other.params
    for parameter in parameters.keys() & others.keys():
        units = parameters[parameter].unit, others[parameter].unit
        if units[0] != units[1]:
            raise OptionError(
                f"{parameter} of {both} is in {units[0] or 'no unit'} and {units[1] or 'no unit'}: ingest "
                f"both with q"
            )
    conventions = fit.config["convention"], other.config["convention"]
    sheared = any(
        parameter.startswith("gamma_dot") for parameter in parameters.keys() & others.keys()
    )
    if sheared and conventions[0] != conventions[1]:
        raise OptionError(
            f"{both} have the conventions {conventions[0]} and {conventions[1]}, and so other shear rates: "
            f"fit both with one of them"
        )


def _bins(inputs: Mapping[str, Any]) -> set[tuple[int, int]]:
    labels = inputs["labels"]
    return set(zip(inputs.get("scans") or [1] * len(labels), labels, strict=True))


def _named(results: Any) -> dict[str, FitResult]:
    form = "a list of results of hd.fit or of their folders, or a mapping of names to them"
    require_type("results", results, list | tuple | Mapping, form)
    sources = list(results.values() if isinstance(results, Mapping) else results)
    for source in sources:
        require_type("results", source, Fit, "results of hd.fit, or their folders")
    if len(sources) < 2:
        raise OptionError(f"a comparison needs at least two fits, but results has {len(sources)}")
    fits = [fit if isinstance(fit, FitResult) else load_result(fit) for fit in sources]
    if isinstance(results, Mapping):
        return dict(zip(map(str, results), fits, strict=True))
    models = [fit.config["model"] for fit in fits]
    for names in (models, [str(fit) for fit in sources if not isinstance(fit, FitResult)]):
        if len(set(names)) == len(fits):
            return dict(zip(names, fits, strict=True))
    raise OptionError(
        f"several of the fits have the model {max(models, key=models.count)}: give a mapping of names to "
        f"fits, such as {{'one': ..., 'two': ...}}, or each folder only once"
    )


def draw_saved(
    folder: Path, store: AnyPath | None, suffix: str, remedy: str
) -> Iterator[list[Path]]:
    """Draw the figures of a result, or of each in a folder; yield the files of each that are written.

    store: the data of all, by default those they name. suffix: a format beside PNG, of a series, too. remedy:
    how to give the data where they are not found.
    """
    if suffix != "png" and (folder / SERIES).is_file():
        yield [write_series_for_print(load_series(folder / SERIES), folder, suffix)]
    for summary in [*folder.glob(SUMMARY), *sorted(folder.glob(f"*/{SUMMARY}"))]:
        result = load_result(summary)
        view = FitView(result, data_of(result, summary.parent, remedy, store))
        yield write_pictures(view, summary.parent, suffix)
