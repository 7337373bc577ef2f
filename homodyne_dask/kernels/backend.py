"""The backend of each model, also of one with tied parameters, and how often its kernels were compiled.

With tied parameters, derivatives of f are combinations of those by all parameters of the model that is tied:
its Gram is JᵀMJ with the derivatives J of the expressions, which JAX takes. It has no kernel of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend_interface import (
    COMPILATIONS,
    Backend,
    Block,
    Evaluation,
    GramColumns,
    ModelPoint,
    Problem,
    RateCurve,
    SubBlocks,
    TileWork,
)
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.transport_evaluation import TRANSPORT_EVALUATION
from homodyne_dask.models import Convention, Model, TransportModel
from homodyne_dask.models.derived_models import TiedModel, Ties
from homodyne_dask.models.rate_forms import RATE
from homodyne_dask.models.stretched_exponentials import SplineModel
from homodyne_dask.models.transport import Shear


@cache
def _modules_with_jax() -> tuple[Any, Any, Any]:
    # lazy: they load JAX, which takes a second
    from homodyne_dask.kernels import separable_backend, transport_backend, user_function_checks

    return transport_backend, separable_backend, user_function_checks


def backend_of(model: Model) -> Backend:
    transport_backend, separable_backend, _ = _modules_with_jax()
    if isinstance(model, TiedModel):
        return tied(backend_of(model.base))
    if isinstance(model, TransportModel):
        return transport_backend.TRANSPORT
    free_rate = isinstance(model, SplineModel) and model.curve == RATE
    return separable_backend.SPLINE_RATE if free_rate else separable_backend.SEPARABLE


def evaluation_of(model: Model) -> Evaluation:
    if isinstance(model, TiedModel):
        return tied(evaluation_of(model.base))
    return TRANSPORT_EVALUATION if isinstance(model, TransportModel) else backend_of(model)


def check_model(model: Model, frames: int, convention: Convention, precision: str) -> bool:
    """Check a model and its options before a fit of so many frames; return whether f uses q."""
    if isinstance(model, TiedModel):
        return check_model(model.base, frames, convention, precision)
    if isinstance(model, TransportModel) and model.shear is not Shear.PARABOLIC:
        return bool(model.shear)
    if convention is not Convention.PHYSICAL:
        raise OptionError(
            f"convention {convention.value!r} applies to the transport models between plates that "
            f"move and of diffusion only: leave it out for {model.name}"
        )
    if isinstance(model, TransportModel):
        return True
    if precision != "float64":
        raise OptionError(f"{model.name} is computed in float64 only: leave out precision")
    return _modules_with_jax()[2].check_separable(model, frames)


def compilations() -> dict[str, int]:
    return {name: number for name, number in COMPILATIONS.items() if name}


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
    return _modules_with_jax()[1].slopes_of_ties(ties, theta)


def _of_rest(whole: Gram, slopes: Float[np.ndarray, "p m"]) -> Gram:
    p, m = slopes.shape
    columns = np.eye(p + 3, m + 3)
    columns[3:, 3:] = slopes
    moments = columns.T @ whole.moments @ columns
    return whole._replace(moments=0.5 * (moments + np.swapaxes(moments, -1, -2)))


def untied(problem: Problem) -> Problem:
    return replace(problem, model=problem.model.untied)


def averages_of_ties(model: TiedModel, of_all: Any) -> Any:
    """Return a function that returns the Gram at theta, from one that takes all parameters."""

    def gram(theta: Float[np.ndarray, " m"]) -> Gram:
        whole = of_all(model.ties.expand(np.asarray(theta, float)))
        return _of_rest(whole, slopes(model.ties, theta))

    return gram


@cache
def tied[E: Evaluation](base: E) -> E:
    """Return the backend of a model with tied parameters from that of the model itself."""
    functions = {
        name: partial(_CHAIN_RULE.get(name, _at_base), function)
        for name, function in vars(base).items()
        if function is not None
    }
    return replace(base, **functions)


def _at_base(function: Callable[..., Any], points: Any, *where: Any) -> Any:
    """Call a function of f alone, which has no derivatives, at the point, or points, of all parameters."""
    base = points.base if isinstance(points, TiedPoint) else [point.base for point in points]
    return function(base, *where)


def _point(
    point: Callable[..., ModelPoint], problem: Problem, theta: Any, *where: Any, **options: Any
) -> TiedPoint:
    theta = np.asarray(theta, float)
    base = point(untied(problem), problem.model.ties.expand(theta), *where, **options)
    return TiedPoint(problem, theta, base.min_lag, base.frames, base)


def _f_and_derivatives_at(
    f_and_derivatives_at: Callable[..., Any], point: TiedPoint, *where: Any
) -> tuple[np.ndarray, np.ndarray]:
    f, derivatives = f_and_derivatives_at(point.base, *where)
    return f, np.einsum("bp...,pm->bm...", derivatives, point.slopes)


def _rates(rates: Callable[..., Any], point: TiedPoint, *where: Any) -> dict[str, RateCurve]:
    names, curves = point.base.problem.model.names, rates(point.base, *where)
    for name, curve in curves.items():
        slopes = point.slopes[[names.index(parameter) for parameter in curve.parameters]]
        gradient = slopes.T @ curve.gradient
        curves[name] = curve._replace(gradient=gradient, parameters=point.problem.model.names)
    return curves


def _rates_of_draws(
    rates_of_draws: Callable[..., Any], problem: Problem, thetas: np.ndarray, *where: Any
) -> dict[str, np.ndarray]:
    expanded = np.stack([problem.model.ties.expand(theta) for theta in thetas])
    return rates_of_draws(untied(problem), expanded, *where)


def _gram(
    gram: Callable[..., Any], point: TiedPoint, block: Block, data: Any = None
) -> tuple[Gram, Any]:
    whole, sums = gram(point.base, block, data)
    return _of_rest(whole, point.slopes), sums


def _tile_grams(
    tile_grams: Callable[..., Any], points: Sequence[TiedPoint], work: TileWork
) -> list[tuple[Gram, Any]]:
    tiles = tile_grams([point.base for point in points], work)
    if work.columns is not GramColumns.DERIVATIVES:
        return tiles
    return [(_of_rest(whole, points[0].slopes), sums) for whole, sums in tiles]


def _cell_sums(
    cell_sums: Callable[..., Any], point: TiedPoint, block: Block, cell: Any, sums: np.ndarray
) -> np.ndarray:
    zero = np.zeros((*sums.shape[:-1], 1 + len(point.slopes)))
    whole = cell_sums(point.base, block, cell, zero)
    return sums + np.concatenate([whole[..., :1], whole[..., 1:] @ point.slopes], axis=-1)


_CHAIN_RULE: dict[str, Callable[..., Any]] = {
    "point": _point,
    "f_and_derivatives_at": _f_and_derivatives_at,
    "rates": _rates,
    "rates_of_draws": _rates_of_draws,
    "gram": _gram,
    "robust_gram": lambda gram, point, *data: _of_rest(gram(point.base, *data), point.slopes),
    "tile_grams": _tile_grams,
    "cell_sums": _cell_sums,
    "pair_times": lambda pair_times, problem, time: pair_times(untied(problem), time),
    "f_of_theta": lambda f_of_theta, theta, pairs, model, convention: f_of_theta(
        model.ties.expand(theta), pairs, model.base, convention
    ),
}
"""What differs from the function of the same name of the model itself, which is the first argument."""
