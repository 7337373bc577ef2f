"""True parameters of simulated data, where they compare with the fit."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.models import MODELS, convention_named
from homodyne_dask.models.transport import Rates, true_rates
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.intervals import normal_deviate
from homodyne_dask.results.data.result_tables import plain_rows


def truth_of(result: FitValues) -> dict[str, float] | None:
    """Return the true parameters if model, convention and gap of simulation and fit are the same."""
    truth = result.provenance.truth
    names = result.parameters["param"].values.tolist()
    if not truth or truth_mismatch(truth, result.config, names):
        return None
    return truth["parameters"]


def pulls(result: FitValues) -> dict[str, float]:
    """Return (value - truth) / stderr by parameter, as the normal deviate of the same probability.

    That of Student's t for the degrees of freedom of stderr; parameters without stderr have none.
    Differences of periodic parameters are the shorter ones.
    """
    truth, table = truth_of(result) or {}, result.parameters
    away = {}
    for name, row in plain_rows(table, "param").items():
        if name in truth and math.isfinite(row["stderr"]) and row["stderr"] > 0:
            period = result.config["periods"].get(name, math.inf)
            shift = math.remainder(row["value"] - truth[name], period) / row["stderr"]
            away[name] = float(normal_deviate(shift, row["dof"]))
    return away


def true_rates_of(result: FitValues, t: Float[np.ndarray, " n"]) -> Rates | None:
    """Return J [Å²/s] and gamma_dot [1/s] of simulated data at times above 0, of whatever form they are.

    None where they are not known, and where convention or gap of simulation and fit differ.
    """
    truth = result.provenance.truth
    if not truth or _other_setting(truth, result.config):
        return None
    convention = convention_named(result.config["convention"])
    return true_rates(truth.get("model", ""), truth["parameters"], t, convention)


def truth_mismatch(
    truth: Mapping[str, Any] | None, config: Mapping[str, Any], names: Iterable[str]
) -> tuple[str, str] | None:
    """Return what of a simulation differs from a fit, and its value there; None for nothing.

    truth: of the simulation. config: the options of the fit. names: its parameters.
    """
    if not truth:
        return None
    model, same = truth.get("model"), {*truth["parameters"]} == {*names}
    if not same or model not in (None, config["model"]):
        return "other parameters of" if model == config["model"] else "model", str(model)
    return _other_setting(truth, config)


def _other_setting(truth: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str] | None:
    if not getattr(MODELS.get(config["model"]), "shear", True):
        return None
    if truth.get("convention") not in (None, config["convention"]):
        return "convention", truth["convention"]
    if truth.get("gap_angstrom") not in (None, config["gap_angstrom"]):
        return "gap", f"{truth['gap_angstrom'] / 1e4:g} um"
    return None
