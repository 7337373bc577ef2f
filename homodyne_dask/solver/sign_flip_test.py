"""Deviations from a fitted model, found by its scores and tested by flipping the signs of clusters.

At the optimum of a model the score of an added direction, with the fitted parameters projected out, is a
sum over independent clusters of bins, each of mean 0 if the model is right. Then every cluster's part is as
likely as its opposite, and the sums with random signs are the distribution of the sum itself (Fisher 1935;
for fitted models the score bootstrap of Kline and Santos 2012). So a test needs no covariance of many
directions from few clusters, and the largest of many standardized sums has a p that allows for looking at
all of them.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

MIN_CLUSTERS = 6
"""With fewer there are too few signs for a p below 5 %: 16 of 5 clusters."""
ALL_SIGNS = 12
"""Most clusters of which all signs are taken."""
FLIPS = 4095
"""Signs that are drawn for more clusters."""
SEED = 1
_DETERMINED = 1e-3
"""Share of the information on a direction that is left with the fitted parameters free, below which they
follow it."""
_SINGULAR = 1e-12
_FOLLOWS = 1e-9
"""Eigenvalue of the normal matrix over the largest, below which a direction follows from the others."""


class Scores(NamedTuple):
    """What clusters say of fitted parameters and of added directions, at the optimum of the former."""

    scores: Float[np.ndarray, "cluster m"]
    blocks: Float[np.ndarray, "cluster m m"]
    """They sum to the normal matrix, but for priors."""
    normal: Float[np.ndarray, "m m"]
    gradient: Float[np.ndarray, " m"]
    """Sum of the scores, and the priors'."""
    added: Bool[np.ndarray, " m"]
    """Which are added; the others are fitted, or eliminated."""


class ScoresAlong(NamedTuple):
    """Scores of some directions with other parameters projected out."""

    scores: Float[np.ndarray, "cluster direction"]
    information: Float[np.ndarray, " direction"]
    """The variance of their sum for white noise; 0 where the fitted parameters follow a direction."""
    steps: Float[np.ndarray, "m direction"]
    """Each direction, with the step that the projected parameters make along it."""


class Largest(NamedTuple):
    """The direction of the largest standardized sum of scores."""

    at: int
    p: float
    """Probability of a sum so large in any direction, if the model is right."""
    critical: float
    """Standardized sum that the largest of all exceeds in 5 % of right models."""


def shares(of: Scores) -> Float[np.ndarray, " cluster"]:
    """Return what share of its information each cluster has: 1 over its design effect.

    The effect is the size of a cluster's scores in all directions over what white noise gives. Clusters in
    which f decays slowly have more correlated pairs, so a larger one. Signs do not change it.
    """
    size = np.sqrt(np.where(np.diag(of.normal) > 0, np.diag(of.normal), 1.0))
    values, vectors = np.linalg.eigh(of.normal / np.outer(size, size))
    known = values > _FOLLOWS * values[-1]
    root = vectors[:, known] / np.sqrt(values[known]) / size[:, None]
    expected = np.einsum("kmn,mi,ni->k", of.blocks, root, root)
    seen = ((of.scores @ root) ** 2).sum(1)
    some = (expected > 0) & (seen > 0)
    return np.where(some, expected, 0.0) / np.where(some, seen, 1.0)


def weighted(of: Scores, share: Float[np.ndarray, " cluster"]) -> Scores:
    """Return the scores with each cluster counted as that share of it.

    Were correlated pairs counted in full, the few clusters with most of them would make up the scores of what
    they show best, and its deviation would look like one of something that all clusters show.
    """
    return of._replace(
        scores=of.scores * share[:, None],
        blocks=of.blocks * share[:, None, None],
        normal=of.normal + np.einsum("k,kmn->mn", share - 1, of.blocks),
        gradient=of.gradient + (share - 1) @ of.scores,
    )


class _Moving(NamedTuple):
    """Normal equations of the fitted parameters and some directions."""

    directions: Float[np.ndarray, "m n"]
    inverse: Float[np.ndarray, "n n"]
    """0 where nothing is known."""


def _moving(of: Scores, also: Float[np.ndarray, "some added"]) -> _Moving:
    fitted = int((~of.added).sum())
    N = np.zeros((len(of.added), fitted + len(also)))
    N[~of.added, :fitted] = np.eye(fitted)
    N[of.added, fitted:] = also.T
    H = N.T @ of.normal @ N
    size = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
    values, vectors = np.linalg.eigh(H / np.outer(size, size))
    values = np.where(values > _SINGULAR, values, np.inf)
    return _Moving(N, vectors / values @ vectors.T / np.outer(size, size))


