"""Averages of the data under models that are given as f: their Grams, and the best of many points."""

from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.start.averages import BinnedAverages, Theta
from homodyne_dask.kernels.autodiff import (
    Tables,
    at_times,
    bin_argument,
    f_of,
    f_with_derivatives,
    separable_point,
    tables_of,
)
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.user_function_checks import check_finite
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.user_defined import Bin, SeparableModel
from homodyne_dask.solver.reduce import reduce


def best_points(
    summary: BinnedAverages, search: Search, mode: str, best: int,
    points: Float[np.ndarray, "point p"],
) -> list[Theta]:  # fmt: skip
    """Return the best of some points; raises OptionError where χ² is a number at none of them."""
    chisqr = chisqr_at_points(summary, search, mode, points)
    if not np.isfinite(chisqr).any():
        raise_not_finite(summary, points[0])
    return [points[n] for n in np.argsort(chisqr)[:best] if np.isfinite(chisqr[n])]


def raise_not_finite(summary: BinnedAverages, theta: Theta) -> NoReturn:
    """Raise OptionError of a search without a finite χ², with the pair of times to blame, if any."""
    problem, time = summary.problem, summary.time
    frames = np.flatnonzero((time >= summary.t1.min()) & (time <= summary.t2.max()))
    check_finite(problem, theta, time, frames, summary.q, summary.phi, everywhere=True)
    raise OptionError(
        f"χ² of model {problem.model.name!r} is not finite at any point tried within its bounds: "
        f"give initial values"
    )


def chisqr_at_points(
    summary: BinnedAverages, search: Search, mode: str, points: Float[np.ndarray, "point p"]
) -> Float[np.ndarray, " point"]:
    """Return χ² of the averages at points; infinite where it is no number, or contrast is negative."""
    chisqr = np.full(len(points), np.inf)
    for n, gram in enumerate(_grams(summary, points)):
        reduced = reduce(gram, mode)
        # c2 must decay: contrast is not negative
        if np.isfinite(reduced.chisqr) and np.nanmedian(reduced.contrast) >= 0:
            chisqr[n] = reduced.chisqr + search.prior_chisqr(points[n])
    return chisqr


def averaged_gram(summary: BinnedAverages, theta: Theta) -> Gram:
    """Return the Gram of the averages at theta."""
    at = separable_point(summary.problem, theta, summary.time)
    tables = at.tables, at.derivatives
    here, there = (at_times(tables, summary.time, t) for t in (summary.t1, summary.t2))
    with float64_on_cpu():
        moments = _moments(
            summary.c2, summary.weight, at.theta, here, there,
            bin_argument(summary.problem, summary.q, summary.phi),
            model=summary.problem.model,
        )  # fmt: skip
        return Gram(np.asarray(moments), (summary.weight > 0).sum(1))


def _grams(summary: BinnedAverages, points: Float[np.ndarray, "point p"]) -> list[Gram]:
    pairs = (summary.weight > 0).sum(1)
    with float64_on_cpu():
        moments = _moments_of_points(
            summary.c2, summary.weight, points, summary.time, (summary.t1, summary.t2),
            bin_argument(summary.problem, summary.q, summary.phi), model=summary.problem.model,
        )  # fmt: skip
        return [Gram(one, pairs) for one in np.asarray(moments)]


@plain_kernel("model")
def _moments(
    c2: Array, weight: Array, theta: Array, here: tuple[Tables, Tables],
    there: tuple[Tables, Tables], bins: Bin, *, model: SeparableModel,
) -> Array:  # fmt: skip
    """Return Xᵀ W X over [1, y - 1, f, ∂f/∂theta] of every bin over cells."""

    def of_bin(y: Array, w: Array, bin: Bin) -> Array:
        f, derivatives = f_with_derivatives(model, theta, here, there, bin, y.shape)
        return _products(y, w, f, *derivatives)

    return jax.vmap(of_bin)(c2, weight, bins)


def _products(y: Array, w: Array, *columns: Array) -> Array:
    X = jnp.stack([jnp.ones_like(y), y - 1, *columns])
    X = jnp.where(w > 0, X * jnp.sqrt(w), 0.0)
    return X @ X.T


@plain_kernel("model")
def _moments_of_points(
    c2: Array, weight: Array, points: Array, time: Array, cells: tuple[Array, Array], bins: Bin,
    *, model: SeparableModel,
) -> Array:  # fmt: skip
    """Return Xᵀ W X over [1, y - 1, f] at every point, of every bin over cells."""

    def at_point(theta: Array) -> Array:
        tables = tables_of(model, theta, time)
        t1, t2 = (jax.tree.map(lambda v, t=t: jnp.interp(t, time, v), tables) for t in cells)

        def of_bin(y: Array, w: Array, bin: Bin) -> Array:
            return _products(y, w, f_of(model, theta, t1, t2, bin, y.shape))

        return jax.vmap(of_bin)(c2, weight, bins)

    return jax.lax.map(at_point, points)
