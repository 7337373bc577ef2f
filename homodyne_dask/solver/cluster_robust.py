"""Cluster-robust covariance of type CR3 with the factor of the jackknife, and its degrees of freedom.

CR3 (Bell and McCaffrey 2002) divides the residuals of a cluster by what the fit leaves of them, CR2 by the
root of that. With the factor (K - 1)/K it is the jackknife over K clusters to first order, CV3 of MacKinnon,
Nielsen and Webb (2023). `docs/errors.md` has how often intervals from either hold the truth.

A prior is a measurement of known standard deviation: the variance of its score is its weight 1/sd², and is
not estimated from its one residual, which would have one degree of freedom, vanish where data and prior
agree by chance, and need a correction for leverage. So it is no cluster, and adds no uncertainty about the
error: degrees of freedom rise with its share of a variance (Welch 1947; Satterthwaite 1946).

The constants at the end are the limits of all checks: how few clusters are too few, and how improbable noise
is not noise.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.gram import spread_twice
from homodyne_dask.solver.array_shapes import BinNumbers, Moved, MovedMatrix, ThetaMatrix
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.normal_matrix import root_of

_MIN_LEVERAGE = 1e-8
"""Share of a cluster's residual that is left by the fit, below which it is rounding."""
_MIN_SHARE = 1e-6
"""Share of a parameter's variance along such a direction, above which it has no error."""
_SINGULAR_BLOCK = 1e-12
"""Eigenvalue of a cluster's block over its largest, below which it is rounding: it is a difference of sums
of one cluster, of which less may be left than of all (`SINGULAR`)."""
_AT_ONCE = 64
"""Clusters whose terms are held together."""
_MANY = 1e4
"""Degrees of freedom of a known error: its intervals are those of a normal distribution."""


def cr3(
    inverse: MovedMatrix,
    scores: Float[np.ndarray, "cluster m"],
    blocks: Float[np.ndarray, "cluster own own"],
    combinations: Float[np.ndarray, "c m"] | None = None,
    prior: MovedMatrix | None = None,
    place: Int[np.ndarray, "cluster own"] | None = None,
) -> tuple[MovedMatrix, Float[np.ndarray, " c"]]:
    """Return the CR3 covariance and the Bell-McCaffrey degrees of freedom of combinations of parameters.

    combinations: their weights of the parameters; by default each parameter by itself. A combination has
    degrees of freedom of its own: they are not those of its parts.
    Both are NaN for a parameter that one cluster alone determines: its residuals show no scatter.
    inverse = H⁻¹, H = Σ blocks; with R_kᵀR_k = H_k and A_k = (I - R_k H⁻¹ R_kᵀ)⁻¹ the score of
    cluster k becomes g̃_k = R_kᵀ A_k R_k^(-ᵀ) g_k (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018).
    -H⁻¹g̃_k is the change of the parameters without cluster k. The covariance is that of the jackknife,
    (K - 1)/K H⁻¹ (Σ g̃_k g̃_kᵀ) H⁻¹, over the K clusters that say something (CV3: MacKinnon et al. 2023).
    prior: the variance of the score of priors, which is added to the sum in the covariance. place: rows of
    the blocks among the parameters (m of a row of zeros); by default they are all of them.
    """
    chosen = np.eye(len(inverse)) if combinations is None else combinations
    adjusted, undetermined, roots = np.zeros_like(scores), np.zeros_like(inverse), []
    for members, which, R, A, back, outside in _clusters(inverse, blocks, place):
        entries = np.ix_(members, which)
        if outside.any():
            along = (outside @ R @ inverse[which]).reshape(-1, len(inverse))
            undetermined += along.T @ along
        adjusted[entries] = (R.mT @ A @ (back.mT @ scores[entries][:, :, None]))[:, :, 0]
        roots.append((which, R, A @ R))
    # bins without a decay say nothing of theta, and would enlarge K
    informative = int(blocks.any((1, 2)).sum())
    changes = adjusted @ inverse  # not the sum of squares: that leaves rounding of small variances
    covariance = (1 - 1 / max(informative, 1)) * changes.T @ changes
    freedom = _satterthwaite(inverse, roots, chosen[:, :, None], place is not None)
    if prior is not None:
        by_priors = inverse @ prior @ inverse
        freedom = with_known(freedom, _variances(covariance, chosen), _variances(by_priors, chosen))
        covariance = covariance + by_priors
    is_undetermined = _variances(undetermined, chosen) > _MIN_SHARE * _variances(inverse, chosen)
    by_one_cluster = np.diag(undetermined) > _MIN_SHARE * np.diag(inverse)
    covariance[by_one_cluster, :] = covariance[:, by_one_cluster] = np.nan
    return covariance, np.where(is_undetermined, np.nan, freedom)


