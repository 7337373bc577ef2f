"""The covariance of c2 for counted photons of Gaussian speckle, and its size from residuals.

To first order in 1/P the deviation of c2 from its mean is the mean over P independent pixels of

    ψ(t1, t2) = x1 x2 - β f12 - β f12 (x1 + x2),

with x the counts of a pixel over their mean, less 1, and β the contrast; the last term comes from dividing
by the mean counts of the frames. The covariance of sums of ψ is a polynomial of second degree in 1/μ, μ the
mean counts of a pixel in a frame: with x = δ + s, δ of the intensity and s of the counting, terms without s,
with one s and with two do not mix, and no moment of s above the second enters, because a pair is never one
frame twice.

P and μ follow from residuals averaged over cells of age and lag, by restricted maximum likelihood.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import get_lapack_funcs
from scipy.sparse import csr_array

from homodyne_dask.solver.array_shapes import Matrix, Moved, PerCounts, Vector

MEAN_COUNTS = np.geomspace(0.003, 300, 41)
"""Values of μ over which the likelihood is averaged where counts are unknown: below the first all noise is
that of counting, above the last none."""
AT_ENDS = 0.05
"""Likelihood of the least and largest μ over the largest, below which μ is known."""
COARSE, FAR_BELOW = 4, 12.0
"""Every how many values of μ are tried first; those between are tried beside the ones whose logarithm of the
likelihood is no farther below the largest."""
NEGLIGIBLE_WEIGHT = 1e-12
"""Of a μ in the likelihood."""
NEGLIGIBLE = 0.003
"""Share of the contrast below which a direction of the intensities' covariance does not matter."""
ROUNDING = 1e-8
"""Of sums in float32, relative to the sum of all variances."""
MOST_MERGED, OF_STRETCHES = 32, 12
"""Blocks of a whole record and of a stretch, on which the part of the covariance is computed that takes their
fourth power: errors of a record in stretches change by less than 0.05 % from 12 to 32."""
MOST_HELD = 4_000_000
"""Values of products of cells with all blocks that are held at once."""


dpotrf, dpotri, dpstrf, dtrtrs = get_lapack_funcs(
    ("potrf", "potri", "pstrf", "trtrs"), dtype=np.float64
)


upper_indices = lru_cache(maxsize=64)(np.triu_indices)


class CellPairs(NamedTuple):
    """Cells of age and lag, in the order of their ages, as sums over pairs of blocks of frames."""

    rows: Int[np.ndarray, "cell 2"]
    """First blocks of pairs, as a range; those of one age have the same, and ages do not overlap."""
    start: Int[np.ndarray, " row"]
    """The first partner of each of these blocks, one cell after the other."""
    end: Int[np.ndarray, " row"]
    """The one after its last partner; a block that starts with itself holds the pairs inside it, too."""


def joined_ranges(
    start: Int[np.ndarray, " range"], stop: Int[np.ndarray, " range"]
) -> tuple[Int[np.ndarray, " value"], Int[np.ndarray, " value"]]:
    """Return the values of ranges one after the other, and the number of the range of each."""
    size = stop - start
    number = np.repeat(np.arange(len(size)), size)
    return np.arange(len(number)) + (stop - np.cumsum(size))[number], number


class FrameStretch(NamedTuple):
    edges: Int[np.ndarray, " edge"]
    core: tuple[int, int]
    """The first frames that count."""
    represents: tuple[int, int]
    """The first frames they stand for."""

    @property
    def share(self) -> float:
        return (self.core[1] - self.core[0]) / (self.represents[1] - self.represents[0])


@dataclass(frozen=True)
class Blocks:
    """A stretch of frames of one bin, in blocks whose frames see one speckle pattern."""

    stretch: FrameStretch
    g: Float[np.ndarray, "block block"]
    """Field correlation with its sign, positive semidefinite, 1 on the diagonal."""
    distance: float
    """Of g from a correlation before it was made one, relative."""
    contrast: float
    frames: Int[np.ndarray, " block"]
    """Used frames of each block, at least 1."""
    middle: Float[np.ndarray, " block"]
    """The mean of these frames."""
    inverse: Float[np.ndarray, " block"]
    """Mean of 1/sigma_row² over these."""
    fields: Float[np.ndarray, "column block block"]
    """1, f and its derivatives of a block and a later one or itself; none where only g was wanted."""
    known_share: Float[np.ndarray, "block block"] | None = None
    """Of the pairs of a block and a later one, and inside each; None where all are known."""

    @cached_property
    def pairs(self) -> Float[np.ndarray, "block block"]:
        n = self.frames.astype(float)
        pairs = np.triu(np.outer(n, n))
        np.fill_diagonal(pairs, n * (n - 1) / 2)
        return pairs if self.known_share is None else pairs * self.known_share

    @property
    def rows(self) -> Bool[np.ndarray, " block"]:
        """Whether their pairs count as first frames."""
        return (self.middle >= self.stretch.core[0]) & (self.middle < self.stretch.core[1])


