"""Profiles far from the optimum, from a sample of pairs: does χ² rise towards the end of a prior?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from homodyne_dask.fitting.error_estimation.profile_likelihood import ProfilePoint, profile
from homodyne_dask.fitting.request import Request
from homodyne_dask.fitting.surrogate.pair_sample import (
    chisqr_scale,
    pair_set,
    sample_pairs,
    sampled_f,
)
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models import Convention, Model
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import reduce

_OPTIONS = lm.Options(decrement=1e-3)


@plain_kernel("model", "convention")
def sampled_moments_kernel(
    theta: Float[Array, " p"],
    at: PairSet,
    signal: Float[Array, "bin pair"],
    weight: Float[Array, "bin pair"],
    *,
    model: Model,
    convention: Convention,
) -> Float[Array, "bin k k"]:
    """Return Xᵀ W X over a sample of pairs."""

    def f(theta: Float[Array, " p"]) -> Float[Array, "bin pair"]:
        return backend_of(model).f_of_theta(theta, at, model, convention)

    known = jnp.stack([jnp.ones_like(signal), signal, f(theta)])
    X = jnp.concatenate([known, jnp.moveaxis(jax.jacfwd(f)(theta), -1, 0)])
    return jnp.einsum("cbn,dbn,bn->bcd", X, X, weight)


@dataclass(frozen=True)
class SampledGrams:
    """Roughly the Grams of all pairs, were the data the model at the optimum: from a sample of pairs."""

    problem: Problem
    pairs: PairSet
    signal: Float[np.ndarray, "bin pair"]
    """c2 - 1 at the optimum."""
    weight: Float[np.ndarray, "bin pair"]
    """1/sigma², times the number of pairs that each stands for."""
    counted: Float[np.ndarray, " bin"]
    """Pairs of the record; χ² at the optimum is as many."""

    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram:
        """Return the Gram at theta."""
        problem, arguments = self.problem, (theta, self.pairs, self.signal, self.weight)
        with float64_on_cpu():
            found = sampled_moments_kernel(
                *arguments, model=problem.model, convention=problem.convention
            )
        moments = np.array(found)
        moments[:, 1, 1] += self.counted
        return Gram(moments, self.counted.astype(np.int64))


def sampled_profiles(
    request: Request, state: lm.State, steps: Mapping[str, float]
) -> dict[str, list[ProfilePoint]]:
    """Return the profiles of parameters by name, χ² that of a sample of pairs; steps: the length of each."""
    problem, reduced = replace(request.problem, precision="float64"), state.reduced
    rng, scan = np.random.default_rng(1), request.scan
    samples = [sample_pairs(scan, problem.min_lag, rng) for _ in range(2)]
    pairs = pair_set(problem, scan, *samples)
    f = sampled_f(problem, pairs, state.theta[None])[0]
    each = [chisqr_scale(scan, np.ones(len(f)), sample) for sample in samples]
    weight = np.concatenate(each, axis=1) ** 2 / len(samples)
    offset, contrast = np.nan_to_num(reduced.linear_params).T[:, :, None]
    grams = SampledGrams(problem, pairs, offset + contrast * f, weight, reduced.count)
    search = request.search
    if (
        search.priors is not None
    ):  # those whose optimum is that of the data, which are the model here
        mean = np.where(np.isfinite(search.priors.mean), state.theta, np.nan)
        search = replace(search, priors=replace(search.priors, mean=mean))
    request = replace(request, problem=problem, search=search)
    terms = search.prior_terms(state.theta)
    first = reduce(grams(state.theta), request.scaling, request.sum_rounding, terms)
    start = replace(lm.initial_state(search, state.theta, first, _OPTIONS), outcome=state.outcome)
    rise = reduced.chisqr - first.chisqr

    def evaluate(theta: Float[np.ndarray, " p"], _: object) -> Gram:
        return grams(theta)

    return {
        name: [
            point._replace(chisqr=point.chisqr + rise)
            for point in profile(request, evaluate, start, name, step, _OPTIONS)
        ]
        for name, step in steps.items()
    }
