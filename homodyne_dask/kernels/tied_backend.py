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
class TiedPoint(ModelPoint):
    base: ModelPoint

    @cached_property
    def slopes(self) -> Float[np.ndarray, "p m"]:
        return slopes(self.problem.model.ties, self.theta)

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        return self.base.sub_blocks(q, i0, j0, T)


def slopes(ties: Ties, theta: Float[np.ndarray, " m"]) -> Float[np.ndarray, "p m"]:
    """Return the derivatives of all parameters of a model by those that are not tied, by JAX."""
    from homodyne_dask.kernels.autodiff import slopes_of_ties  # lazy: it loads JAX

    return slopes_of_ties(ties, theta)


def _of_rest(whole: Gram, slopes: Float[np.ndarray, "p m"]) -> Gram:
    p, m = slopes.shape
    columns = np.eye(p + 3, m + 3)
    columns[3:, 3:] = slopes
    moments = columns.T @ whole.moments @ columns
    return whole._replace(moments=0.5 * (moments + np.swapaxes(moments, -1, -2)))


def untied(problem: Problem) -> Problem:
    base = copy(problem)  # `replace` would look again at what functions read
    object.__setattr__(base, "model", problem.model.untied)
    return base


def averages_of_ties(model: TiedModel, of_all: Any) -> Any:
    """Return a function that returns the Gram at theta, from one that takes all parameters."""

    def gram(theta: Float[np.ndarray, " m"]) -> Gram:
        whole = of_all(model.ties.expand(np.asarray(theta, float)))
        return _of_rest(whole, slopes(model.ties, theta))

    return gram


class TiedBackend:
    def __init__(self, base: Any) -> None:
        self.base = base
        self.rates = base.rates and self._rates
        self.rates_of_draws = base.rates_of_draws and self._rates_of_draws

    def __getattr__(self, name: str) -> Any:
        """Return a function of the model itself, at the point, or points, of all its parameters."""
        function = getattr(self.base, name)

        def at_base(at: Any, *where: Any) -> Any:
            points = at.base if isinstance(at, TiedPoint) else [point.base for point in at]
            return function(points, *where)

        return function and at_base

    def point(self, problem: Problem, theta: Any, *where: Any, **options: Any) -> TiedPoint:
        theta = np.asarray(theta, float)
        base = self.base.point(untied(problem), problem.model.ties.expand(theta), *where, **options)
        return TiedPoint(problem, theta, base.min_lag, base.frames, base)

    def f_and_derivatives_at(self, at: TiedPoint, *where: Any) -> tuple[np.ndarray, np.ndarray]:
        f, derivatives = self.base.f_and_derivatives_at(at.base, *where)
        return f, np.einsum("bp...,pm->bm...", derivatives, at.slopes)

    def _rates(self, at: TiedPoint, *where: Any) -> dict[str, RateCurve]:
        names, curves = at.base.problem.model.names, self.base.rates(at.base, *where)
        for name, curve in curves.items():
            slopes = at.slopes[[names.index(parameter) for parameter in curve.parameters]]
            gradient = slopes.T @ curve.gradient
            curves[name] = curve._replace(gradient=gradient, parameters=at.problem.model.names)
        return curves

    def _rates_of_draws(self, problem: Problem, thetas: np.ndarray, *where: Any) -> Any:
        expanded = np.stack([problem.model.ties.expand(theta) for theta in thetas])
        return self.base.rates_of_draws(untied(problem), expanded, *where)

    def gram(self, at: TiedPoint, block: Block, data: Any = None) -> tuple[Gram, Any]:
        whole, sums = self.base.gram(at.base, block, data)
        return _of_rest(whole, at.slopes), sums

    def robust_gram(self, at: TiedPoint, *data: Any) -> Gram:
        return _of_rest(self.base.robust_gram(at.base, *data), at.slopes)

    def tile_grams(self, points: Sequence[TiedPoint], work: Any) -> list[tuple[Gram, Any]]:
        tiles = self.base.tile_grams([at.base for at in points], work)
        if work.fields != "derivatives":
            return tiles
        return [(_of_rest(whole, points[0].slopes), sums) for whole, sums in tiles]

    def cell_sums(self, at: TiedPoint, block: Block, cell: Any, sums: np.ndarray) -> np.ndarray:
        zero = np.zeros((*sums.shape[:-1], 1 + len(at.slopes)))
        whole = self.base.cell_sums(at.base, block, cell, zero)
        return sums + np.concatenate([whole[..., :1], whole[..., 1:] @ at.slopes], axis=-1)

    def pair_times(self, problem: Problem, time: Any) -> Any:
        return self.base.pair_times(untied(problem), time)

    def f_of_theta(self, theta: Any, at: Any, model: TiedModel, convention: Any) -> Any:
        return self.base.f_of_theta(model.ties.expand(theta), at, model.base, convention)
