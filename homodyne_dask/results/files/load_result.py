"""Results that were written as summary.json, read back."""

from pathlib import Path
from typing import Any

from homodyne_dask.results.data.fit_result import (
    FORMAT,
    LATER,
    LISTS,
    NUMBERS,
    OTHERS,
    SUMMARY,
    TABLES,
    VERSION,
    FitResult,
)
from homodyne_dask.results.data.misfit import model_check_of
from homodyne_dask.results.data.result_tables import (
    covariance_table,
    parameter_table,
    scaling_table,
    table_of,
)
from homodyne_dask.results.files.json_files import missing_values, read_with_checksum
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import AnyPath, any_path


def load_result(path: str | AnyPath) -> FitResult:
    """Read a result written by `to_json`, or the summary.json of a result folder.

    path: of the file or the folder, or a URL of them. Raises SourceError if it is not such a file.

    >>> hd.load_result("A0123_fit").params["D0"]
    <D0 68600 ± 1500 Å²/s>
    """
    where = any_path("path", path)
    where = file_in(where, SUMMARY)
    read = read_with_checksum(
        where, FORMAT, VERSION, "give a folder made by fit, or its summary.json"
    )
    with missing_values(where):
        return from_summary(read)


def file_in(path: AnyPath, name: str) -> AnyPath:
    """Return the file of that name in a folder; of a file itself the file. By URL files end in .json."""
    is_folder = path.is_dir() if isinstance(path, Path) else not path.name.endswith(".json")
    return path / name if is_folder else path


def from_summary(read: dict[str, Any]) -> FitResult:
    """Return the result from its `to_dict()`, as read from JSON."""
    names = list(read["parameters"])
    plain: dict[str, Any] = {
        key: read[key] for key in ("chisqr", "redchi", "version", *NUMBERS, *OTHERS)
    }
    plain |= {key: tuple(read[key]) for key in LISTS}
    plain |= {key: tuple(read.get(key, ())) for key in LATER}
    return FitResult(
        outcome=Outcome[read["outcome"]],
        parameters=parameter_table(
            {
                key: [read["parameters"][name][key] for name in names]
                for key in ("value", "stderr", "stderr_naive", "dof", "at_bound", "fixed", "unit")
            }
            | {"param": names}
        ),
        covariance=covariance_table(read["covariance"], names),
        covariance_naive=covariance_table(read["covariance_naive"], names),
        scaling=scaling_table(read["scaling_per_bin"]),
        mean_weight=read.get("mean_weight"),
        posterior=read.get("posterior"),
        rates_check=read.get("rates_check"),
        covariance_lower=covariance_table(read.get("covariance_lower"), names),
        profiles={
            key: table
            for key, part in read.get("profiles", {}).items()
            if (table := table_of(part)) is not None
        },
        **{key: table_of(read.get(key)) for key in TABLES},
        **plain,
        check=model_check_of(read.get("model_check")),
        versions=read.get("versions", {}),
    )