class NoiseCovariance(NamedTuple):
    """A covariance of sums of ψ for one pixel, as a polynomial in 1/μ: its terms without counting noise, with
    that of one frame, and with that of both frames of a pair."""

    constant: Matrix
    counted: Matrix
    counted_twice: Matrix

    def at(self, mean_counts: float) -> Matrix:
        return self.constant + self.counted / mean_counts + self.counted_twice / mean_counts**2

    def of_sizes(self, sizes: Float[np.ndarray, " 3"]) -> Matrix:
        """Return the sum of the terms, each times its size."""
        return sizes[0] * self.constant + sizes[1] * self.counted + sizes[2] * self.counted_twice

    def products(
        self, to: Float[np.ndarray, "*bin m n"]
    ) -> tuple[Float[np.ndarray, "*bin m n"], ...]:
        """Return combinations times each term."""
        variance, flat = np.diag(self.counted_twice), to.reshape(-1, len(self.constant))
        # pairs of other frames do not count the same photons: of means over cells it is diagonal
        is_diagonal = np.count_nonzero(self.counted_twice) == np.count_nonzero(variance)
        twice = flat * variance if is_diagonal else flat @ self.counted_twice
        terms = flat @ self.constant, flat @ self.counted, twice
        return tuple(product.reshape(to.shape) for product in terms)

    def variances(self, to: Float[np.ndarray, "*bin m n"]) -> Float[np.ndarray, "*bin 3 m"]:
        """Return the variances of combinations by each term."""
        return np.stack([(product * to).sum(-1) for product in self.products(to)], axis=-2)

    def mapped(self, to: Float[np.ndarray, "m n"]) -> "NoiseCovariance":
        return NoiseCovariance(*(to @ term @ to.T for term in self))


def nearest_correlation(g: Matrix) -> tuple[Matrix, float]:
    """Return the nearest positive semidefinite matrix, scaled to unit diagonal, and its relative distance."""
    values, vectors = np.linalg.eigh(g)
    nearest = vectors * np.maximum(values, 0) @ vectors.T
    size = np.sqrt(np.diag(nearest))
    nearest /= np.outer(size, size)
    return nearest, float(np.linalg.norm(nearest - g) / np.linalg.norm(g))


