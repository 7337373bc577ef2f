"""The draws of a posterior as the sampler returns them, and as a DataTree in the form of ArviZ 1.

Groups: posterior, sample_stats, log_likelihood, prior, observed_data, constant_data. Numbers that are not
known or not finite are absent from the attributes.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.errors import in_line
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.models.rate_forms import some_ages
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fit_result import DATASET_UNITS
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import quoted_sign, rates_in
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.store.scan import Scan

FORMAT, VERSION = "homodyne_dask posterior", 2
NUMBERS = (
    *("adjust", "adjust_note", "design_effect", "dof", "r_hat", "effective_draws", "seed"),
    *("columns", "checked", "largest_error"),
)
"""Fields of `PosteriorDraws` that files and summary.json hold as they are."""


@dataclass(frozen=True)
class PosteriorDraws:
    """Draws of the posterior of one fit, in chains.

    Parameters are in the order and the units of the model, bins in those of the fit.
    """

    theta: Float[np.ndarray, "chain draw p"]
    """All parameters of the model; fixed ones are constant."""
    linear_params: Float[np.ndarray, "chain draw bin 2"]
    """(offset - 1, contrast), drawn from their conditional; NaN for a bin without pairs."""
    log_likelihood: Float[np.ndarray, "chain draw bin"]
    """Of each bin, adjusted as the posterior is; NaN for a bin without pairs."""
    log_prior: Float[np.ndarray, "chain draw"]
    prior: Float[np.ndarray, "prior_draw p"]
    """Draws of the prior, as many as one likes; fixed parameters are constant."""
    priors: Mapping[str, str]
    """The prior of each free parameter in words, by name: 'normal, 2500 ± 300 Å²/s'."""
    r_hat: float
    """The largest of all parameters."""
    effective_draws: float
    """The smallest of all parameters, of bulk and tails."""
    adjust: Literal["robust", "magnitude", "none"]
    """Whether the likelihood has the curvature of the covariance of stderr; magnitude: its size only, with
    too few independent bins for its directions; none: the naive posterior of uncorrelated noise."""
    adjust_note: str
    """One sentence for the report on what was done."""
    design_effect: float
    """The mean factor by which the log-likelihood was divided."""
    dof: float
    """Degrees of freedom of the t kernel; inf for a Gaussian one."""
    columns: int
    """Columns g of the wide Gram, from which the likelihood is interpolated."""
    checked: int
    """Draws that were compared with the likelihood of all pairs."""
    largest_error: float
    """The largest difference of their log densities."""
    seed: int
    seconds: Mapping[str, float]
    """Time of each part: columns, pass, sampling, check, total."""

    @property
    def flat(self) -> Float[np.ndarray, "all p"]:
        """The parameters of all draws of all chains, one after the other."""
        return self.theta.reshape(-1, self.theta.shape[-1])


def free_names(result: FitResult) -> dict[str, int]:
    """Return the place of each free parameter, by name."""
    table = result.parameters
    names = table["param"].values.tolist()
    return {str(name): n for n, name in enumerate(names) if not table["fixed"].values[n]}


AGES = 50
"""Most ages at which rates are kept."""


def _rates(view: FitView, draws: PosteriorDraws) -> tuple[xarray.Dataset, xarray.Dataset]:
    """Return the rates of draws and of the fit at some ages [s]; both empty for a model without rates."""
    scan, problem = view.scan, view.model.at.problem
    rates_of_draws = evaluation_of(problem.model).rates_of_draws
    if rates_of_draws is None:
        return xarray.Dataset(), xarray.Dataset()
    fit = rates_in(view)
    at = some_ages(fit.sizes["t"], AGES)
    fit = fit.isel(t=at)
    units = {"J": "1/s" if np.isnan(scan.q).any() else "Å²/s", "gamma_dot": "1/s", "strain": ""}
    age = {"age": ("age", fit["t"].values, {"units": "s"})}
    of_draws, of_fit = {}, {}
    for name, value in rates_of_draws(problem, draws.flat, scan.time, scan.frames, at).items():
        sampled = value.reshape(*draws.theta.shape[:2], -1) * quoted_sign(view.result, name)
        of_draws[name] = ((*SAMPLE, "age"), sampled, _about(name, units[name]))
        for suffix in ("", "_stderr", "_low_95", "_high_95"):
            curve = fit[f"{name}{suffix}"].values
            of_fit[f"{name}_fit{suffix}"] = ("age", curve, {"units": units[name] or "1"})
    return xarray.Dataset(of_draws, age), xarray.Dataset(of_fit, age)


OTHERS = (
    *("chain", "draw", "bin", "age", "quantile", "cell", "frame", "byte", "contrast", "offset"),
    *("J", "gamma_dot", "strain", "c2", "lp", "q", "phi", "log_prior"),
)
"""What else the groups of a posterior hold."""
SAMPLE = ("chain", "draw")


def tree_of(result: FitResult, draws: PosteriorDraws, scan: Scan) -> DataTree:
    """Return the groups of a posterior; scan: what was fitted."""
    rates, rates_of_fit = _rates(FitView(result, scan), draws)
    stats = {"log_prior": (SAMPLE, draws.log_prior)}
    bins, there = _bins(result), np.flatnonzero(result.scaling["ndata"].values > 0)
    linear = {
        "contrast": ((*SAMPLE, "bin"), draws.linear_params[..., 1], _about("contrast", "")),
        "offset": ((*SAMPLE, "bin"), 1.0 + draws.linear_params[..., 0], _about("offset", "")),
    }
    posterior = _parameters(result, draws.theta).assign(linear).merge(rates)
    likelihood = {"c2": ((*SAMPLE, "bin"), draws.log_likelihood)}  # of the bins with pairs
    groups = {
        # q and phi beside it would keep ArviZ from making one table
        "posterior": posterior.assign_coords(bin=bins["bin"]),
        "sample_stats": _sampled(stats, draws.theta.shape),
        "log_likelihood": _sampled(likelihood, draws.theta.shape)
        .assign_coords(bins)
        .isel(bin=there),
        "prior": _parameters(result, draws.prior[None]),
        "observed_data": _observed(result, scan),
        "constant_data": _constant(result, scan).merge(rates_of_fit),
    }
    about = {
        "inference_library": "homodyne-dask",
        "inference_library_version": result.provenance.version,
    }
    tree = DataTree.from_dict({name: group.assign_attrs(about) for name, group in groups.items()})
    tree.attrs = _attributes(result, draws) | about
    return tree


def variable_names(parameters: Iterable[str]) -> dict[str, str]:
    """Return the variable of each parameter: its name, changed where a file or a group cannot hold it."""
    found: dict[str, str] = {}
    for name in parameters:
        variable = re.sub(r"[^\w.+-]", "_", name)
        if variable.startswith((".", "__")):
            variable = f"parameter{variable}"
        while variable in OTHERS or variable in found.values():
            variable += "_"
        found[name] = variable
    return found


def theta_in(result: FitResult, group: xarray.Dataset) -> Float[np.ndarray, "draw p"]:
    """Return all parameters of the draws in a group, one chain after the other; fixed ones are constant."""
    draws = group.sizes["chain"] * group.sizes["draw"]
    theta, free = np.tile(result.parameters["optimum"].values, (draws, 1)), free_names(result)
    for name, variable in variable_names(free).items():
        theta[:, free[name]] = group[variable].values.ravel()
    return theta


def _parameters(result: FitResult, theta: np.ndarray) -> xarray.Dataset:
    """Return theta (chain, draw, p) as one variable for each free parameter, with its unit."""
    free = free_names(result)
    unit = result.parameters["unit"].values
    return _sampled(
        {
            variable: (SAMPLE, theta[..., free[name]], _about(name, str(unit[free[name]])))
            for name, variable in variable_names(free).items()
        },
        theta.shape,
    )


def _about(name: str, unit: str) -> dict[str, str]:
    return {"long_name": name, "units": unit or "1"}


def _sampled(variables: dict[str, Any], shape: tuple[int, ...]) -> xarray.Dataset:
    coords = {name: (name, np.arange(n)) for name, n in zip(SAMPLE, shape, strict=False)}
    return xarray.Dataset(variables, coords)


def _bins(result: FitResult) -> dict[str, Any]:
    """Return the coordinates of the bins: bin is the beamline's number."""
    table = result.scaling
    return {"bin": ("bin", table["label"].values)} | {
        name: ("bin", table[name].values, {"units": DATASET_UNITS[name]}) for name in ("q", "phi")
    }


