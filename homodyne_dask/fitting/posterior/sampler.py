"""From a fit to draws: where the posterior is, a wide pass, draws, a check against all pairs."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.posterior.likelihood import (
    LikelihoodArrays,
    likelihood_arrays,
    likelihood_at,
    likelihood_of,
)
from homodyne_dask.fitting.posterior.sampling import (
    Draws,
    importance_draws,
    nuts_draws,
    reliable,
)
from homodyne_dask.fitting.posterior.target import Target
from homodyne_dask.fitting.request import Request
from homodyne_dask.fitting.surrogate.basis import Basis, choose_basis
from homodyne_dask.fitting.surrogate.pair_sample import (
    chisqr_scale,
    pair_set,
    rough_chisqr,
    sample_pairs,
    sampled_f,
)
from homodyne_dask.fitting.surrogate.proposal import Proposal, truncated
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.variable_projection import reduce
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.wide_pass import WIDE_GRAM, ManyThetas

TOLERANCE = 0.02
"""Estimated error of log p for which the basis is chosen."""
MAX_ERROR = 0.05
"""Error of log p of draws compared with all pairs above which the basis is chosen anew, from the draws."""
CHECKED, _MAX_PASSES = 64, 3
_BASIS_DRAWS, _HELD_OUT = 240, 80
_ROUNDS, _DRAWS = 3, 1000
"""Of the search for where the posterior is, on a sample of pairs and again on all."""


class Sampled(NamedTuple):
    """Draws of the posterior, and what they were drawn from."""

    draws: Draws
    likelihood: LikelihoodArrays
    basis: Basis
    error: float
    """Largest error of log p of the draws that were compared with all pairs."""


class Sampler:
    """The steps from a fit to draws; `seconds` says how long each took."""

    def __init__(
        self, request: Request, sweep: Sweep, target: Target, reduced: ReducedProblem, seed: int
    ) -> None:
        """Take the fit, the passes over its data, the density, and the problem at the optimum."""
        self.request, self.sweep, self.target, self.reduced = request, sweep, target, reduced
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()
        scan, problem, lag = request.scan, request.problem, request.problem.min_lag
        samples = [sample_pairs(scan, lag, self.rng) for _ in range(2)]
        contrast = np.where(reduced.undetermined, 0.0, np.nan_to_num(reduced.contrast))
        self.pairs = pair_set(problem, scan, *samples)
        self.first = pair_set(problem, scan, samples[0])
        scales = [chisqr_scale(scan, contrast, sample) for sample in samples]
        self.scale = np.concatenate(scales, axis=1)

    def explored(self) -> tuple[Proposal, Float[np.ndarray, "draw x"]]:
        """Return a proposal for the posterior and draws of roughly that."""
        at, problem = self.target.at, self.request.problem
        free_scaling = self.request.scaling.fixed_params is None

        def rough(x: Float[np.ndarray, "n x"]) -> Float[np.ndarray, " n"]:
            f = sampled_f(problem, self.pairs, at.whole(np.concatenate([at.x[None], x])))
            chisqr = rough_chisqr(f, self.scale / np.sqrt(2), free_scaling)[1:]
            return self.target.log_density(x, chisqr)

        first = self.target.proposal()
        by, found = self.target.adapted(first, rough, _ROUNDS, _DRAWS, self.rng)
        if not len(found.x):
            raise OptionError("no draw is inside the bounds: give wider ones to the fit")
        weight = truncated(found.log_weight)
        return by, found.x[self.rng.choice(len(weight), _BASIS_DRAWS + _HELD_OUT, p=weight)]

    def likelihood(self, near: Float[np.ndarray, "draw x"]) -> tuple[LikelihoodArrays, Basis]:
        """Return the likelihood from one wide pass at thetas chosen from draws."""
        at, problem = self.target.at, self.request.problem
        thetas = at.whole(np.concatenate([at.x[None], near]))
        f, factor = sampled_f(problem, self.pairs, thetas), self.target.adjustment.factor
        basis = choose_basis(thetas, f, self.scale, _HELD_OUT, factor, TOLERANCE)
        self._lap("columns")
        wide = self.sweep.over(WIDE_GRAM, ManyThetas(basis.thetas))
        self._lap("pass")
        scaling = self.request.scaling
        return likelihood_arrays(wide, basis, self.first, self.reduced, scaling), basis

    def weighted_draws(
        self, of: LikelihoodArrays, by: Proposal, draws: int
    ) -> tuple[Proposal, Draws]:
        """Return draws by importance weights, and the proposal, adapted, from which they came."""

        def log_density(x: Float[np.ndarray, "n x"]) -> Float[np.ndarray, " n"]:
            return self.target.log_density(x, self.chisqr(of, x).sum(1))

        by, _ = self.target.adapted(by, log_density, _ROUNDS, _DRAWS, self.rng)
        found = importance_draws(log_density, by, draws, self.rng)
        self._lap("sampling")
        return by, found

    def chains(
        self, of: LikelihoodArrays, near: Float[np.ndarray, "n x"], draws: int, pareto_k: float
    ) -> Draws:
        """Return draws of NUTS, where importance weights are not reliable; near: where to start."""
        at, problem = self.target.at, self.request.problem

        def log_density(x: Any) -> Any:
            there = likelihood_at(at.whole(x), of, problem.model, problem.convention)
            return self.target.log_density(x, there.chisqr.sum())

        found = nuts_draws(log_density, near, at, draws, self.seed, pareto_k)
        self._lap("sampling")
        return found

    def chisqr(
        self, of: LikelihoodArrays, x: Float[np.ndarray, "n x"]
    ) -> Float[np.ndarray, "n bin"]:
        """Return χ² of every bin at free parameters, less that at the optimum."""
        return np.asarray(likelihood_of(self.request.problem, of, self.target.at.whole(x)).chisqr)

    def checked(self, of: LikelihoodArrays, found: Draws) -> float:
        """Return the largest error of log p of some draws: passes over all pairs."""
        at = self.target.at
        x = found.x.reshape(-1, at.size)
        x = x[self.rng.choice(len(x), CHECKED)]
        exact = []
        for gram in self.sweep.candidates(at.whole(x)):
            there = reduce(gram, self.request.scaling, self.request.sum_rounding)
            exact.append(there.chisqr - self.reduced.chisqr)
        both = np.array(exact), self.chisqr(of, x).sum(1)
        known, used = (self.target.adjustment.log_likelihood(at.of(x), of_all) for of_all in both)
        self._lap("check")
        return float(np.abs(known - used).max())

    def run(self, draws: int, doing: Callable[[str], None]) -> Sampled:
        """Return the draws; the basis is chosen anew from them while their error is too large."""
        doing("finding where the posterior is")
        by, near = self.explored()
        self._lap("columns")
        passes = 0
        while True:
            doing("wide pass over the data")
            of, basis = self.likelihood(near)
            passes += 1
            doing(f"{draws:,} draws, some of them compared with all pairs")
            by, found = self.weighted_draws(of, by, draws)
            if not reliable(found.pareto_k, draws):
                k = f"Pareto k {found.pareto_k:.2f}"
                doing(f"{draws:,} draws of NUTS: weights are not reliable ({k})")
                found = self.chains(of, near, draws, found.pareto_k)
            error = self.checked(of, found)
            if error < MAX_ERROR or passes == _MAX_PASSES:
                break
            x = found.x.reshape(-1, self.target.at.size)
            near = x[self.rng.choice(len(x), _BASIS_DRAWS + _HELD_OUT)]
        return Sampled(found, of, basis, error)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._began
        self._began = now
