"""The backend of models with tied parameters: that of the model itself, and the chain rule.

Derivatives of f by its parameters are combinations of those by all parameters of the model that is tied, so
that its Gram is JᵀMJ with the derivatives J of the expressions, which JAX takes. It has no kernel of its own.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.backend_interface import Block, ModelPoint, Problem, RateCurve, SubBlocks
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.derived_models import TiedModel, Ties


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
    from homodyne_dask.kernels.devices import float64_on_cpu

    with float64_on_cpu():
        return np.asarray(slopes_of_ties(np.asarray(theta, float), ties=ties))


def _of_rest(whole: Gram, slopes: Float[np.ndarray, "p m"]) -> Gram:
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
        return _of_rest(whole, slopes(model.ties, theta))

    return gram


class TiedBackend:
    """What a backend, or an evaluation, computes of models that are tied."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getattr__(self, name: str) -> Any:
        """Return a function of the model itself, at the point, or points, of all its parameters."""
        function = getattr(self.of, name)

        def at_base(at: Any, *more: Any) -> Any:
            of_all = at.base if isinstance(at, TiedPoint) else [one.base for one in at]
            return function(of_all, *more)

        return function and at_base

    def point(self, problem: Problem, theta: Any, *where: Any, **more: Any) -> TiedPoint:
        """Return the point of the parameters that are not tied."""
        theta = np.asarray(theta, float)
        base = self.of.point(untied(problem), problem.model.ties.expand(theta), *where, **more)
        return TiedPoint(problem, theta, base)

    def f_and_derivatives_at(self, at: TiedPoint, *where: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return f, and its derivatives by the parameters that are not tied."""
        f, of_all = self.of.f_and_derivatives_at(at.base, *where)
        return f, np.einsum("bp...,pm->bm...", of_all, at.slopes)

    @property
    def rates(self) -> Any:
        """None where the model has none."""
        return self.of.rates and self._rates

    def _rates(self, at: TiedPoint, *where: Any) -> dict[str, RateCurve]:
        names, curves = at.base.problem.model.names, self.of.rates(at.base, *where)
        for name, curve in curves.items():
            slopes = at.slopes[[names.index(one) for one in curve.parameters]]
            gradient = slopes.T @ curve.gradient
            curves[name] = curve._replace(gradient=gradient, parameters=at.problem.model.names)
        return curves

    @property
    def rates_of_draws(self) -> Any:
        """None where the model has none."""
        return self.of.rates_of_draws and self._rates_of_draws

    def _rates_of_draws(self, problem: Problem, thetas: np.ndarray, *where: Any) -> Any:
        expanded = np.stack([problem.model.ties.expand(theta) for theta in thetas])
        return self.of.rates_of_draws(untied(problem), expanded, *where)

    def gram(self, at: TiedPoint, block: Block, data: Any = None) -> tuple[Gram, Any]:
        """Return the Gram of every bin, and the sums of the data alone."""
        whole, sums = self.of.gram(at.base, block, data)
        return _of_rest(whole, at.slopes), sums

    def robust_gram(self, at: TiedPoint, *more: Any) -> Gram:
        """Return the Gram of every bin under the loss."""
        return _of_rest(self.of.robust_gram(at.base, *more), at.slopes)

    def tile_grams(self, points: Sequence[TiedPoint], work: Any) -> list[tuple[Gram, Any]]:
        """Return the Gram of every bin of several tiles, and the sums of the data of each."""
        found = self.of.tile_grams([at.base for at in points], work)
        if work.fields != "derivatives":
            return found
        return [(_of_rest(whole, points[0].slopes), sums) for whole, sums in found]

    def cell_sums(self, at: TiedPoint, block: Block, cell: Any, sums: np.ndarray) -> np.ndarray:
        """Return the sums with those of the pairs of a block added."""
        zero = np.zeros((*sums.shape[:-1], 1 + len(at.slopes)))
        of_all = self.of.cell_sums(at.base, block, cell, zero)
        return sums + np.concatenate([of_all[..., :1], of_all[..., 1:] @ at.slopes], axis=-1)

    def pair_times(self, problem: Problem, time: Any) -> Any:
        """Return the times of a `PairSet`."""
        return self.of.pair_times(untied(problem), time)

    def f_of_theta(self, theta: Any, at: Any, model: TiedModel, convention: Any) -> Any:
        """Return f at theta of bins at pairs of frames."""
        return self.of.f_of_theta(model.ties.expand(theta), at, model.base, convention)