def _observed(result: FitResult, scan: Scan) -> xarray.Dataset:
    """Return c2 averaged over cells of age and lag, of which the figure of the cuts is drawn."""
    cuts = scan.cuts(result.config["min_lag"])
    return xarray.Dataset(
        {
            "c2": (("bin", "cell"), cuts.c2, {"units": "1"}),
            "pairs": (("bin", "cell"), cuts.count, {"units": "1"}),
        },
        _bins(result)
        | {"t1": ("cell", cuts.t1, {"units": "s"}), "t2": ("cell", cuts.t2, {"units": "s"})},
    )


def _constant(result: FitResult, scan: Scan) -> xarray.Dataset:
    """Return times, bins, fixed parameters, and the fit itself."""
    fixed = {name: one for name, one in result.params.items() if not one.vary}
    held: dict[str, Any] = {
        variable: ((), fixed[name].value, _about(name, fixed[name].unit))
        for name, variable in variable_names(fixed).items()
    }
    held["time"] = ("frame", scan.time[slice(*scan.frames)], {"units": "s"})
    summary = json.dumps(result.to_dict(), allow_nan=False).encode()
    about = {"long_name": "summary.json of the fit, as UTF-8"}
    held["fit_summary"] = ("byte", np.frombuffer(summary, np.uint8), about)
    return xarray.Dataset(held, _bins(result))


def _attributes(result: FitResult, draws: PosteriorDraws) -> dict[str, Any]:
    numbers = plain_values({name: getattr(draws, name) for name in NUMBERS})
    known = {name: value for name, value in numbers.items() if value is not None}
    store = in_line(result.provenance.inputs["store"])
    return known | {
        "format": FORMAT,
        "format_version": VERSION,
        "title": f"posterior of {result.config['model']} fitted to {store}",
        "model": result.config["model"],
        "convention": result.config["convention"],
        "store": store,
        "store_sha256": result.provenance.inputs["store_sha256"],
        "priors": json.dumps(dict(draws.priors)),
        "seconds": json.dumps(plain_values(dict(draws.seconds))),
    }