def _variances(
    covariance: MovedMatrix, combinations: Float[np.ndarray, "c m"]
) -> Float[np.ndarray, " c"]:
    return np.einsum("ca,ab,cb->c", combinations, covariance, combinations)


def freedom_of_trace(
    inverse: MovedMatrix, blocks: Float[np.ndarray, "cluster m m"], hessian: ThetaMatrix
) -> float:
    """Return the degrees of freedom of tr(HV), V the CR3 covariance: more than those of a direction."""
    roots = [(which, R, A @ R) for _, which, R, A, *_ in _clusters(inverse, blocks)]
    directions = np.eye(len(inverse), len(hessian)) @ root_of(hessian)
    return float(_satterthwaite(inverse, roots, directions[None])[0])


def _clusters(
    inverse: MovedMatrix,
    blocks: Float[np.ndarray, "cluster own own"],
    place: Int[np.ndarray, "cluster own"] | None = None,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield clusters, their parameters, R with RᵀR the block, A = (I - R H⁻¹ Rᵀ)⁻¹ but for rounding, the
    transpose of R^(-ᵀ), and directions in which nothing is left of the residuals."""
    rounding = 10 * np.finfo(float).eps * np.linalg.norm(inverse, 2)
    parameters = np.arange(len(inverse)) if place is None else place
    # clusters that depend on the same parameters are computed together
    coupled = np.where(blocks.any(1), parameters, -1)
    kinds, kind_of_cluster = np.unique(coupled, axis=0, return_inverse=True)
    for n, kind in enumerate(kinds):
        clusters, rows = np.flatnonzero(kind_of_cluster == n), np.flatnonzero(kind >= 0)
        which = kind[rows]
        inverse_block = inverse[np.ix_(which, which)]
        for first in range(0, len(clusters), _AT_ONCE):
            batch = clusters[first : first + _AT_ONCE]
            values, vectors = np.linalg.eigh(blocks[np.ix_(batch, rows, rows)])
            largest = np.maximum(values.max(1, initial=0.0)[:, None], np.finfo(float).tiny)
            keep = values > _SINGULAR_BLOCK * largest
            root = np.sqrt(np.where(keep, values, 0.0))
            R = root[:, :, None] * vectors.mT
            back = vectors * np.where(keep, 1 / np.where(keep, root, 1.0), 0.0)[:, None]
            leverage, axes = np.linalg.eigh(np.eye(len(which)) - R @ inverse_block @ R.mT)
            inside = leverage > max(_MIN_LEVERAGE, rounding)
            A = axes * np.where(inside, 1 / np.where(inside, leverage, 1.0), 0.0)[:, None] @ axes.mT
            yield batch, which, R, A, back, axes.mT * ~inside[:, :, None]


def _satterthwaite(
    inverse: MovedMatrix,
    roots: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    directions: Float[np.ndarray, "c m d"],
    arrow: bool = False,
) -> Float[np.ndarray, " c"]:
    """Return (tr Ω)²/tr Ω², Ω the covariance of the terms whose squares sum to the variances of combinations.

    roots: parameters on which some clusters depend, R_k and A_k R_k of these. directions: the weights of
    combinations, one or several for each value returned. With b_k = A_k R_k H⁻¹e, e the weights, the terms
    are b_kᵀu_k. Under white noise the residuals u_k = R_k^(-ᵀ)g_k have the covariances δ_jk I - R_j H⁻¹ R_kᵀ,
    so that
    Ω_jk = δ_jk |b_k|² - (R_jᵀb_j)ᵀ H⁻¹ (R_kᵀb_k), of which the traces follow without Ω itself. arrow: whether
    parameters are coupled only by those on which all clusters depend.
    """
    response, number = inverse @ directions, len(directions)
    total, squares = np.zeros((2, number))
    groups, common = [(np.arange(len(inverse)), [*range(len(roots))])], np.empty(0, int)
    if arrow:
        groups, common = _coupled([which for which, *_ in roots], len(inverse))
    passing = inverse[:, common] @ np.linalg.inv(inverse[np.ix_(common, common)])
    root = root_of(inverse[np.ix_(common, common)])
    passed_on = np.zeros((number, *[len(common)] * 2))
    for group, members in groups:
        among = np.zeros((number, len(group), len(group)))
        for which, R, adjusted in (roots[n] for n in members):
            b = adjusted[:, None] @ response[:, which]
            w = R[:, None].mT @ b
            squares_of_terms, absorbed = b.mT @ b, w.mT @ inverse[np.ix_(which, which)] @ w
            total += np.trace(squares_of_terms - absorbed, axis1=2, axis2=3).sum(0)
            squares += np.sum(squares_of_terms * (squares_of_terms - 2 * absorbed), axis=(0, 2, 3))
            rows = np.searchsorted(group, which)
            among[:, rows[:, None], rows] += (w @ w.mT).sum(0)
        half = root_of(inverse[np.ix_(group, group)])
        squares += np.sum((half.T @ among @ half) ** 2, axis=(1, 2))
        across = passing[group].T @ among @ passing[group]
        # pairs within the group were counted above, and are again in those across all groups
        squares -= np.sum((root.T @ across @ root) ** 2, axis=(1, 2))
        passed_on += across
    squares += np.sum((root.T @ passed_on @ root) ** 2, axis=(1, 2))
    positive = np.minimum(total, squares) > 0
    return np.where(positive, total**2 / np.where(positive, squares, 1.0), np.nan)


def _coupled(
    kinds: Sequence[Int[np.ndarray, " p"]], m: int
) -> tuple[list[tuple[Int[np.ndarray, " own"], list[int]]], Int[np.ndarray, " s"]]:
    """Return groups of kinds of clusters that share parameters beside those of all, and the latter.

    Between two groups, a and b, the inverse is L_a V L_bᵀ, with V its block of the parameters of all and
    L = (its columns of those) V⁻¹.
    """
    common = np.flatnonzero(np.bincount(np.concatenate(kinds), minlength=m) == len(kinds))
    group_of, groups = np.full(m, -1), dict[int, list[int]]()
    for n, kind in enumerate(kinds):
        coupled = np.setdiff1d(kind, common)
        earlier = [g for g in np.unique(group_of[coupled]).tolist() if g >= 0]
        groups[n] = [member for g in earlier for member in groups.pop(g)] + [n]
        group_of[coupled] = n
        group_of[np.isin(group_of, earlier)] = n
    return [
        (np.unique(np.concatenate([common, *(kinds[n] for n in members)])), members)
        for members in groups.values()
    ], common


def with_known(freedom: Moved, estimated_variance: Moved, known_variance: Moved) -> Moved:
    """Return the degrees of freedom of a variance with a known addend: ν (1 + known/estimated)²."""
    with np.errstate(divide="ignore", invalid="ignore"):
        increased = freedom * (1 + known_variance / estimated_variance) ** 2
    return np.where(
        known_variance > 0, np.nan_to_num(np.minimum(increased, _MANY), nan=_MANY), freedom
    )


def by_cluster(
    joint: JointEquations, clusters: BinNumbers
) -> tuple[
    Float[np.ndarray, "cluster n"],
    Float[np.ndarray, "cluster own own"],
    Int[np.ndarray, "cluster own"] | None,
]:
    """Return the scores and blocks of clusters, sums over their bins, and the places of blocks."""
    used = joint.reduced.count > 0
    _, number, count = np.unique(clusters[used], return_inverse=True, return_counts=True)
    # stable: sums over the bins of a cluster keep their order, and their bits
    order = np.flatnonzero(used)[np.argsort(number, kind="stable")]
    first = np.cumsum(count) - count
    scores, n = np.add.reduceat(joint.scores[order], first), len(joint.size)
    if joint.place is None:
        return scores, np.add.reduceat(joint.blocks[order], first), None
    parameters = [np.unique(joint.place[bins]) for bins in np.split(order, first[1:])]
    place = np.full((len(parameters), max(map(len, parameters))), n)
    for row, of_cluster in zip(place, parameters, strict=True):
        row[: len(of_cluster)] = of_cluster
    cluster_and_bin = zip(np.sort(number), order, strict=True)
    rows = np.array([np.searchsorted(place[k], joint.place[b]) for k, b in cluster_and_bin])
    blocks = np.add.reduceat(spread_twice(joint.blocks[order], rows, place.shape[1]), first)
    return scores, blocks, place


MIN_CLUSTERS = 8
"""Clusters of bins, with fewer of which no error is estimated from their scatter."""
MIN_FREEDOM = 4.0
"""Degrees of freedom of a cluster-robust error, below which it is often several times too small."""
MIN_CLUSTERS_OF_RATES = 3
"""Clusters with fewer of which their scores do not tell φ, on which the strength of smoothing depends: a
strength is needed to a factor, an error to some percent."""
MIN_BLOCKS = 6
"""Blocks into which frames are cut at least, in which a decay is sought: they give no error bar."""
IMPROBABLE = 1e-4
"""Probability below which noise is not that of speckle and counting, and a trend of contrast is no chance."""
LEVEL_OF_ALTERNATIVES = 0.005
"""Probability that a right model is called wrong by a named alternative, by Bonferroni's bound over names and
all of each name."""
LEVEL_OF_MISFIT = 0.005
"""Probability that a right model is called wrong by means of residuals, by Bonferroni's bound over them."""
LEVEL_OF_DECAY = 0.01
"""Probability that noise alone is taken for a decay."""
