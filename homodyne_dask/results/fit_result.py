"""What a fit gives: values with errors and units, how it ended, and where it came from."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from homodyne_dask.errors import SourceError
from homodyne_dask.results.tables import plain_table, table_of
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.files import write_atomic

if TYPE_CHECKING:
    from homodyne_dask.results.figures.save import Plots

VERSION = 1
_TABLES = ("influence", "scalings", "identifiability")
_UNITS = {
    "q": "1/angstrom",
    "phi": "degree",
    "contrast": "1",
    "offset": "1",
    "redchi_per_bin": "1",
    "ndata_per_bin": "1",
    "chisqr": "1",
    "redchi": "1",
}
"""As UDUNITS writes them; those of the parameters are their coordinate `unit`."""


@dataclass(frozen=True)
class FitResult:
    """The result of one fit. `print(result)` is the report."""

    outcome: Outcome
    parameters: xarray.Dataset
    """Over `param`: value, stderr (CR2; NaN where absent), stderr_naive, dof, at_bound, fixed, unit."""
    covariance: xarray.DataArray | None
    """(cov_i, cov_j), that of `stderr`: cluster-robust, or None with fewer than 8 clusters."""
    covariance_naive: xarray.DataArray | None
    """(cov_i, cov_j), (JᵀWJ)⁻¹; None where the data do not determine all parameters."""
    scaling: xarray.Dataset
    """Over `bin`: contrast, offset, redchi, q, phi, ndata, undetermined; coordinate label."""
    chisqr: float
    redchi: float
    ndata: int
    """Pairs of frames times bins that were summed."""
    nbins: int
    passes: int
    """Passes over all data, one per trial point."""
    history: tuple[dict[str, Any], ...]
    """One entry per pass: theta, chisqr, damping, accepted, decrement, seconds."""
    compilations: dict[str, int]
    """Most compilations of each kernel in one process."""
    timings: dict[str, float]
    """Seconds: start (first values), passes, errors (passes after the last step), total."""
    undetermined: tuple[str, ...]
    """Sentences on what the data do not, or hardly, determine."""
    warnings: tuple[str, ...]
    config: dict[str, Any]
    """The options in force, defaults included: model, convention, gap_angstrom, scaling, ..."""
    inputs: dict[str, Any]
    """The store, its digest, the source file and its SHA-256, the selection, notes of ingest."""
    minima: tuple[dict[str, Any], ...] = ()
    """Distinct minima of χ² on the averages that first values ended in, the best first: theta by
    name, chisqr, starts (how many small fits ended there)."""
    truth: dict[str, Any] | None = None
    """What simulated data were made from."""
    covariance_lower: xarray.DataArray | None = None
    """(cov_i, cov_j), dyadic-robust over blocks of frames: a lower bound, with fewer than 8 clusters."""
    influence: xarray.Dataset | None = None
    """change(bin, param): standard errors by which a parameter moves when the bin is left out."""
    scalings: xarray.Dataset | None = None
    """Over `mode`: chisqr, aic, bic, fitted and change(mode, param), one step from this fit's optimum."""
    identifiability: xarray.Dataset | None = None
    """Over `direction`: eigenvalue of the Hessian of unit diagonal, and vector(direction, param)."""
    profiles: dict[str, xarray.Dataset] = field(default_factory=dict)
    """By parameter, over `point`: value, chisqr, parabola, passes, converged, theta(point, param)."""
    mean_weight: float | None = None
    """With a loss: the mean of ρ' over all pairs, what it leaves of them; chisqr is then Σ scale²·ρ."""
    version: str = field(default="")
    versions: dict[str, str] = field(default_factory=dict)
    """Of Python and of the packages that did the arithmetic."""

    @property
    def converged(self) -> bool:
        """Whether the fit ended at its optimum with every parameter determined."""
        return self.outcome is Outcome.CONVERGED

    def __str__(self) -> str:
        """Return the report as text."""
        from homodyne_dask.results.text import report_text

        return report_text(self)

    def _repr_html_(self) -> str:
        """Return the report without pictures, as Jupyter shows it."""
        from homodyne_dask.results.html import report_fragment

        return report_fragment(self)

    @property
    def plot(self) -> "Plots":
        """Its pictures as matplotlib figures: `result.plot.rates(scan)`, with the scan that was fitted.

        maps, cuts, angles, rates, passes, residuals, influence.
        """
        from homodyne_dask.results.figures.save import Plots

        return Plots(self)

    def to_dataset(self) -> xarray.Dataset:
        """Return all numbers as one Dataset with units, for netCDF and Zarr.

        Over `param`: value, stderr, stderr_naive, dof, at_bound, fixed, coordinate unit; over `bin`:
        contrast, offset, ... ; covariance and covariance_naive (cov_i, cov_j) where they are known;
        chisqr, redchi, ndata, passes. The attributes say how the fit ended and where it came from.
        """
        known = {
            name: table
            for name in ("covariance", "covariance_naive")
            if (table := getattr(self, name)) is not None
        }
        numbers = {name: getattr(self, name) for name in ("chisqr", "redchi", "ndata", "passes")}
        bins = self.scaling.rename(redchi="redchi_per_bin", ndata="ndata_per_bin")
        whole = xarray.merge([self.parameters, bins]).assign(known | numbers)
        whole = whole.set_coords(["unit", "q", "phi"])
        for name, unit in _UNITS.items():
            whole[name].attrs["units"] = unit
        return whole.assign_attrs(
            title=f"{self.config['model']} fitted to {self.inputs['store']}",
            model=self.config["model"],
            convention=self.config["convention"],
            outcome=self.outcome.name,
            outcome_sentence=self.outcome.value,
            undetermined="\n".join(self.undetermined),
            warnings="\n".join(self.warnings),
            source=self.inputs["source_file"],
            source_sha256=self.inputs["source_sha256"],
            history=f"homodyne-dask {self.version}",
            config=json.dumps(_plain(self.config)),
        )

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values, as written to summary.json; unknown numbers are None."""
        return _plain(
            {
                "format": "homodyne_dask result",
                "format_version": VERSION,
                "version": self.version,
                "versions": self.versions,
                "model": self.config["model"],
                "convention": self.config["convention"],
                "scaling": self.config["scaling"],
                "outcome": self.outcome.name,
                "outcome_sentence": self.outcome.value,
                "parameters": _by_name(self.parameters, "param"),
                "covariance": _matrix(self.covariance),
                "covariance_naive": _matrix(self.covariance_naive),
                "scaling_per_bin": _columns(self.scaling),
                "chisqr": self.chisqr,
                "redchi": self.redchi,
                "mean_weight": self.mean_weight,
                "redchi_per_bin": self.scaling["redchi"].values,
                "ndata": self.ndata,
                "nbins": self.nbins,
                "passes": self.passes,
                "history": list(self.history),
                "compilations": self.compilations,
                "timings": self.timings,
                "undetermined": list(self.undetermined),
                "warnings": list(self.warnings),
                "minima": list(self.minima),
                "config": self.config,
                "inputs": self.inputs,
                "truth": self.truth,
                "covariance_lower": _matrix(self.covariance_lower),
                **{key: plain_table(getattr(self, key)) for key in _TABLES},
                "profiles": {key: plain_table(table) for key, table in self.profiles.items()},
            }
        )

    def to_json(self, path: str | Path) -> None:
        """Write the result as JSON, whole or not at all; it holds no NaN literal."""
        write_atomic(Path(path), json.dumps(self.summary(), indent=1, allow_nan=False) + "\n")


def load_result(path: str | Path) -> FitResult:
    """Read a result written by `to_json`, or the summary.json of a result folder.

    Raises SourceError for a file that is no such result.
    """
    where = Path(path)
    where = where / "summary.json" if where.is_dir() else where
    try:
        read = json.loads(where.read_text())
    except OSError as e:
        raise SourceError(f"{where} cannot be read: {e.strerror}; give a folder made by fit") from e
    except ValueError as e:
        raise SourceError(f"{where} is not a result: {e}; give the summary.json of a fit") from e
    if not isinstance(read, dict) or read.get("format") != "homodyne_dask result":
        raise SourceError(f"{where} is not a result of homodyne-dask fit: give its summary.json")
    if read["format_version"] != VERSION:
        raise SourceError(
            f"{where} has result version {read['format_version']}, this program reads {VERSION}: "
            f"fit again"
        )
    return from_summary(read)


def from_summary(read: dict[str, Any]) -> FitResult:
    """Return the result whose `summary()` this is, as JSON gave it back."""
    names = list(read["parameters"])
    return FitResult(
        outcome=Outcome[read["outcome"]],
        parameters=parameter_table(
            {
                key: [read["parameters"][name][key] for name in names]
                for key in ("value", "stderr", "stderr_naive", "dof", "at_bound", "fixed", "unit")
            }
            | {"param": names}
        ),
        covariance=covariance_table(_unmatrix(read["covariance"]), names),
        covariance_naive=covariance_table(_unmatrix(read["covariance_naive"]), names),
        scaling=scaling_table(read["scaling_per_bin"]),
        truth=read["truth"],
        mean_weight=read.get("mean_weight"),
        covariance_lower=covariance_table(_unmatrix(read.get("covariance_lower")), names),
        profiles={
            key: table
            for key, part in read.get("profiles", {}).items()
            if (table := table_of(part)) is not None
        },
        **{key: table_of(read.get(key)) for key in _TABLES},
        **{
            key: read[key]
            for key in ("chisqr", "redchi", "ndata", "nbins", "passes", "compilations", "timings")
        },
        **{key: tuple(read[key]) for key in ("history", "undetermined", "warnings")},
        minima=tuple(read.get("minima", ())),
        **{key: read[key] for key in ("config", "inputs", "version")},
        versions=read.get("versions", {}),
    )


def parameter_table(columns: dict[str, Any]) -> xarray.Dataset:
    """Return the Dataset over `param` from columns; None becomes NaN."""
    kinds = {"at_bound": bool, "fixed": bool, "unit": str}
    return xarray.Dataset(
        {
            key: ("param", _array(values, kinds.get(key, float)))
            for key, values in columns.items()
            if key != "param"
        },
        coords={"param": list(columns["param"])},
    )


def scaling_table(columns: dict[str, Any]) -> xarray.Dataset:
    """Return the Dataset over `bin` from columns; `label` becomes a coordinate."""
    kinds = {"label": np.int64, "undetermined": bool, "ndata": np.int64}
    arrays = {key: ("bin", _array(v, kinds.get(key, float))) for key, v in columns.items()}
    return xarray.Dataset(
        {key: value for key, value in arrays.items() if key != "label"},
        coords={"label": arrays["label"]},
    )


def covariance_table(matrix: Any, names: list[str]) -> xarray.DataArray | None:
    """Return the matrix with parameter names on both sides, or None."""
    if matrix is None:
        return None
    return xarray.DataArray(
        np.asarray(matrix, float),
        dims=("cov_i", "cov_j"),
        coords={"cov_i": names, "cov_j": names},
        name="covariance",
    )


def _array(values: Any, kind: Any) -> np.ndarray:
    if kind is float:
        return np.array([math.nan if v is None else v for v in values], float)
    return np.array(values, kind)


def _by_name(table: xarray.Dataset, dim: str) -> dict[str, dict[str, Any]]:
    return {
        str(name): {str(key): table[key].values[n] for key in table.data_vars}
        for n, name in enumerate(table[dim].values)
    }


def _columns(table: xarray.Dataset) -> dict[str, Any]:
    return {str(key): table[key].values for key in (*table.data_vars, "label")}


def _matrix(table: xarray.DataArray | None) -> Any:
    return None if table is None else table.values


def _unmatrix(rows: Any) -> Any:
    if rows is None:
        return None
    return [[math.nan if value is None else value for value in row] for row in rows]


def _plain(value: Any) -> Any:
    """Return values JSON knows: arrays become lists, numbers that are not finite None."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