def joint_step(
    of: Scores, directions: Float[np.ndarray, "some added"]
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " some"]]:
    """Return the Gauss-Newton step of fitted parameters and directions, and that along the directions."""
    N, inverse = _moving(of, directions)
    step = inverse @ (N.T @ of.gradient)
    return N @ step, step[int((~of.added).sum()) :]


def project(
    of: Scores,
    directions: Float[np.ndarray, "direction added"],
    also: Float[np.ndarray, "some added"],
) -> ScoresAlong:
    """Return the scores of directions, the fitted parameters and some directions `also` projected out."""
    N, inverse = _moving(of, also)
    W = np.zeros((len(of.added), len(directions)))
    W[of.added] = directions.T
    scores = of.scores - of.blocks @ (N @ inverse @ N.T @ of.gradient)
    own = of.normal @ W
    follow = inverse @ N.T @ own
    information = np.einsum("md,md->d", W, own) - np.einsum("nd,nd->d", N.T @ own, follow)
    alone = np.einsum("md,md->d", W, own)
    known = information > _DETERMINED * alone
    steps = W - N @ follow
    return ScoresAlong(scores @ steps, np.where(known, information, 0.0), steps)


def signs_of(clusters: int) -> Float[np.ndarray, "flip cluster"]:
    """Return signs of clusters, the first of each +1: all there are, or some drawn with a fixed seed.

    The first row is all +1. Opposite signs have the same size of a sum.
    """
    if clusters <= ALL_SIGNS:
        rest = np.array(list(product([1.0, -1.0], repeat=clusters - 1)))
    else:
        drawn = np.random.default_rng(SEED).choice([-1.0, 1.0], (FLIPS, clusters - 1))
        rest = np.concatenate([np.ones((1, clusters - 1)), drawn])
    return np.concatenate([np.ones((len(rest), 1)), rest], axis=1)


def spread(
    of: ScoresAlong, groups: Float[np.ndarray, " direction"]
) -> Float[np.ndarray, " direction"]:
    """Return the standard deviation of the sums of scores; NaN where nothing is known.

    Half of its square is the scatter between clusters in this direction, half that of white noise times the
    mean design effect of all directions of a group: few clusters say little of one. Signs do not change it.
    """
    scatter = (of.scores**2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = np.where(of.information > 0, scatter / of.information, np.nan)
    means = {group: np.nanmean(effect[groups == group]) for group in np.unique(groups)}
    common = np.array([means[group] for group in groups]) * of.information
    return np.where(of.information > 0, np.sqrt(0.5 * (scatter + common)), np.nan)


def largest(
    of: ScoresAlong, groups: Float[np.ndarray, " direction"], level: float
) -> Largest | None:
    """Return the direction that deviates most, and how likely that is; None where nothing is known.

    groups: directions that share a design effect. level: probability of exceeding `critical`.
    """
    if not (of.information > 0).any():
        return None
    known = np.flatnonzero(of.information > 0)
    own = spread(of, groups)[known]
    standardized = np.abs(signs_of(len(of.scores)) @ of.scores[:, known]) / own
    highest = standardized.max(1)
    return Largest(
        at=int(known[standardized[0].argmax()]),
        p=float((highest >= highest[0] * (1 - 1e-9)).mean()),
        critical=float(np.quantile(highest, 1 - level, method="higher")),
    )


def one_step(known: Scores, of: ScoresAlong, at: int) -> tuple[float, float]:
    """Return the Gauss-Newton step along a direction, with all that is projected out, and its error.

    The error is that of the jackknife: of the scatter of what the step leaves of the clusters' scores, each
    over what its share in the information leaves of it.
    """
    step, clusters = of.steps[:, at], len(of.scores)
    size = float(of.scores[:, at].sum() / of.information[at])
    own = np.einsum("m,kmn,n->k", step, known.blocks, step)
    left = (of.scores[:, at] - size * own) / np.maximum(1 - own / of.information[at], _SINGULAR)
    scatter = (1 - 1 / clusters) * (left**2).sum()
    return size, float(np.sqrt(scatter) / of.information[at])