def cell_noise(blocks: Blocks, cells: CellPairs) -> NoiseCovariance:
    """Return the covariance of the means of ψ over cells, but for small parts; 0 where a cell has no pair.

    The largest part of `field_noise`, of normal deviations, with F in its leading directions; it is
    multiplied by what the cumulants and the division by the mean counts do to the variance of a pair with the
    mean f of the cell.
    """
    b, n, number = blocks.contrast, len(blocks.g), len(cells.rows)
    F, per_frame = b * blocks.g**2, 1 / blocks.frames.astype(float)
    row, cell_of_row = joined_ranges(*cells.rows.T)
    j, place = joined_ranges(cells.start, cells.end)
    i, cell = row[place], cell_of_row[place]
    weight = blocks.pairs[i, j]
    total = np.bincount(cell, weight, number)
    weight *= (0.5 / np.where(total > 0, total, 1.0))[cell]  # half the weights W; A = W + Wᵀ
    f = 2 / b * np.bincount(cell, weight * F[i, j], number)
    leading = _leading(F)
    stops = np.append(0, np.cumsum(cells.end - cells.start))
    W = csr_array((weight, j, stops), (len(row), n))
    # 4 <A, F W' F> and 4 <A, F W' D + D W' F>, A by its pairs in both orders
    pointer = 2 * np.searchsorted(cell, np.arange(number + 1)).astype(np.int32)
    first, second = np.stack([i, j, j, i], axis=1).astype(np.int32).reshape(-1, 2).T
    in_both_orders = np.repeat(weight, 2)
    noise = np.empty((2, number, number))
    for begin, stop in _together(cells.rows, n):
        low, high = cells.rows[begin].tolist()
        some = np.zeros((high - low, n - low, 2, stop - begin))  # W F and W D, D of `per_frame`
        rows, pairs = (
            slice(*np.searchsorted(number_of, [begin, stop]).tolist())
            for number_of in (cell_of_row, cell)
        )
        some[row[rows] - low, :, 0, cell_of_row[rows] - begin] = (W[rows] @ leading)[:, low:]
        of_frame = weight[pairs] * per_frame[j[pairs]]
        some[i[pairs] - low, j[pairs] - low, 1, cell[pairs] - begin] = of_frame
        product = leading[low:, low:high] @ some.reshape(high - low, -1)
        product = product.reshape(n - low, n - low, 2, stop - begin)
        product[: high - low, :, 1] += per_frame[low:high, None, None] * some[:, :, 0]
        # this age and later ones, whose pairs are of these blocks and later ones
        rest = slice(pointer[begin], None)
        index = first[rest] * np.int32(n - low) + (second[rest] - np.int32(low * (n - low + 1)))
        shape = number - begin, (n - low) ** 2
        A = csr_array((in_both_orders[rest], index, pointer[begin:] - pointer[begin]), shape)
        traces = (A @ product.reshape(shape[1], -1)).reshape(number - begin, 2, -1).swapaxes(0, 1)
        noise[:, begin:, begin:stop] = traces
        noise[:, begin:stop, begin:] = np.swapaxes(traces, 1, 2)
    # twice roots of the variance of a pair over that of normal deviations, without counts and with one
    of_constant = 2 * np.sqrt(1 + b * (4 * f - 4 * f**2 + 2 * f**3) / (1 + f**2))
    of_counted = 2 * np.sqrt(1 + b * (2 * f - f**2))
    noise[0] *= np.outer(of_constant, of_constant)
    noise[1] *= np.outer(of_counted, of_counted)
    twice = np.diag((1 + b * f) * (total > 0) / np.maximum(total, 1))
    return NoiseCovariance(noise[0], noise[1], twice)


