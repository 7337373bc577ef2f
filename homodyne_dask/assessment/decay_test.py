"""Whether a decay is seen at all: contrast times f against a constant, from the last Gram."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import chdtri

from homodyne_dask.solver.covariance import clusters_in
from homodyne_dask.solver.elimination import CONSTANT_F
from homodyne_dask.solver.limits import LEVEL_OF_DECAY, MIN_CLUSTERS
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.solver.state import State

MAX_DISTANCE = 1.0
"""Standard errors from the optimum, within which another f describes the data hardly better."""


class Signal(NamedTuple):
    """Contrasts at the end of a fit: the one common to all bins, each with its own offset, and each bin's."""

    contrast: float
    stderr: float
    """The larger of the error for white noise and the one robust to correlation."""
    threshold: float
    """Standard errors that the common contrast must exceed."""
    of_bins: float
    """The largest contrast of a bin over its standard error."""
    threshold_of_bins: float
    """What it must exceed."""

    @property
    def seen(self) -> bool:
        """Whether there is a decay; a contrast below zero is none."""
        return self.contrast > self.threshold * self.stderr or self.of_bins > self.threshold_of_bins


def signal_of(
    state: State,
    scaling: Scaling,
    free: int,
    clusters: Int[np.ndarray, " bin"],
    blocks: Callable[[], Float[np.ndarray, "bin block block 3 3"]] | None,
) -> Signal | None:
    """Return the test for a decay; None where there is nothing to test.

    A decay is in the contrast common to all bins, or in that of one of them: strong shear leaves hardly a
    bin with a signal, and that of one raises the error of the common one as it rises. Each of the two
    has half of LEVEL_OF_DECAY, and each bin its share of that.
    free: parameters that were searched: noise has as many ways to look like f. blocks: returns the moments
    of pairs of blocks of frames, in one pass; None where the weights allow for correlated pairs. Fits that
    ended more than MAX_DISTANCE from the optimum are not tested, nor those with a given offset, where an f
    that does not decay is seen, too.
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
    contrast, noise = float(slope.sum() / total), reduced.variance(free)
    varied = spread > CONSTANT_F * M[:, 2, 2]
    own = np.divide(slope, spread, out=np.zeros_like(slope), where=varied)

    def scores(
        blocks: Float[np.ndarray, "bin block block 3 3"], contrast: Float[np.ndarray, " bin"]
    ) -> Float[np.ndarray, "bin block block"]:
        """Return Σ w (f - mean f) residual of every pair of blocks, for these contrasts."""
        offset = M[:, 0, 1] / weight - contrast * mean
        x = np.stack([-offset, np.ones(len(offset)), -contrast], axis=1)
        score = np.einsum("kz,kabzy->kaby", x, blocks)
        return score[..., 2] - mean[:, None, None] * score[..., 0]

    groups, robust = clusters_in(reduced, clusters), 0.0
    if groups >= MIN_CLUSTERS:
        numbers = np.unique(clusters, return_inverse=True)[1]
        of_cluster = np.bincount(numbers, slope - contrast * spread)
        robust = (of_cluster**2).sum() * groups / (groups - 1)
    elif blocks is not None:
        robust = float(_dyadic(scores(blocks(), np.full(len(own), contrast)).sum(0)))
    error = float(np.sqrt(max(noise / total, robust / total**2)))
    if not error > 0:  # the model interpolates the data
        return None
    threshold = float(np.sqrt(chdtri(1 + free, LEVEL_OF_DECAY / 2)))
    limit = float(np.sqrt(chdtri(1 + free, LEVEL_OF_DECAY / 2 / varied.sum())))
    largest = float((own * np.sqrt(spread / noise)).max())
    if blocks is not None and largest > limit and not contrast > threshold * error:
        robust = _dyadic(scores(blocks(), own))
        errors = np.sqrt(np.maximum(noise * spread, robust))
        largest = float((own[varied] * spread[varied] / errors[varied]).max())
    return Signal(contrast, error, threshold, largest, limit)


def mean_signal(signals: Sequence[Signal], free: int, bins: int) -> Signal:
    """Return the test of the mean contrast of several scans, and of that of each of their bins."""
    weight = np.array([signal.stderr**-2 for signal in signals])
    mean = float(weight @ [signal.contrast for signal in signals] / weight.sum())
    limit = float(np.sqrt(chdtri(1 + free, LEVEL_OF_DECAY / 2 / bins)))
    largest = max(signal.of_bins for signal in signals)
    return Signal(mean, float(weight.sum() ** -0.5), signals[0].threshold, largest, limit)


def _dyadic(s: Float[np.ndarray, "*bin block block"]) -> Float[np.ndarray, "*bin"]:
    """Return the variance of the sum of scores, pairs that share a block being correlated.

    With s_ab the score of blocks a and b and T_a = Σ_b s_ab, it is Σ_a T_a² - Σ_(a<b) s_ab² (dyadic-robust:
    Aronow, Samii and Assenova 2015).
    """
    alone = np.einsum("...aa->...a", s)
    of_block = s.sum(-1) + s.sum(-2) - alone
    return (of_block**2).sum(-1) - (s**2).sum((-1, -2)) + (alone**2).sum(-1)
