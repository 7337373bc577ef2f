"""Whether a decay is seen at all: contrast times f against a constant, from the last Gram."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import chdtri

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.solver.covariance import MIN_CLUSTERS, clusters_in
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.solver.state import Outcome, State

LEVEL = 0.01
"""Probability that noise alone is taken for a decay."""
MAX_DISTANCE = 1.0
"""Standard errors from the optimum, within which another f describes the data hardly better."""
CONSTANT_F = 1e-10
"""Variance of f over its mean square below which f does not decay."""


class Signal(NamedTuple):
    """The contrast common to all bins, each with its own offset, at the end of a fit."""

    contrast: float
    stderr: float
    """The larger of the error for white noise and the one robust to correlation."""
    threshold: float
    """Standard errors that the contrast must exceed."""

    @property
    def seen(self) -> bool:
        """Whether there is a decay; a contrast below zero is none."""
        return self.contrast > self.threshold * self.stderr

    @property
    def sentence(self) -> str:
        """What the contrast is and what it would have to be."""
        size = self.contrast / self.stderr
        opposite = "; c2 rises where the model falls" if size < -self.threshold else ""
        return (
            f"the mean contrast is {self.contrast:.2g} ± {self.stderr:.2g}, {size:.1f} standard errors, and "
            f"noise alone gives up to {self.threshold:.1f}{opposite}: no parameter is measured; for a faster "
            f"decay use shorter frames or --min-lag 1, for a weaker one more pixels or frames"
        )


def signal_of(
    state: State,
    scaling: Scaling,
    free: int,
    clusters: Int[np.ndarray, " bin"],
    blocks: Float[np.ndarray, "bin block block 3 k"] | None,
) -> Signal | None:
    """Return the test for a decay; None where there is nothing to test.

    free: parameters that were searched: noise has as many ways to look like f. blocks: the moments of
    pairs of blocks of frames, with few bins. Fits that ended more than MAX_DISTANCE from the optimum are
    not tested, nor those with a given offset, where an f that does not decay is seen, too.
    """
    reduced = state.reduced
    given = scaling.fixed_params is not None or (
        scaling.prior is not None and scaling.prior.weight[0] > 0
    )
    if given or not reduced.finite or not state.decrement < MAX_DISTANCE:
        return None
    M = reduced.gram.moments
    weight = np.where(reduced.count > 0, M[:, 0, 0], 1.0)
    mean = M[:, 0, 2] / weight
    spread = np.where(reduced.count > 0, M[:, 2, 2] - mean * M[:, 0, 2], 0.0)
    total = spread.sum()
    if not total > CONSTANT_F * M[:, 2, 2].sum():
        return None
    slope = np.where(reduced.count > 0, M[:, 1, 2] - mean * M[:, 0, 1], 0.0)
    contrast = float(slope.sum() / total)
    variance = reduced.variance(free) / total
    if clusters_in(reduced, clusters) >= MIN_CLUSTERS:
        numbers = np.unique(clusters, return_inverse=True)[1]
        groups = clusters_in(reduced, clusters)
        scores = np.bincount(numbers, slope - contrast * spread)
        robust = (scores**2).sum() * groups / (groups - 1) / total**2
    elif blocks is not None:
        robust = _dyadic(blocks, contrast, weight, mean, M) / total**2
    else:
        robust = 0.0
    error = float(np.sqrt(max(variance, robust)))
    if not error > 0:  # the model interpolates the data
        return None
    return Signal(contrast, error, float(np.sqrt(chdtri(1 + free, LEVEL))))


def without_decay(result: FitResult, sentence: str) -> FitResult:
    """Return the result of a fit that saw no decay: free parameters and contrasts have no value.

    The offsets stay those of the fit; sentence: why.
    """
    parameters, scaling = result.parameters.copy(deep=True), result.scaling.copy(deep=True)
    free = ~parameters["fixed"].values
    for name in ("value", "stderr", "stderr_naive", "dof"):
        parameters[name].values[free] = np.nan
    parameters["method"].values[:], parameters.attrs["method"] = "", ""
    used = scaling["ndata"].values > 0
    scaling["undetermined"].values[used] = True
    scaling["contrast"].values[used] = 0.0
    for name in ("contrast_stderr", "contrast_stderr_naive"):
        scaling[name].values[:] = np.nan
    errors = replace(
        result.errors, covariance=None, covariance_naive=None, covariance_lower=None, profiles={}
    )
    diagnosis = replace(
        result.diagnosis, undetermined=(sentence,), check=None, influence=None, scalings=None,
        identifiability=None, left_out=None,
    )  # fmt: skip
    return replace(
        result, outcome=Outcome.NO_DECAY, parameters=parameters, scaling=scaling, errors=errors,
        diagnosis=diagnosis,
    )  # fmt: skip


def _dyadic(
    blocks: Float[np.ndarray, "bin block block 3 k"],
    contrast: float,
    weight: Float[np.ndarray, " bin"],
    mean: Float[np.ndarray, " bin"],
    M: Float[np.ndarray, "bin k k"],
) -> float:
    """Return the variance of Σ w (f - mean f) residual, pairs that share a block being correlated.

    As `errors.dyadic`, for the common contrast with an offset for each bin.
    """
    offset = M[:, 0, 1] / weight - contrast * mean
    x = np.stack([-offset, np.ones(len(offset)), np.full(len(offset), -contrast)], axis=1)
    score = np.einsum("kz,kabzy->kaby", x, blocks[..., :3])
    s = (score[..., 2] - mean[:, None, None] * score[..., 0]).sum(0)
    alone = np.diag(s)
    of_block = s.sum(0) + s.sum(1) - alone
    return float((of_block**2).sum() - ((s - np.diag(alone)) ** 2).sum())
