"""The backend of models with tied parameters: that of the model itself, and the chain rule.

Derivatives of f by its parameters are combinations of those by all parameters of the model that is tied, so
that its Gram is JᵀMJ with the derivatives J of the expressions, which JAX takes. It has no kernel of its own.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend_interface import Evaluation, ModelPoint, RateCurve
from homodyne_dask.kernels.decayed_subblocks import SubBlocks
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.models.tied import TiedModel, Ties


@dataclass(frozen=True)
class TiedPoint:
    """The point of the model that is tied, at the parameters that follow."""

    problem: Problem
    theta: Float[np.ndarray, " m"]
    base: ModelPoint

    @cached_property
    def slopes(self) -> Float[np.ndarray, "p m"]:
        """The derivatives of all parameters by those that are not tied."""
        return slopes(self.problem.model.ties, self.theta)

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, active ones first."""
        return self.base.sub_blocks(q, i0, j0, T)


def slopes(ties: Ties, theta: Float[np.ndarray, " m"]) -> Float[np.ndarray, "p m"]:
    """Return the derivatives of all parameters of a model by those that are not tied, by JAX."""
    from homodyne_dask.kernels.autodiff import slopes_of_ties  # loads JAX, which views do without

    return slopes_of_ties(ties, theta)


def of_rest(whole: Gram, slopes: Float[np.ndarray, "p m"]) -> Gram:
    """Return the Gram over 1, y - 1, f and the derivatives by parameters that are not tied."""
    p, m = slopes.shape
    columns = np.eye(p + 3, m + 3)
    columns[3:, 3:] = slopes
    moments = columns.T @ whole.moments @ columns
    return whole._replace(moments=0.5 * (moments + np.swapaxes(moments, -1, -2)))


def untied(problem: Problem) -> Problem:
    """Return the problem of the model that is tied, as it was when the problem was made."""
    base = copy(problem)  # `replace` would look again at what functions read
    object.__setattr__(base, "model", problem.model.base)
    return base


def averages_of_ties(model: TiedModel, of_all: Any) -> Any:
    """Return a function that returns the Gram at theta, from one that takes all parameters."""

    def gram(theta: Float[np.ndarray, " m"]) -> Gram:
        whole = of_all(model.ties.expand(np.asarray(theta, float)))
        return of_rest(whole, slopes(model.ties, theta))

    return gram


def tied[E: Evaluation](of: E) -> E:
    """Return the backend, or the evaluation, of models that are tied, from that of those models."""

    def point(problem: Problem, theta: Any, *where: Any, **more: Any) -> TiedPoint:
        theta = np.asarray(theta, float)
        base = of.point(untied(problem), problem.model.ties.expand(theta), *where, **more)
        return TiedPoint(problem, theta, base)

    def at_base(function: Any) -> Any:
        return function and (lambda at, *more: function(at.base, *more))

    def derivatives(at: TiedPoint, *where: Any) -> tuple[np.ndarray, np.ndarray]:
        f, of_all = of.f_and_derivatives_at(at.base, *where)
        return f, np.einsum("bp...,pm->bm...", of_all, at.slopes)

    def rates(at: TiedPoint, *where: Any) -> dict[str, RateCurve]:
        names, free = at.base.problem.model.names, at.problem.model.names
        assert of.rates is not None
        return {
            name: curve._replace(
                gradient=at.slopes[[names.index(one) for one in curve.parameters]].T
                @ curve.gradient,
                parameters=free,
            )
            for name, curve in of.rates(at.base, *where).items()
        }

    def rates_of_draws(problem: Problem, thetas: np.ndarray, *where: Any) -> dict[str, np.ndarray]:
        assert of.rates_of_draws is not None
        expanded = np.stack([problem.model.ties.expand(theta) for theta in thetas])
        return of.rates_of_draws(untied(problem), expanded, *where)

    changes: dict[str, Any] = {
        "point": point,
        "f_at": at_base(of.f_at),
        "f_and_derivatives_at": derivatives,
        "rates": of.rates and rates,
        "rates_of_draws": of.rates_of_draws and rates_of_draws,
        "sign_at": at_base(of.sign_at),
    }
    return replace(of, **changes)


def tied_kernels(of: Any) -> dict[str, Any]:
    """Return what a backend has beside an evaluation, of models that are tied."""

    def gram(at: TiedPoint, block: Block, data: Any = None) -> tuple[Gram, Any]:
        whole, sums = of.gram(at.base, block, data)
        return of_rest(whole, at.slopes), sums

    def robust_gram(at: TiedPoint, block: Block, linear_params: Any) -> Gram:
        return of_rest(of.robust_gram(at.base, block, linear_params), at.slopes)

    def cell_sums(at: TiedPoint, block: Block, cell: Any, sums: np.ndarray) -> np.ndarray:
        p = len(at.slopes)
        of_all = of.cell_sums(at.base, block, cell, np.zeros((*sums.shape[:-1], 1 + p)))
        return sums + np.concatenate([of_all[..., :1], of_all[..., 1:] @ at.slopes], axis=-1)

    def points(function: Any) -> Any:
        return lambda points, *more: function([at.base for at in points], *more)

    def f_of_theta(theta: Any, at: Any, model: TiedModel, convention: Any) -> Any:
        return of.f_of_theta(model.ties.expand(theta), at, model.base, convention)

    return {
        "gram": gram,
        "robust_gram": robust_gram,
        "candidate_grams": points(of.candidate_grams),
        "wide_gram": points(of.wide_gram),
        "cell_sums": cell_sums,
        "pair_times": lambda problem, time: of.pair_times(untied(problem), time),
        "f_of_theta": f_of_theta,
        "adequate": lambda at, *where: of.adequate(at.base, *where),
        "correlation_time": lambda at, *where: of.correlation_time(at.base, *where),
    }
