"""Models given as f with a function of free form, of splines, among their parameters.

    stretched_free        f = exp(-2 x^γ), x = Γ(½ (t1 + t2)) |t2 - t1|: stretched_ageing without its formula
    distribution_of_rates    f = g², g = Σ w_k exp(-Γ_k |t2 - t1|), the weights w_k > 0 of sum 1

The logarithm of the weights is a sum of splines of ln Γ, whose second differences are penalized as those of
rates are: weights cannot be negative, and a lognormal distribution of any width is among them (a smooth
density by its penalized logarithm: Good and Gaskins 1971; of rates from light scattering: Provencher 1982).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.spline_basis import LogDensityForm, SplineForm
from homodyne_dask.models.stretched_exponentials import STRETCHING, decay
from homodyne_dask.models.user_defined import Bin, SeparableModel

RATE, LOG_DENSITY = "rate", "log_density"
THIRD = 10.0
"""Weight of third differences beside second ones: without them distributions have tails that are powers of
the rate, and wrong means."""
LEAST_STRENGTH = 1 / 256
"""Smallest λ/φ. Data of a single rate fit all narrow peaks alike, and λ fell without end: a peak as narrow
as the distance of two nodes has second differences of 16."""
START_WIDTHS, START_SHARES = (0.3, 0.7, 1.5), (0.2, 0.5, 0.8)
"""In ln Γ, and of the first of two, of lognormal distributions from which fits may start."""


@dataclass(frozen=True, eq=False, repr=False)
class SplineModel(SeparableModel):
    """Model given as f, some of whose parameters are coefficients of splines."""

    of: str = field(kw_only=True)
    """What the splines are: `RATE` [1/s] against age [s], or `LOG_DENSITY` against ln Γ."""
    form: SplineForm = field(kw_only=True)
    made: Callable[[Any], "SplineModel"] = field(kw_only=True)
    """Returns the model with other splines."""

    @property
    def splines(self) -> dict[str, SplineForm]:
        """The splines by name."""
        return {self.of: self.form}

    def current(self) -> Self:
        """Return itself: its functions are those of this package."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.made, (self.form,)


def _rate_of_age(form: SplineForm, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    xp = theta.__array_namespace__()
    rate = xp.tensordot(theta[: form.size], form.basis(0.5 * (t1 + t2)), 1)
    return decay(rate * abs(t2 - t1), theta[form.size])


def stretched_free(form: SplineForm) -> SplineModel:
    """Return a stretched exponential whose rate at the mean age of a pair is Σ rate_k B_k(age)."""
    rates = [Parameter(f"{RATE}_{n + 1}", "1/s", (0.0, np.inf)) for n in range(form.size)]
    return SplineModel(
        "stretched_free",
        (*rates, STRETCHING),
        partial(_rate_of_age, form),
        simpler="stretched_ageing",
        isotropic=True,
        digest=f"stretched_free {form}",
        of=RATE,
        form=form,
        made=stretched_free,
    )


def weights_of(form: LogDensityForm, theta: Float[Any, " size"]) -> Float[Any, " node"]:
    """Return the weight of each of the nodes, of sum 1; of NumPy or JAX as theta is."""
    xp = theta.__array_namespace__()
    log = theta @ form.basis(form.nodes)
    weight = xp.exp(log - log.max())
    return weight / weight.sum()


def slopes_of(
    form: LogDensityForm, weight: Float[np.ndarray, " node"]
) -> Float[np.ndarray, "size node"]:
    """Return the derivatives of the logarithms of the weights by the coefficients."""
    basis = form.basis(form.nodes)
    return basis - (basis @ weight)[:, None]


def _distributed(form: LogDensityForm, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    lag = abs(t2 - t1)
    xp, rates = lag.__array_namespace__(), np.exp(form.nodes).reshape(-1, *[1] * lag.ndim)
    return xp.tensordot(weights_of(form, theta), xp.exp(-rates * lag), 1) ** 2


def distribution_of_rates(form: LogDensityForm) -> SplineModel:
    """Return the mean field of independent rates whose weights w have ln w = Σ log_density_k B_k(ln Γ).

    All coefficients may be shifted without a change of f: the middle one is 0.
    """
    middle = form.size // 2
    coefficients = [
        Parameter(f"{LOG_DENSITY}_{n + 1}", constant=0.0 if n == middle else None)
        for n in range(form.size)
    ]
    return SplineModel(
        "distribution_of_rates",
        tuple(coefficients),
        partial(_distributed, form),
        simpler="cumulant",
        isotropic=True,
        digest=f"distribution_of_rates {form}",
        of=LOG_DENSITY,
        form=form,
        made=distribution_of_rates,
    )


def lognormals(form: LogDensityForm) -> Float[np.ndarray, "point size"]:
    """Return coefficients of one and of two lognormal distributions, of some widths, shares and rates."""
    x, middle, found = form.centres, form.size // 2, []
    peaks = {
        (at, width): -(((x - at) / width) ** 2) / 2 for at in x[1:-1:2] for width in START_WIDTHS
    }
    for (first, width), here in peaks.items():
        found.append(here)
        for (second, other), there in peaks.items():
            if first < second and width == other:
                found += [np.logaddexp(np.log(p / (1 - p)) + here, there) for p in START_SHARES]
    return np.array([of - of[middle] for of in found])


STRETCHED_FREE = stretched_free(SplineForm())
"""A stretched exponential at a rate of free form."""
DISTRIBUTION = distribution_of_rates(LogDensityForm())
"""Independent rates of a smooth distribution."""
SPLINE_MODELS = STRETCHED_FREE, DISTRIBUTION
