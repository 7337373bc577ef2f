"""The draws of a posterior, their DataTree in the form of ArviZ 1, and its netCDF file.

Groups: posterior, sample_stats, log_likelihood, prior, observed_data, constant_data. Numbers that are not
known or not finite are absent from the attributes.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.errors import OptionError, SourceError, in_line, why_unreadable
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.models.rate_forms import some_ages
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fit_result import DATASET_UNITS
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import quoted_sign, rates_in
from homodyne_dask.results.files.json_files import MAX_BYTES
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.store.files import path_of, read_with_tail, replace_file
from homodyne_dask.store.hdf5_files import check_contents
from homodyne_dask.store.scan import Scan

FORMAT, VERSION = "homodyne_dask posterior", 2
FILE = "posterior.nc"
_SIZE = 64
"""Bytes of the checksum at the end of a file: the SHA-256 of all others."""
_REMEDY = "give posterior.nc of a fit, or recreate it with `homodyne-dask posterior`"
NUMBERS = (
    *("adjust", "adjust_note", "design_effect", "dof", "r_hat", "effective_draws", "seed"),
    *("columns", "checked", "largest_error"),
)
"""How draws were made, as files and summary.json hold it: by which factor the log-likelihood was divided;
degrees of freedom of its t kernel, inf for a Gaussian one; basis functions of the likelihood; draws compared
with all pairs, and the largest difference of their log densities."""
QUANTILES = (0.025, 0.16, 0.5, 0.84, 0.975)
"""Of parameters and rates, in tables and figures."""
AGES = 50
"""Most ages at which rates are kept."""
SAMPLE = ("chain", "draw")
OTHERS = (
    *(*SAMPLE, "bin", "age", "quantile", "cell", "frame", "byte", "contrast", "offset"),
    *("J", "gamma_dot", "strain", "c2", "lp", "q", "phi", "log_prior"),
)
"""What else the groups of a posterior hold."""


class Draws(NamedTuple):
    """Parameters in the order and the units of the model."""

    theta: Float[np.ndarray, "chain draw p"]
    """All parameters of the model; fixed ones are constant."""
    linear_params: Float[np.ndarray, "chain draw bin 2"]
    """(offset - 1, contrast), drawn from their conditional; NaN for a bin without pairs."""
    log_likelihood: Float[np.ndarray, "chain draw bin"]
    """Of each bin, adjusted as the posterior is; NaN for a bin without pairs."""
    log_prior: Float[np.ndarray, "chain draw"]
    prior: Float[np.ndarray, "prior_draw p"]
    priors: Mapping[str, str]
    """In words, of each free parameter by name."""
    about: Mapping[str, Any]
    """`NUMBERS`, and seconds: time of each part."""


def free_names(result: FitResult) -> dict[str, int]:
    """Return the place of each free parameter, by name."""
    names, fixed = result.parameters["param"].values, result.parameters["fixed"].values
    return {str(name): n for n, name in enumerate(names.tolist()) if not fixed[n]}


def theta_in(result: FitResult, group: xarray.Dataset) -> Float[np.ndarray, "draw p"]:
    """Return theta of the draws in a group, one chain after the other."""
    draws = group.sizes["chain"] * group.sizes["draw"]
    theta, free = np.tile(result.parameters["optimum"].values, (draws, 1)), free_names(result)
    for name, variable in variable_names(free).items():
        theta[:, free[name]] = group[variable].values.ravel()
    return theta


def variable_names(parameters: Iterable[str]) -> dict[str, str]:
    """Return the variable of each parameter: its name, changed where a file or a group cannot hold it."""
    variables: dict[str, str] = {}
    for name in parameters:
        variable = re.sub(r"[^\w.+-]", "_", name)
        if variable.startswith((".", "__")):
            variable = f"parameter{variable}"
        while variable in OTHERS or variable in variables.values():
            variable += "_"
        variables[name] = variable
    return variables


def tree_of(result: FitResult, draws: Draws, scan: Scan) -> DataTree:
    """Return the groups of a posterior; scan: what was fitted."""
    table, of_bins, s = result.scaling, (*SAMPLE, "bin"), {"units": "s"}
    label = {"bin": ("bin", table["label"].values)}
    scans = {"scan": ("bin", table["scan"].values)} if "scan" in table.variables else {}
    bins = (
        label
        | scans
        | {
            name: ("bin", table[name].values, {"units": DATASET_UNITS[name]})
            for name in ("q", "phi")
        }
    )
    offset, contrast = np.moveaxis(draws.linear_params, -1, 0)
    values = _parameters(result, draws.theta)
    values["contrast"] = (of_bins, contrast, _about("contrast", ""))
    values["offset"] = (of_bins, 1.0 + offset, _about("offset", ""))
    rates, rates_of_fit = _rates(FitView(result, scan), draws)
    likelihood = _sampled({"c2": (of_bins, draws.log_likelihood)}).assign_coords(bins)
    cuts = scan.cuts(result.config["min_lag"])
    cells = {"t1": ("cell", cuts.t1, s), "t2": ("cell", cuts.t2, s)}
    observed = {
        name: (("bin", "cell"), means, {"units": "1"})
        for name, means in {"c2": cuts.c2, "pairs": cuts.count}.items()
    }
    fixed = {name: parameter for name, parameter in result.params.items() if not parameter.vary}
    constant: dict[str, Any] = {
        variable: ((), fixed[name].value, _about(name, fixed[name].unit))
        for name, variable in variable_names(fixed).items()
    }
    constant["time"] = ("frame", scan.time[slice(*scan.frames)], s)
    summary = json.dumps(result.to_dict(), allow_nan=False).encode()
    words = {"long_name": "summary.json of the fit, as UTF-8"}
    constant["fit_summary"] = ("byte", np.frombuffer(summary, np.uint8), words)
    groups = {
        # q and phi beside it would keep ArviZ from making one table
        "posterior": values.merge(rates).assign_coords(label),
        "sample_stats": _sampled({"log_prior": (SAMPLE, draws.log_prior)}),
        "log_likelihood": likelihood.isel(bin=np.flatnonzero(table["ndata"].values > 0)),
        "prior": _parameters(result, draws.prior[None]),
        "observed_data": xarray.Dataset(observed, bins | cells),
        "constant_data": xarray.Dataset(constant, bins).merge(rates_of_fit),
    }
    inputs = result.provenance.inputs
    library = {"inference_library": "homodyne-dask"}
    library["inference_library_version"] = result.provenance.version
    tree = DataTree.from_dict({name: data.assign_attrs(library) for name, data in groups.items()})
    numbers = plain_values({name: draws.about[name] for name in NUMBERS})
    tree.attrs = {name: value for name, value in numbers.items() if value is not None} | library
    tree.attrs |= {
        "format": FORMAT,
        "format_version": VERSION,
        "title": f"posterior of {result.config['model']} fitted to {in_line(inputs['store'])}",
        "model": result.config["model"],
        "convention": result.config["convention"],
        "store": in_line(inputs["store"]),
        "store_sha256": inputs["store_sha256"],
        "priors": json.dumps(dict(draws.priors)),
        "seconds": json.dumps(plain_values(draws.about["seconds"])),
    }
    return tree


def _parameters(result: FitResult, theta: np.ndarray) -> xarray.Dataset:
    free, unit = free_names(result), result.parameters["unit"].values
    return _sampled(
        {
            variable: (SAMPLE, theta[..., free[name]], _about(name, str(unit[free[name]])))
            for name, variable in variable_names(free).items()
        }
    )


def _rates(view: FitView, draws: Draws) -> tuple[xarray.Dataset, xarray.Dataset]:
    """Return the rates of draws and of the fit at some ages [s]; both empty for a model without rates."""
    scan, problem = view.scan, view.model.point.problem
    rates_of_draws = evaluation_of(problem.model).rates_of_draws
    if rates_of_draws is None:
        return xarray.Dataset(), xarray.Dataset()
    fit = rates_in(view)
    frames = some_ages(fit.sizes["t"], AGES)
    fit = fit.isel(t=frames)
    units = {"J": "1/s" if np.isnan(scan.q).any() else "Å²/s", "gamma_dot": "1/s", "strain": ""}
    age = {"age": ("age", fit["t"].values, {"units": "s"})}
    of_draws, of_fit, (*shape, p) = {}, {}, draws.theta.shape
    theta = draws.theta.reshape(-1, p)
    for name, value in rates_of_draws(problem, theta, scan.time, scan.frames, frames).items():
        sampled = value.reshape(*shape, -1) * quoted_sign(view.result, name)
        of_draws[name] = ((*SAMPLE, "age"), sampled, _about(name, units[name]))
        for suffix in ("", "_stderr", "_low_95", "_high_95"):
            curve = fit[f"{name}{suffix}"].values
            of_fit[f"{name}_fit{suffix}"] = ("age", curve, {"units": units[name] or "1"})
    return xarray.Dataset(of_draws, age), xarray.Dataset(of_fit, age)


def _about(name: str, unit: str) -> dict[str, str]:
    return {"long_name": name, "units": unit or "1"}


def _sampled(variables: dict[str, Any]) -> xarray.Dataset:
    shape = next(iter(variables.values()))[1].shape
    coords = {name: (name, np.arange(n)) for name, n in zip(SAMPLE, shape, strict=False)}
    return xarray.Dataset(variables, coords)


def write_netcdf(tree: DataTree, path: str | Path) -> None:
    """Write a tree as netCDF-4, atomically, and its checksum after it, where readers of HDF5 do not look.

    It is made in memory: HDF5 crashes where it cannot write to a disk.
    """
    path = path_of("path", path)
    if path.suffix.lower() != ".nc":
        raise OptionError(f"{path} cannot be written as netCDF: give a name that ends with .nc")
    content = tree.to_netcdf(engine="h5netcdf")
    assert content is not None  # no path was given
    replace_file(path, bytes(content) + _digest(bytes(content)))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def read_tree(path: Path) -> DataTree:
    """Return the tree of a posterior, all in memory; raises SourceError for what is none."""
    try:
        content, checksum = read_with_tail(path, MAX_BYTES, _SIZE)
        if _digest(content) != checksum:
            raise SourceError(
                f"{path} is not a {FORMAT} as it was written (its checksum does not match), but damaged or "
                f"another file: {_REMEDY}"
            )
        check_contents(path)
        with xarray.open_datatree(path, engine="h5netcdf", phony_dims="sort") as opened:
            declared = opened.nbytes  # of all groups
            if declared > len(content):  # it is not compressed
                raise ValueError(f"it declares {declared:,} bytes in {len(content):,}")
            tree = opened.load()
    except OSError as e:
        raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {_REMEDY}") from e
    except (ValueError, KeyError, TypeError, RuntimeError) as e:
        raise SourceError(f"{path} is damaged, {why_unreadable(e)}: {_REMEDY}") from e
    if str(tree.attrs.get("format")) != FORMAT:
        raise SourceError(f"{path} is not a {FORMAT}: {_REMEDY}")
    if tree.attrs.get("format_version") != VERSION:
        raise SourceError(
            f"{path} has format version {tree.attrs.get('format_version')}, but this program reads "
            f"{VERSION}: recreate it with `homodyne-dask posterior`"
        )
    return tree
