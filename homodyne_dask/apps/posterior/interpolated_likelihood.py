"""χ² of every bin at any theta near the optimum, from a wide Gram: no pass over the data.

Thetas are chosen whose f make every f near the optimum by linear combination: by QR with column pivoting from
draws around it, evaluated on a sample of pairs (a reduced basis). On the same sample f at any theta is
interpolated from theirs by least squares.

With f = f_0 + h, h = Σ a_n (f_n - f_0), and r the residual at the optimum, the residual at theta is
r - contrast·h, less what changes of offset and contrast take of it. All forms below are of the size of the
change of χ², so that nothing cancels. Far from the optimum f has a part outside of the columns; its square
counts as on the sample of pairs, so that χ² rises there, too.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int
from scipy.linalg import qr

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet, Problem
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.machine.cores_and_cgroup_limits import on_cores
from homodyne_dask.models import Convention, Model
from homodyne_dask.models.parameters import Thetas
from homodyne_dask.solver.reduce import ReducedProblem, constraint_columns
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.scan import Scan

SAMPLE, _MIN_PAIRS, _LAG_INTERVALS = 2500, 96, 24
"""Least number of (bin, pair) in a sample; of pairs of frames, which bins share; and intervals of lags."""
BATCH = 16
"""Thetas of one call; fewer are padded, so that a kernel is compiled once."""
SIZES = (8, 16, 24, 32, 48, 64)
"""Numbers of thetas besides the optimum; the wide Gram is compiled for each."""


type Decays = Float[np.ndarray, "draw bin pair"]
type BinsAndPairs = Float[np.ndarray, "bin pair"]
type OfBins = Float[np.ndarray, "bin 2"]
"""Of offset and contrast."""


class PairSample(NamedTuple):
    """Pairs of frames, each with the number of pairs of the record that it stands for."""

    i: Int[np.ndarray, " pair"]
    j: Int[np.ndarray, " pair"]
    number: Float[np.ndarray, " pair"]


def sample_pairs(scan: Scan, min_lag: int, rng: np.random.Generator) -> PairSample:
    """Return selected pairs of frames, as many of short lags as of long ones, half of them of early age.

    Lags are divided into intervals of equal ratio; from each come as many pairs. Half of their ages are
    uniform and half log-uniform: where a rate is a power of age, f changes most in the first frames.
    """
    selected_frames = np.flatnonzero(scan.use)
    first, span = selected_frames[0], selected_frames[-1] - selected_frames[0]
    edges = np.unique(np.geomspace(min_lag, span + 1, _LAG_INTERVALS).astype(int))
    pairs_per_interval = -(-max(_MIN_PAIRS, -(-SAMPLE // len(scan.bins))) // max(len(edges) - 1, 1))
    samples: list[PairSample] = []
    for low, high in pairwise(edges):
        lags = np.arange(low, high)
        pairs = float((span + 1 - lags).sum())
        lag = rng.choice(lags, pairs_per_interval, p=(span + 1 - lags) / pairs)
        ages = span + 1 - lag
        uniform, log_ages = rng.random(pairs_per_interval), np.log(ages + 1.0)
        early = rng.random(pairs_per_interval) < 0.5
        age = np.where(early, np.expm1(uniform * log_ages), uniform * ages).astype(int)
        age = age.clip(0, ages - 1)
        share = 0.5 + 0.5 * ages * np.log((age + 2) / (age + 1)) / log_ages  # 1 of uniform ones
        selected = scan.use[first + age] & scan.use[first + age + lag]
        number = np.where(selected, pairs / (pairs_per_interval * share), 0.0)
        samples.append(PairSample(first + age, first + age + lag, number))
    return PairSample(*(np.concatenate(columns) for columns in zip(*samples, strict=True)))


@plain_kernel("f", "model", "convention")
def _at_thetas(
    thetas: Float[Array, "batch p"], arguments: Any, *, f: Callable[..., Any], model: Model,
    convention: Convention,
) -> Any:  # fmt: skip
    return jax.vmap(lambda theta: f(theta, arguments, model, convention))(thetas)


def in_batches(f: Callable[..., Any], problem: Problem, thetas: Thetas, arguments: Any) -> Any:
    """Return f(theta, arguments, model, convention), arrays or tuples of them, at any number of thetas."""
    n, static = len(thetas), {"f": f, "model": problem.model, "convention": problem.convention}

    def values_from(first: int) -> Any:
        batch = thetas[first : first + BATCH]
        padding = np.repeat(batch[-1:], BATCH - len(batch), axis=0)
        with float64_on_cpu():
            values = _at_thetas(np.concatenate([batch, padding]), arguments, **static)
            return jax.tree.map(np.asarray, values)

    batches = [values_from(0)] if n <= BATCH else on_cores(values_from, range(0, n, BATCH))
    return jax.tree.map(lambda *values: np.concatenate(values)[:n], *batches)


def rough_chisqr(f: Decays, scale: BinsAndPairs, free_scaling: bool) -> Float[np.ndarray, " draw"]:
    """Return roughly χ², less that of the first draw, the optimum, from f on a sample of pairs.

    Near the optimum the residuals are noise, and χ² rises by the square of the change of f that contrast and
    offset do not take. free_scaling: contrast and offset of every bin follow theta.
    """
    change = scale * (f - f[0])
    total = (change**2).sum(2)
    if free_scaling:
        weight = np.maximum((scale**2).sum(1), np.finfo(float).tiny)
        centred = scale * (f - ((scale**2 * f).sum(2) / weight)[:, :, None])
        total -= (scale * change).sum(2) ** 2 / weight
        size = np.maximum((centred**2).sum(2), np.finfo(float).tiny)
        total -= (centred * change).sum(2) ** 2 / size
    return np.maximum(total, 0.0).sum(1)


class Basis(NamedTuple):
    """The thetas of a wide Gram, the optimum first, and how f at others follows from theirs."""

    thetas: Thetas
    reference: BinsAndPairs
    """f at the optimum."""
    scale: BinsAndPairs
    """Changes of f on the sample, times this, are in units of √χ²."""
    columns: Float[np.ndarray, "row r"]
    """f_n - f_0, so scaled, of all bins and pairs."""
    weights: Float[np.ndarray, "r row"]
    """Their pseudo-inverse: times f - f_0, so scaled, it is the a of f = f_0 + Σ a_n (f_n - f_0)."""
    error: float
    """Largest estimated error of log p of draws that were held out."""


def choose_basis(
    thetas: Thetas, f: Decays, scale: BinsAndPairs, held_out: int, factor: float, tolerance: float
) -> Basis:
    """Return the smallest basis in SIZES whose error is below a tolerance, else the largest.

    thetas: the optimum, then draws, the last of which are held out to estimate the error. f: at them, on two
    samples of pairs one after the other, to interpolate from and to test. factor: by which the
    log-likelihood is divided.
    """
    n = f.shape[2] // 2
    change = (f[1:] - f[0]) * scale
    fitted, test = (half.reshape(len(change), -1).T for half in (change[..., :n], change[..., n:]))
    candidates, held_out_draws = fitted[:, :-held_out], fitted[:, -held_out:]
    Q, R = np.linalg.qr(candidates)
    _, _, pivots = cast(Any, qr(R, mode="economic", pivoting=True))
    held_out_draws = Q.T @ held_out_draws
    basis_draws, error = pivots, np.inf
    for size in (size for size in SIZES if size <= candidates.shape[1]):
        basis_draws = pivots[:size]
        a = np.linalg.lstsq(R[:, basis_draws], held_out_draws, rcond=1e-13)[0]
        distance = np.linalg.norm(test[:, -held_out:] - test[:, basis_draws] @ a, axis=0)
        # in units of √χ²: multiplied with the noise to first order, and its square, which the sample knows
        # to about a third
        error = float(((distance + distance**2 / 3) / factor).max())
        if error < tolerance:
            break
    weights = np.linalg.pinv(R[:, basis_draws], rcond=1e-13) @ Q.T
    thetas = np.concatenate([thetas[:1], thetas[1:][basis_draws]])
    return Basis(thetas, f[0][:, :n], scale[:, :n], candidates[:, basis_draws], weights, error)


class LikelihoodAt(NamedTuple):
    """The likelihood at one theta, contrast and offset at their best values there."""

    chisqr: Float[Array, " bin"]
    """Of every bin, less that at the optimum; a prior of contrast and offset counts."""
    linear_params: Float[Array, "bin 2"]
    """(offset - 1, contrast)."""
    spread: Float[Array, "bin 2 n"]
    """These times n independent normal numbers of a group of bins are draws around them."""


class LikelihoodArrays(NamedTuple):
    pairs: PairSet
    basis: Basis
    moments: Float[np.ndarray, "bin m m"]
    """Over [1, r, f_0, f_1 - f_0, ...], r the residual at the optimum."""
    linear_params: OfBins
    """At the optimum."""
    columns: Float[np.ndarray, "group member k"]
    """(offset - 1, contrast) of a bin change by these times the linear parameters of its group."""
    prior_weight: OfBins
    prior_pull: OfBins
    """That weight times the mean less the value at the optimum."""
    determined: Bool[np.ndarray, "bin 2"]
    """By the data; others keep their values."""


def likelihood_arrays(
    wide: Gram, basis: Basis, pairs: PairSet, reduced: ReducedProblem, scaling: Scaling
) -> LikelihoodArrays:
    bins, with_pairs = len(wide.pairs), wide.pairs > 0
    linear = np.where(with_pairs[:, None], reduced.linear_params, 0.0)
    linear[reduced.undetermined, 1] = 0.0
    to_residual = np.broadcast_to(np.eye(wide.moments.shape[1]), wide.moments.shape).copy()
    to_residual[:, 1, 0], to_residual[:, 1, 2] = -linear.T
    moments = to_residual @ wide.moments @ np.swapaxes(to_residual, 1, 2)
    columns, groups = constraint_columns(scaling, bins)
    weight = mean = np.zeros((bins, 2))
    if scaling.prior is not None:
        share = with_pairs.astype(float)
        if scaling.mode == "shared":  # one prior, to which all bins together contribute once
            share = share / max(with_pairs.sum(), 1)
        weight, mean = share[:, None] * scaling.prior.weight, scaling.prior.mean
    determined = np.stack([with_pairs, with_pairs], axis=1)
    if groups == bins:
        determined[reduced.undetermined, 1] = False
    columns = columns.reshape(groups, bins // groups, columns.shape[1])
    pull = weight * (mean - linear)
    return LikelihoodArrays(pairs, basis, moments, linear, columns, weight, pull, determined)


def likelihood_at(
    theta: Any, arrays: LikelihoodArrays, model: Model, convention: Convention
) -> LikelihoodAt:
    """Return χ² of every bin at theta, and contrast and offset; for JAX to trace."""
    basis, f = arrays.basis, backend_of(model).f_of_theta(theta, arrays.pairs, model, convention)
    change = ((f - basis.reference) * basis.scale).reshape(-1)
    a = basis.weights @ change
    outside_basis = (change - basis.columns @ a).reshape(basis.scale.shape)
    G, contrast = jnp.asarray(arrays.moments), jnp.asarray(arrays.linear_params)[:, 1]
    of_h = G[:, :, 3:] @ a
    ones_h, r_h, f_h, h_h = of_h[:, 0], of_h[:, 1], of_h[:, 2], of_h[:, 3:] @ a
    unfitted_chisqr = -2 * contrast * r_h + contrast**2 * h_h + (outside_basis**2).sum(1)
    mixed, ff = G[:, 0, 2] + ones_h, G[:, 2, 2] + 2 * f_h + h_h
    A = jnp.stack([jnp.stack([G[:, 0, 0], mixed], -1), jnp.stack([mixed, ff], -1)], -2)
    b = jnp.stack([G[:, 0, 1] - contrast * ones_h, G[:, 1, 2] + r_h - contrast * (f_h + h_h)], -1)
    free = jnp.asarray(arrays.determined)
    A = A + jnp.asarray(arrays.prior_weight)[:, :, None] * jnp.eye(2)
    A = jnp.where(free[:, :, None] & free[:, None, :], A, 0.0)
    b = jnp.where(free, b + arrays.prior_pull, 0.0)
    step, spread = _best_step(A, b, jnp.asarray(arrays.columns))
    chisqr = unfitted_chisqr - 2 * (step * b).sum(1) + jnp.einsum("bz,bzy,by->b", step, A, step)
    return LikelihoodAt(chisqr, jnp.asarray(arrays.linear_params) + step, spread)


def _best_step(
    A: Float[Array, "bin 2 2"], b: Float[Array, "bin 2"], columns: Float[Array, "group member k"]
) -> tuple[Float[Array, "bin 2"], Float[Array, "bin 2 n"]]:
    """Return the step of (offset, contrast) to the minimum of each group of bins, and the spread there."""
    groups, members, k = columns.shape
    if not k:
        return jnp.zeros_like(b), jnp.zeros((*b.shape, 0))
    forms_of_bins = A.reshape(groups, members, 2, 2)
    forms_of_groups = jnp.einsum("gma,gmb,gmzy->gzayb", columns, columns, forms_of_bins)
    forms_of_groups = forms_of_groups.reshape(groups, 2 * k, 2 * k)
    right = jnp.einsum("gma,gmz->gza", columns, b.reshape(groups, members, 2))
    size = jnp.diagonal(forms_of_groups, axis1=1, axis2=2)
    unit = jnp.where(size > 0, 1 / jnp.sqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    scaled = forms_of_groups * unit[:, :, None] * unit[:, None, :]
    scaled = scaled + jnp.where(size > 0, 0.0, 1.0)[:, :, None] * jnp.eye(2 * k)
    inverse_root = jnp.linalg.inv(jnp.linalg.cholesky(scaled)) * unit[:, None, :]
    root = jnp.swapaxes(inverse_root, 1, 2)  # root rootᵀ is the inverse
    step = root @ (inverse_root @ right.reshape(groups, 2 * k, 1))
    step = jnp.einsum("gma,gza->gmz", columns, step.reshape(groups, 2, k))
    spread = jnp.einsum("gma,gzan->gmzn", columns, root.reshape(groups, 2, k, 2 * k))
    return step.reshape(-1, 2), spread.reshape(-1, 2, 2 * k)


def likelihood_of(problem: Problem, arrays: LikelihoodArrays, thetas: Thetas) -> LikelihoodAt:
    """Return the likelihood at any number of thetas, each field with a first axis of draws."""
    return in_batches(likelihood_at, problem, thetas, arrays)