def _together(rows: Int[np.ndarray, "cell 2"], n: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of cells of one age, whose products with n blocks are held together."""
    begins = np.append(np.flatnonzero(np.diff(rows[:, 0], prepend=-1)), len(rows))
    for first, last in pairwise(begins.tolist()):
        most = max(MOST_HELD // (2 * (n - int(rows[first, 0])) ** 2), 1)
        yield from ((begin, min(begin + most, last)) for begin in range(first, last, most))


def _leading(F: Matrix) -> Matrix:
    """Return a covariance in its leading directions: itself, unless some are negligible."""
    factor, pivot, rank, _ = dpstrf(F, tol=NEGLIGIBLE * F[0, 0], lower=1)  # with pivots
    if rank == len(F):
        return F
    root = np.zeros((len(F), rank))
    root[pivot - 1] = np.tril(factor)[:, :rank]
    return root @ root.T


def field_noise(blocks: Blocks, fields: Float[np.ndarray, "field block block"]) -> NoiseCovariance:
    """Return the covariance of the sums of fields times ψ over all pairs, in closed form.

    fields: weights of pairs of a block and a later one or itself. Where blocks stand for a longer record, the
    covariance is that of the sums over their `rows` with the sums over all.

    With F = βf, A half the weights of a field in each triangle, B = A∘g and b = 2β(A∘f)1, and primes for the
    other field, the joint cumulants of intensities, 2β² g12 g23 g31 and 2β³ times three cycles of four, give
    2 tr(A F A' F) + 4β³ tr(B g B' g) + 2β³ Σ A12 A'34 g13 g32 g24 g41 - 2β²(b'·diag(g B g) + b·diag(g B' g))
    + bᵀF b' without counts, and 4 tr(A F A') + 8β² tr(B g B') - b·b' with one count.
    """
    rows = blocks.rows
    if not rows.any():  # all of these frames are masked
        return NoiseCovariance(*np.zeros((3, len(fields), len(fields))))
    g, contrast, whole = blocks.g, blocks.contrast, rows.all()
    per_frame = 1 / blocks.frames.astype(float)
    F, weights = contrast * g**2, fields * blocks.pairs
    A = (weights + np.swapaxes(weights, 1, 2)) / 2
    B, some = A * g, slice(*(np.flatnonzero(rows)[[0, -1]] + [0, 1]).tolist())
    AF, Bg, b = _times(A, F[:, some]), _times(B, g), 2 * np.einsum("aij,ij->ai", A, F)
    if whole:
        A_rows, AF_rows, Bg_rows, b_rows = A, AF, Bg, b
    else:  # weights of pairs that count, all in one triangle, have the same traces as A
        A_rows = weights[:, some]
        AF_rows, Bg_rows = _times(A_rows, F), _times(A_rows * g[some], g)
        b_rows = np.einsum("aij,ij->aj", A_rows, F[some])
        b_rows[:, some] += np.einsum("aij,ij->ai", A_rows, F[some])
    turned = np.swapaxes(AF, 1, 2), np.swapaxes(Bg[:, :, some], 1, 2)
    constant = 2 * _product(AF_rows, turned[0]) + 4 * contrast**3 * _product(Bg_rows, turned[1])
    merged = MOST_MERGED if whole else OF_STRETCHES
    constant += 2 * contrast**3 * _opposite(A_rows, A, g, some, merged)
    across = b_rows @ np.einsum("ji,aji->ia", g, Bg)
    across += np.einsum("ji,aji->ai", g[some], Bg_rows) @ b.T
    constant += b_rows @ F @ b.T - 2 * contrast**2 * across
    by_first = (AF_rows + 2 * contrast**2 * Bg_rows * g[some]) * per_frame[some, None]
    counted = 2 * _product(by_first, A[:, some])
    if whole:
        counted *= 2
    else:
        by_second = turned[0] + 2 * contrast**2 * turned[1] * g[some]
        counted += 2 * _product(A_rows * per_frame, by_second)
    counted -= (b_rows * per_frame) @ b.T
    twice = _product(weights[:, some] * (1 + F[some]), fields[:, some])
    return NoiseCovariance(*((term + term.T) / 2 for term in (constant, counted, twice)))


def _times(
    fields: Float[np.ndarray, "field k n"], matrix: Float[np.ndarray, "n m"]
) -> Float[np.ndarray, "field k m"]:
    return (fields.reshape(-1, len(matrix)) @ matrix).reshape(*fields.shape[:2], -1)


def _product(
    fields: Float[np.ndarray, "field n n"], others: Float[np.ndarray, "field n n"]
) -> Float[np.ndarray, "field field"]:
    """Return Σ A12 A'12 of each pair of fields."""
    return fields.reshape(len(fields), -1) @ others.reshape(len(others), -1).T


def _opposite(
    fields: Float[np.ndarray, "field row n"],
    others: Float[np.ndarray, "field n n"],
    g: Matrix,
    rows: slice,
    most: int,
) -> Float[np.ndarray, "field field"]:
    """Return Σ A12 A'34 g13 g32 g24 g41, with neighbouring blocks merged: it is a small part of the whole.

    others: symmetric.
    """
    merge, size = _neighbours(len(g), most)
    g = merge @ g @ merge.T / np.outer(size, size)
    third, fourth = upper_indices(len(g))
    both = g[:, third] * g[:, fourth]  # g13 g14 for every 1; all is symmetric in 3 and 4
    sums = (merge[:, rows] @ fields @ merge.T) @ both
    sums *= both
    others = (merge @ others @ merge.T)[:, third, fourth] * np.where(third == fourth, 1, 2)
    return sums.sum(1) @ others.T


@lru_cache(maxsize=64)
def _neighbours(n: int, most: int) -> tuple[Float[np.ndarray, "k n"], Int[np.ndarray, " k"]]:
    """Return a map to sums over neighbouring blocks, at most so many, and the number of blocks of each."""
    size = np.diff(np.linspace(0, n, min(n, most) + 1).astype(int))
    return np.repeat(np.eye(len(size)), size, axis=1), size


class NoiseFit(NamedTuple):
    mean_counts: PerCounts
    """μ: the values over which the likelihood is averaged."""
    weight: PerCounts
    """Their share of the likelihood; they sum to 1."""
    square: PerCounts
    """Sum of the squares of whitened residuals for one pixel, near `freedom` / P; 1 where the weight is 0."""
    log_likelihood: float
    freedom: int
    whitened: Float[np.ndarray, " freedom"]
    """Residuals at the likeliest μ in units of their standard deviation, uncorrelated, smooth ones first."""

    @property
    def pixels(self) -> PerCounts:
        return self.freedom / self.square

    @property
    def likeliest(self) -> int:
        return int(np.argmax(self.weight))

    @property
    def determined(self) -> bool:
        """Whether P and μ are known one by one: the likelihood falls toward both ends of the values of μ."""
        ends = max(self.weight[0], self.weight[-1])
        return len(self.weight) == 1 or bool(ends < AT_ENDS * self.weight.max())


def outside_of(columns: Float[np.ndarray, "cell column"]) -> Float[np.ndarray, "k cell"]:
    """Return an orthonormal basis of what is orthogonal to all columns."""
    scaled = columns / np.maximum(np.abs(columns).max(0), np.finfo(float).tiny)
    vectors, values, _ = np.linalg.svd(scaled)
    return vectors[:, int((values > 1e-10 * values[0]).sum()) :].T


def left_by_fit(
    residuals: Float[np.ndarray, "cell bin"],
    columns: Float[np.ndarray, "cell column"],
    noise: NoiseCovariance,
) -> tuple[Float[np.ndarray, "k bin"], NoiseCovariance]:
    """Return what fitted columns leave of the residuals of bins with one noise, in coordinates of its own,
    of noise in which no direction is without any. columns: of all parameters, of one of the bins."""
    outside = outside_of(columns)
    small = ROUNDING * np.eye(len(outside))
    both = zip(noise.mapped(outside), noise, strict=True)
    terms = (term + np.trace(whole) * small for term, whole in both)
    return outside @ residuals, NoiseCovariance(*terms)


def likely_noise(
    residuals: Float[np.ndarray, "k bin"], noise: NoiseCovariance, mean_counts: PerCounts
) -> list[NoiseFit]:
    """Return what `left_by_fit` says of P and μ by restricted maximum likelihood, not yet whitened."""
    residuals, every = np.asfortranarray(residuals), np.arange(len(mean_counts))
    k, several = residuals.shape
    sizes, terms = mean_counts[:, None] ** -np.arange(3.0), np.reshape(noise, (3, -1))
    square = np.ones((len(every), several))
    likelihood = np.full(square.shape, -np.inf)

    def add(some: Int[np.ndarray, " some"]) -> None:
        for n, covariance in zip(some, sizes[some] @ terms, strict=True):
            root = _root(covariance.reshape(k, k))
            white, _ = dtrtrs(root, residuals, lower=1)
            square[n] = (white**2).sum(0)
            likelihood[n] = -np.log(root.diagonal()).sum()
        likelihood[some] -= 0.5 * k * np.log(square[some])

    add(coarse := every[::COARSE])
    near = coarse[(likelihood[coarse] >= likelihood[coarse].max(0) - FAR_BELOW).any(1)]
    between = (np.abs(every[:, None] - near) < COARSE).any(1)
    between[coarse] = False
    add(every[between])
    weight = np.exp(likelihood - likelihood.max(0))
    # of each bin in one piece, as it comes from a worker: sums round by this
    shares = weight / weight.sum(0)
    share, squares = (np.ascontiguousarray(of_mu.T) for of_mu in (shares, square))
    return [
        NoiseFit(mean_counts, *of_bin, k, np.zeros(0))
        for of_bin in zip(share, squares, likelihood.max(0).tolist(), strict=True)
    ]


def whitened(
    residuals: Float[np.ndarray, "k bin"], noise: NoiseCovariance, fits: Sequence[NoiseFit]
) -> list[NoiseFit]:
    """Return the fits of bins with their whitened residuals."""
    at_counts = cache(lambda mean_counts: np.linalg.eigh(noise.at(mean_counts)))
    with_residuals = []
    for residual, fit in zip(residuals.T, fits, strict=True):
        values, vectors = at_counts(float(fit.mean_counts[fit.likeliest]))
        white = (vectors.T @ residual / np.sqrt(values))[::-1]
        of_unit_mean = white * np.sqrt(len(white) / (white @ white))
        with_residuals.append(fit._replace(whitened=of_unit_mean))
    return with_residuals


def _root(covariance: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """Return the lower root of a covariance, which is overwritten; above its diagonal it has no meaning."""
    root, failed = dpotrf(covariance.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError(f"the noise of cells is not positive in direction {failed}")
    return root


def regular(covariance: Matrix) -> Matrix:
    """Return a covariance in which no direction has less noise than its rounding, or negative noise."""
    unit = np.eye(len(covariance))
    least = ROUNDING * np.trace(covariance)
    _, failed = dpotrf(covariance + least / 2 * unit, lower=1, clean=0, overwrite_a=1)
    if failed:
        least = max(least, -2 * np.linalg.eigvalsh(covariance)[0])
    return covariance + least * unit


def inverse_of_regular(covariance: Matrix) -> Matrix:
    """Return the inverse of a covariance without directions of no noise."""
    inverse, _ = dpotri(_root(covariance.copy()), lower=1, overwrite_c=1)
    lower = np.tril(inverse)
    return lower + np.tril(lower, -1).T


def pair_variance(contrast: float, sums: Float[np.ndarray, " 3"]) -> NoiseCovariance:
    """Return the sum of w times the variance of ψ over all pairs, with Σ w f³ of an exponential decay."""
    b, (w, f, f2) = contrast, sums
    constant = b**2 * (w + f2) + b**3 * (4 * f - 4 * f2 + 4 / 3 * f2)
    terms = (constant, 2 * b * w + b**2 * (4 * f - 2 * f2), w + b * f)
    return NoiseCovariance(*(np.array([[term]]) for term in terms))


def likely_sizes(fit: NoiseFit, least_pixels: PerCounts | float = 0.0) -> Float[np.ndarray, " 3"]:
    """Return the sizes of the terms of a covariance, means over likely P and μ."""
    share = fit.weight / np.maximum(fit.pixels, least_pixels)
    once, twice = share / fit.mean_counts, share / fit.mean_counts**2
    return np.array([share.sum(), once.sum(), twice.sum()])


def likely_covariance(noise: NoiseCovariance, fit: NoiseFit) -> Matrix:
    """Return the covariance of sums of ψ over the P pixels of a bin, its mean over likely P and μ."""
    return noise.of_sizes(likely_sizes(fit))


def correlation_and_deviation(covariance: Matrix) -> tuple[Matrix, Vector]:
    deviation = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    return covariance / np.outer(deviation, deviation), deviation


def variances(covariance: Matrix, to: Float[np.ndarray, "m n"]) -> Moved:
    """Return the variances of combinations; to: their weights."""
    return ((to @ covariance) * to).sum(1)


def log_variances(
    by_term: Float[np.ndarray, "bin 3 m"], fits: Sequence[NoiseFit]
) -> tuple[Float[np.ndarray, "bin m"], Float[np.ndarray, "bin m"]]:
    """Return means over likely P and μ of logarithms of variances of combinations, and their variances.

    by_term: variances of these combinations by each term of the noise of a pixel.
    """
    log, spread = np.zeros((2, len(by_term), by_term.shape[2]))
    counts = np.array([len(fit.weight) for fit in fits])
    for number in np.unique(counts):  # where counts are known, one
        bins = np.flatnonzero(counts == number)
        some = [fits[n] for n in bins.tolist()]
        names = "weight", "mean_counts", "square"
        arrays = [np.stack([getattr(fit, name) for fit in some]) for name in names]
        likely = (arrays[0] > NEGLIGIBLE_WEIGHT).any(0)
        weight, mean_counts, square = (array[:, likely, None] for array in arrays)
        freedom = np.array([[fit.freedom] for fit in some])
        of_pixels = mean_counts ** -np.arange(3.0) * (square / freedom[:, :, None])
        sizes = of_pixels @ by_term[bins]
        of_counts = np.log(np.maximum(sizes, np.finfo(float).tiny))
        log[bins] = (weight * of_counts).sum(1)
        spread[bins] = (weight * (of_counts - log[bins, None]) ** 2).sum(1) + 2 / freedom
    return log, spread


def relative_variances(
    noise: NoiseCovariance, to: Float[np.ndarray, "bin m n"], fits: Sequence[NoiseFit]
) -> Float[np.ndarray, "bin m"]:
    """Return the variances of the variances of combinations over their squares, of bins with one noise."""
    if all(len(fit.weight) == 1 for fit in fits):  # with known counts, all have that of P
        freedom = np.array([fit.freedom for fit in fits], float)
        return np.repeat(2 / freedom[:, None], to.shape[1], axis=1)
    return log_variances(noise.variances(to), fits)[1]
