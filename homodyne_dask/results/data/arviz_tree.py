"""A posterior as a DataTree in the form of ArviZ 1, and back.

Groups: posterior, sample_stats, log_likelihood, prior, observed_data, constant_data. Numbers that are not
known or not finite are absent from the attributes.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.errors import in_line
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.models.rate_forms import some_ages
from homodyne_dask.results.data.fit_result import FitResult, from_summary
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.plain_data import plain_values
from homodyne_dask.results.data.posterior_draws import FORMAT, VERSION, PosteriorDraws, free_names
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.data.result_tables import DATASET_UNITS
from homodyne_dask.store.scan import Scan

AGES = 50
"""Most ages at which rates are kept."""


@dataclass(frozen=True)
class RateDraws:
    """The rates of draws at some ages, by name: J, and with shear gamma_dot and strain."""

    age: Float[np.ndarray, " age"]
    """s."""
    values: dict[str, Float[np.ndarray, "draw age"]]
    fit: xarray.Dataset
    """`FitResult.rates` at the same ages."""
    unknown_q: bool
    """J is then q²J, in 1/s."""

    @property
    def units(self) -> dict[str, str]:
        """The unit of each rate."""
        return {"J": "1/s" if self.unknown_q else "Å²/s", "gamma_dot": "1/s", "strain": ""}


def rates_of_draws(
    result: FitResult, scan: Scan, thetas: Float[np.ndarray, "draw p"]
) -> RateDraws | None:
    """Return the rates of draws; None of models that have none."""
    view = FitView(result, scan)
    problem = view.model.at.problem
    of = evaluation_of(problem.model).rates_of_draws
    if of is None:
        return None
    fit = rates_in(view)
    at = some_ages(fit.sizes["t"], AGES)
    values = of(problem, thetas, scan.time, scan.frames, at)
    chosen = fit.isel(t=at)
    return RateDraws(chosen["t"].values, values, chosen, bool(np.isnan(scan.q).any()))


OTHERS = (
    "chain", "draw", "bin", "age", "quantile", "cell", "frame", "byte", "contrast", "offset", "J",
    "gamma_dot", "strain", "c2", "lp", "q", "phi", "log_prior",
)  # fmt: skip
"""What else the groups of a posterior hold."""
SAMPLE = ("chain", "draw")
_NUMBERS = (
    "pareto_k", "effective_draws", "adjust", "adjust_note", "dof", "columns", "checked", "largest_error",
    "seed",
)  # fmt: skip
_LOST = {"pareto_k": math.nan, "effective_draws": math.nan, "dof": math.inf,
         "largest_error": math.nan}  # fmt: skip
"""What an attribute that is absent stands for."""


def tree_of(result: FitResult, draws: PosteriorDraws, scan: Scan) -> DataTree:
    """Return the groups of a posterior; scan: what was fitted."""
    rates = rates_of_draws(result, scan, draws.flat)
    groups = {
        "posterior": _posterior(result, draws, rates),
        "sample_stats": _sample_stats(draws),
        "log_likelihood": _log_likelihood(result, draws),
        "prior": _parameters(result, draws.prior[None]),
        "observed_data": _observed(result, scan),
        "constant_data": _constant(result, draws, scan, rates),
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


def draws_in(tree: DataTree) -> tuple[FitResult, PosteriorDraws]:
    """Return the fit and the draws of a posterior from its groups."""
    posterior, constant = tree["posterior"].dataset, tree["constant_data"].dataset
    result, attributes = (
        from_summary(json.loads(constant["fit_summary"].values.tobytes())),
        tree.attrs,
    )
    bins = len(result.scaling["label"])
    likelihood = tree["log_likelihood"].dataset["c2"]
    log_likelihood = np.full((*likelihood.shape[:2], bins), np.nan)
    log_likelihood[..., _with_pairs(result)] = likelihood.values
    stats = tree["sample_stats"].dataset
    linear = [posterior["offset"].values - 1.0, posterior["contrast"].values]
    known: dict[str, Any] = {name: attributes.get(name, _LOST.get(name)) for name in _NUMBERS}
    return result, PosteriorDraws(
        theta=_theta(result, posterior),
        linear_params=np.stack(linear, axis=-1),
        log_likelihood=log_likelihood,
        log_prior=stats["log_prior"].values,
        prior=_theta(result, tree["prior"].dataset)[0],
        priors=json.loads(attributes["priors"]),
        sample_stats={str(n): stats[n].values for n in stats.data_vars if n != "log_prior"},
        factor=attributes.get("design_effect", math.nan),
        seconds=json.loads(attributes["seconds"]),
        **{
            name: value.item() if hasattr(value, "item") else value for name, value in known.items()
        },
    )


def _theta(result: FitResult, group: xarray.Dataset) -> np.ndarray:
    free, value = free_names(result), result.parameters["value"].values
    theta = np.tile(value, (group.sizes["chain"], group.sizes["draw"], 1))
    for name, variable in variable_names(free).items():
        theta[..., free[name]] = group[variable].values
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


def _with_pairs(result: FitResult) -> np.ndarray:
    return np.flatnonzero(result.scaling["ndata"].values > 0)


def _posterior(result: FitResult, draws: PosteriorDraws, rates: RateDraws | None) -> xarray.Dataset:
    shape, dims = draws.theta.shape, (*SAMPLE, "bin")
    linear = {
        "contrast": (dims, draws.linear_params[..., 1], _about("contrast", "")),
        "offset": (dims, 1.0 + draws.linear_params[..., 0], _about("offset", "")),
    }
    label = _bins(result)["bin"]  # q and phi beside it would keep ArviZ from making one table
    group = _parameters(result, draws.theta).assign(linear).assign_coords(bin=label)
    if rates is None:
        return group
    curves = {
        name: ((*SAMPLE, "age"), value.reshape(*shape[:2], -1), _about(name, rates.units[name]))
        for name, value in rates.values.items()
    }
    return group.assign(curves).assign_coords(age=("age", rates.age, {"units": "s"}))


def _sample_stats(draws: PosteriorDraws) -> xarray.Dataset:
    stats = {name: (SAMPLE, np.asarray(of)) for name, of in draws.sample_stats.items()}
    return _sampled(stats | {"log_prior": (SAMPLE, draws.log_prior)}, draws.theta.shape)


def _log_likelihood(result: FitResult, draws: PosteriorDraws) -> xarray.Dataset:
    """Return it of the bins with pairs: one that is unknown has none."""
    there = _with_pairs(result)
    of_bins = {"c2": ((*SAMPLE, "bin"), draws.log_likelihood[..., there])}
    bins = {
        name: (dims, values[there], *more) for name, (dims, values, *more) in _bins(result).items()
    }
    return _sampled(of_bins, draws.theta.shape).assign_coords(bins)


def _observed(result: FitResult, scan: Scan) -> xarray.Dataset:
    """Return c2 averaged over cells of age and lag, of which the figure of the cuts is drawn."""
    cuts = scan.cuts(result.config["min_lag"])
    return xarray.Dataset(
        {
            "c2": (("bin", "cell"), cuts.c2, {"units": "1"}),
            "pairs": (("bin", "cell"), cuts.count, {"units": "1"}),
        },
        _bins(result)
        | {
            "t1": ("cell", cuts.t1, {"units": "s"}),
            "t2": ("cell", cuts.t2, {"units": "s"}),
        },
    )


def _constant(
    result: FitResult, draws: PosteriorDraws, scan: Scan, rates: RateDraws | None
) -> xarray.Dataset:
    """Return times, bins, fixed parameters, the rates of the fit, and the fit itself."""
    table, free = result.parameters, free_names(result)
    fixed = {str(name): n for n, name in enumerate(table["param"].values) if name not in free}
    held: dict[str, Any] = {
        variable: ((), table["value"].values[n], _about(name, str(table["unit"].values[n])))
        for (name, variable), n in zip(variable_names(fixed).items(), fixed.values(), strict=True)
    }
    held["time"] = ("frame", scan.time[slice(*scan.frames)], {"units": "s"})
    summary = json.dumps(result.to_dict(), allow_nan=False).encode()
    about = {"long_name": "summary.json of the fit, as UTF-8"}
    held["fit_summary"] = ("byte", np.frombuffer(summary, np.uint8), about)
    group = xarray.Dataset(held, _bins(result))
    if rates is None:
        return group
    for name in rates.values:
        unit = {"units": rates.units[name] or "1"}
        for suffix in ("", "_stderr", "_low_95", "_high_95"):
            group[f"{name}_fit{suffix}"] = ("age", rates.fit[f"{name}{suffix}"].values, unit)
    return group.assign_coords(age=("age", rates.age, {"units": "s"}))


def _attributes(result: FitResult, draws: PosteriorDraws) -> dict[str, Any]:
    numbers = {name: getattr(draws, name) for name in _NUMBERS} | {"design_effect": draws.factor}
    known = {name: value for name, value in plain_values(numbers).items() if value is not None}
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
