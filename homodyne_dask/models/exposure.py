"""Contrast of speckle that blurs in an exposure: exposure(model), the mean of f over pairs of times in it.

    f_T = ∫∫ f(|t' - t''|) dt' dt'' / T² = 2/T ∫ (1 - τ/T) f(τ) dτ, both from 0 to T

(Bandyopadhyay et al. 2005; Li et al. 2014). T stands in place of the lag, and f depends on the lag alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.models.derived_models import (
    CompositeModel,
    Operand,
    f_of,
    tables_of,
)
from homodyne_dask.models.user_defined import Bin, SeparableModel

HALVINGS, POINTS = 24, 16
"""Intervals of the exposure, each half as long as the next, and points of Gauss and Legendre in each: for
decays of any speed, stretched ones too, and for fewer than ten turns of a fringe in an exposure."""


def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Return shares of the exposure and their weights, of sum 1."""
    ends = np.append(0.0, 0.5 ** np.arange(HALVINGS)[::-1])
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    half = np.diff(ends)[:, None] / 2
    share = (ends[:-1, None] + half * (1 + points)).ravel()
    return share, 2 * (1 - share) * (half * weights).ravel()


SHARES, WEIGHTS = _rule()


@dataclass(frozen=True, eq=False, repr=False)
class ExposureModel(SeparableModel):
    within: Operand = field(kw_only=True)
    """The model of f at each lag."""

    @property
    def needs_gap(self) -> bool:
        return self.within.needs_gap

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        return self.within.functions if isinstance(self.within, SeparableModel) else ()

    def current(self) -> Self:
        current = exposure(self.within.current())
        return self if current.digest == self.digest else cast(Self, current)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return exposure, (self.within,)


def exposure(model: Any) -> ExposureModel:
    """Return the model of contrast against exposure; a fit of such a table makes it of the model given."""
    integrals = isinstance(model, SeparableModel) and not isinstance(model, CompositeModel)
    if isinstance(model, ExposureModel) or model.splines or (integrals and model.precompute):
        raise OptionError(
            f"{model.name} cannot be averaged over an exposure: use a model of the lag alone, such as "
            f"brownian or stretched"
        )
    return ExposureModel(
        f"exposure({model.name})",
        model.parameters,
        partial(_mean, model),
        partial(tables_of, model),
        isotropic=model.isotropic,
        digest=f"exposure {model.digest}" if model.digest else "",
        ordered_times=model.ordered_times,
        within=model,
    )


def _mean(model: Operand, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    import jax  # it loads while workers start, and not with the names of models

    def added(total: Any, point: Any) -> tuple[Any, None]:
        share, weight = point
        # integrals of constant rates are linear in time
        later = jax.tree.map(lambda first, last: first + share * (last - first), t1, t2)
        return total + weight * f_of(model, theta, t1, later, bin), None

    start = jax.numpy.zeros_like(f_of(model, theta, t1, t2, bin))
    return jax.lax.scan(added, start, (SHARES, WEIGHTS))[0]
