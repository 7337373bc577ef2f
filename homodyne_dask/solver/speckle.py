"""The covariance of c2 for counted photons of Gaussian speckle, by simulated pixels, sized by residuals.

To first order in 1/P the deviation of c2 from its mean is the mean over P independent pixels of

    ψ(t1, t2) = x1 x2 - β f12 - β f12 (x1 + x2),

with x the counts of a pixel over their mean, less 1, and β the contrast; the last term comes from dividing
by the mean counts of the frames. The covariance of sums of ψ is a polynomial of second degree in 1/μ, μ the
mean counts of a pixel in a frame: with x = δ + s, δ of the intensity and s of the counting, terms without s,
with one s and with two do not mix. So pixels are simulated once for all μ, with signs at random in place of
counts: no moment of s above the second enters, because a pair is never one frame twice.

P and μ follow from residuals averaged over cells of age and lag, by restricted maximum likelihood.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

MAX_MODES = 20
"""Modes of a pixel; the intensity of more is as good as normal, and is scaled to its contrast."""
MEAN_COUNTS = np.geomspace(0.003, 300, 41)
"""Values of μ over which the likelihood is averaged where counts are unknown: below the first all noise is
that of counting, above the last none."""
MOST_BELOW = 5.0
"""Logarithm of the likelihood below its largest, at which counts that are known do not explain the noise."""
PIXELS_AT_ONCE = 128
MOST_MERGED = 48
"""Blocks on which the part of the covariance is computed that takes their fourth power."""


class Cells(NamedTuple):
    """Cells of age and lag as sums over pairs of blocks of frames; the age is that of the first."""

    first: Int[np.ndarray, " age"]
    """The first block of each interval of age; they follow each other up to `stop`."""
    stop: int
    start: Int[np.ndarray, "slot block"]
    """The first partner of a block in each interval of lags."""
    end: Int[np.ndarray, "slot block"]
    """The one after its last partner; a block that starts with itself holds the pairs inside it, too."""
    number: Int[np.ndarray, "age slot"]
    """The cell, -1 for none."""


class Record(NamedTuple):
    """A stretch of frames of one bin, in blocks whose frames see one speckle pattern."""

    g: Float[np.ndarray, "block block"]
    """Field correlation with its sign, positive semidefinite, 1 on the diagonal."""
    contrast: float
    frames: Int[np.ndarray, " block"]
    """Used frames of each block, at least 1."""

    @property
    def pairs(self) -> Float[np.ndarray, "block block"]:
        """Pairs of frames of a block and a later one, and inside each."""
        n = self.frames.astype(float)
        return np.triu(np.outer(n, n), 1) + np.diag(n * (n - 1) / 2)


class Noise(NamedTuple):
    """A covariance of sums over one pixel: constant + counted/μ + counted_twice/μ²."""

    constant: Float[np.ndarray, "n n"]
    counted: Float[np.ndarray, "n n"]
    counted_twice: Float[np.ndarray, "n n"]

    def at(self, mean_counts: float) -> Float[np.ndarray, "n n"]:
        """Return the covariance at μ counts per pixel and frame."""
        return self.constant + self.counted / mean_counts + self.counted_twice / mean_counts**2

    def mapped(self, to: Float[np.ndarray, "m n"]) -> "Noise":
        """Return the covariance of linear combinations."""
        return Noise(*(to @ part @ to.T for part in self))


class Pixels(NamedTuple):
    """Simulated pixels on the blocks of a record."""

    deviation: Float32[np.ndarray, "pixel block"]
    """δ: intensity over its mean, less 1."""
    shot: Float32[np.ndarray, "pixel block"]
    """s at one count per pixel and frame, mean over the frames of a block."""


def simulate_pixels(record: Record, number: int, rng: np.random.Generator) -> Pixels:
    """Return pixels whose intensity is the mean over about 1/contrast modes, its variance the contrast."""
    modes = int(np.clip(round(1 / record.contrast), 1, MAX_MODES))
    root = _root(record.g).astype(np.float32)
    intensity = np.zeros((number, len(root)), np.float32)
    for _ in range(2 * modes):
        field = rng.standard_normal(intensity.shape, np.float32) @ root.T
        field *= field
        intensity += field
    intensity *= np.float32(1 / (2 * modes))
    deviation = (intensity - 1) * np.float32(np.sqrt(record.contrast * modes))
    sign = 2 * rng.integers(0, 2, intensity.shape, np.int8) - 1
    shot = np.sqrt(np.maximum(1 + deviation, 0) / record.frames.astype(np.float32)) * sign
    return Pixels(deviation, shot.astype(np.float32))


def _root(g: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Return L with L Lᵀ = g."""
    try:
        return np.linalg.cholesky(g + 1e-7 * np.eye(len(g)))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(g)
        return vectors * np.sqrt(np.maximum(values, 0))


def nearest_correlation(
    g: Float[np.ndarray, "n n"],
) -> tuple[Float[np.ndarray, "n n"], float]:
    """Return the nearest positive semidefinite matrix, scaled to unit diagonal, and its relative distance."""
    values, vectors = np.linalg.eigh(g)
    nearest = vectors * np.maximum(values, 0) @ vectors.T
    size = np.sqrt(np.diag(nearest))
    nearest /= np.outer(size, size)
    return nearest, float(np.linalg.norm(nearest - g) / np.linalg.norm(g))


def cell_noise(record: Record, cells: Cells, pixels: Pixels) -> Noise:
    """Return the covariance of the means of ψ over cells."""
    f, n = record.g**2, record.frames.astype(float)
    pairs, expected, linear = _cell_tables(record.contrast * f, n, cells)
    sums = [
        _cell_sums(Pixels(*(part[at : at + PIXELS_AT_ONCE] for part in pixels)), n, cells)
        for at in range(0, len(pixels.deviation), PIXELS_AT_ONCE)
    ]
    products, counted = (np.concatenate(part) for part in zip(*sums, strict=True))
    twice = np.diag((1 + expected / pairs) / pairs)
    constant = _covariance((products - pixels.deviation @ linear) / pairs)
    return Noise(constant, _covariance((counted - pixels.shot @ linear) / pairs), twice)


def _cell_tables(
    expected: Float[np.ndarray, "block block"], n: Float[np.ndarray, " block"], cells: Cells
) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"], Float[np.ndarray, "block cell"]]:
    """Return the pairs of every cell, the sums of β f over them, and the factors of x of each block."""
    size, block = int(cells.number.max()) + 1, np.arange(len(n))
    pairs, total, linear = np.zeros(size), np.zeros(size), np.zeros((len(n), size))
    weight = np.triu(np.outer(n, n), 1) + np.diag(n * (n - 1) / 2)
    for start, end, number in zip(cells.start, cells.end, cells.number.T, strict=True):
        inside = weight * ((block >= start[:, None]) & (block < end[:, None]))
        part = inside * expected
        some = number >= 0
        into = number[some]
        pairs[into] += _by_age(inside.sum(1), cells)[some]
        total[into] += _by_age(part.sum(1), cells)[some]
        linear[:, into] += _by_age(part.T, cells)[:, some]
        own = np.repeat(number, np.diff([*cells.first, cells.stop]))
        rows = np.arange(cells.first[0], cells.stop)[own >= 0]
        linear[rows, own[own >= 0]] += part.sum(1)[rows]
    return pairs, total, linear


def _cell_sums(
    pixels: Pixels, n: Float[np.ndarray, " block"], cells: Cells
) -> tuple[Float[np.ndarray, "pixel cell"], Float[np.ndarray, "pixel cell"]]:
    """Return Σ δδ and Σ (δs + sδ) over the pairs of every cell."""
    n = n.astype(np.float32)
    d, s = pixels.deviation * n, pixels.shot * n
    sum_d, sum_s = (np.pad(np.cumsum(x, axis=1), ((0, 0), (1, 0))) for x in (d, s))
    own_d, own_s = (n - 1) / 2 * pixels.deviation - d, (n - 1) * pixels.shot - s
    found = np.zeros((2, len(d), int(cells.number.max()) + 1))
    block = np.arange(len(n))
    for start, end, number in zip(cells.start, cells.end, cells.number.T, strict=True):
        later_d = sum_d[:, end] - sum_d[:, start]
        later_s = sum_s[:, end] - sum_s[:, start]
        some = number >= 0
        of_d, of_s = d * later_d, d * later_s + s * later_d
        itself = np.flatnonzero((start == block) & (end > block))
        if len(itself):
            of_d[:, itself] += (d * own_d)[:, itself]
            of_s[:, itself] += (d * own_s - s * d)[:, itself]
        for into, of in zip(found, (of_d, of_s), strict=True):
            into[:, number[some]] += _by_age(of, cells)[:, some]
    return found[0], found[1]


def _by_age(
    values: Float[np.ndarray, "*rows block"], cells: Cells
) -> Float[np.ndarray, "*rows age"]:
    """Return sums over the blocks of each interval of age."""
    return np.add.reduceat(values[..., : cells.stop], cells.first, axis=-1)


def field_noise(
    record: Record,
    fields: Float[np.ndarray, "field block block"],
    rows: Bool[np.ndarray, " block"],
) -> Noise:
    """Return the covariance of the sums of fields times ψ over all pairs, in closed form.

    fields: weights of pairs of a block and a later one or itself. rows: blocks of the first frames that count
    where a record stands for a longer one: the covariance is that of their sums with the sums over all.

    With F = βf, A half the weights of a field in each triangle, B = A∘g and b = 2β(A∘f)1, and primes for the
    other field, the joint cumulants of intensities, 2β² g12 g23 g31 and 2β³ times three cycles of four, give
    2 tr(A F A' F) + 4β³ tr(B g B' g) + 2β³ Σ A12 A'34 g13 g32 g24 g41 - 2β²(b'·diag(g B g) + b·diag(g B' g))
    + bᵀF b' without counts, and 4 tr(A F A') + 8β² tr(B g B') - b·b' with one count.
    """
    g, contrast, pairs = record.g, record.contrast, record.pairs
    every = _Forms.of(fields * pairs, record)
    mine = every if rows.all() else _Forms.of(fields * pairs * rows[:, None], record)
    one = 1 / record.frames.astype(float)
    constant = 2 * _traces(mine.AF, every.AF) + 4 * contrast**3 * _traces(mine.Bg, every.Bg)
    constant += 2 * contrast**3 * _opposite(mine.A, every.A, record)
    across = mine.b @ _diagonals(g, every.Bg).T + _diagonals(g, mine.Bg) @ every.b.T
    constant += mine.b @ (contrast * g**2) @ every.b.T - 2 * contrast**2 * across
    counted = 4 * np.einsum("aij,bij,i->ab", mine.AF, every.A, one, optimize=True)
    counted += 8 * contrast**2 * np.einsum("aij,bij,i->ab", mine.Bg, every.B, one, optimize=True)
    counted -= (mine.b * one) @ every.b.T
    twice = np.tensordot(
        fields * (pairs * rows[:, None] * (1 + contrast * g**2)), fields, ((1, 2), (1, 2))
    )
    return Noise(*((part + part.T) / 2 for part in (constant, counted, twice)))


class _Forms(NamedTuple):
    """The matrices of `field_noise` of every field."""

    A: Float[np.ndarray, "field n n"]
    B: Float[np.ndarray, "field n n"]
    AF: Float[np.ndarray, "field n n"]
    Bg: Float[np.ndarray, "field n n"]
    b: Float[np.ndarray, "field n"]

    @classmethod
    def of(cls, weights: Float[np.ndarray, "field n n"], record: Record) -> "_Forms":
        """Return those of weights of pairs on and above the diagonal."""
        A, F = (weights + np.swapaxes(weights, 1, 2)) / 2, record.contrast * record.g**2
        B = A * record.g
        return cls(A, B, A @ F, B @ record.g, 2 * (A * F).sum(2))


def _traces(
    one: Float[np.ndarray, "field n n"], other: Float[np.ndarray, "field n n"]
) -> Float[np.ndarray, "field field"]:
    """Return tr(M M') of all pairs of matrices."""
    return np.tensordot(one, other, ((1, 2), (2, 1)))


def _diagonals(
    g: Float[np.ndarray, "n n"], products: Float[np.ndarray, "field n n"]
) -> Float[np.ndarray, "field n"]:
    """Return the diagonals of g M, M the products."""
    return np.einsum("ij,aji->ai", g, products, optimize=True)


def _opposite(
    one: Float[np.ndarray, "field n n"], other: Float[np.ndarray, "field n n"], record: Record
) -> Float[np.ndarray, "field field"]:
    """Return Σ A12 A'34 g13 g32 g24 g41, with neighbouring blocks merged: it is a small part of the whole."""
    n = len(record.g)
    first = (
        np.unique(np.linspace(0, n, MOST_MERGED + 1).astype(int)[:-1])
        if n > MOST_MERGED
        else np.arange(n)
    )

    def merged(A: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(A, first, axis=1), first, axis=2)

    size = np.diff([*first, n])
    g = merged(record.g[None])[0] / np.outer(size, size)
    both = (g[:, :, None] * g[:, None, :]).reshape(len(size), -1)  # g13 g14 for every 1 and (3, 4)
    found = np.empty((len(one), len(other)))
    right = merged(other).reshape(len(other), -1)
    for a, A in enumerate(merged(one)):
        found[a] = right @ (both * (A @ both)).sum(0)
    return found


def _covariance(of: Float[np.ndarray, "pixel n"]) -> Float[np.ndarray, "n n"]:
    """Return the covariance over pixels."""
    of = of - of.mean(0)
    return of.T @ of / (len(of) - 1)


class NoiseFit(NamedTuple):
    """What residuals of cells say of P and μ of one bin."""

    mean_counts: Float[np.ndarray, " mu"]
    """μ: where it is known that alone, else those over which the likelihood is averaged."""
    weight: Float[np.ndarray, " mu"]
    """Their share of the likelihood; they sum to 1."""
    pixels: Float[np.ndarray, " mu"]
    """P at each."""
    log_likelihood: Float[np.ndarray, " mu"]
    freedom: int
    """Cells less the columns that were fitted."""
    whitened: Float[np.ndarray, " freedom"]
    """Residuals at the likeliest μ in units of their standard deviation, uncorrelated, smooth ones first."""

    @property
    def likeliest(self) -> int:
        """Which μ has the largest likelihood."""
        return int(np.argmax(self.log_likelihood))


def fit_noise(
    residual: Float[np.ndarray, " cell"],
    columns: Float[np.ndarray, "cell column"],
    noise: Noise,
    simulated: int,
    mean_counts: float | None = None,
) -> NoiseFit:
    """Return P and μ of the residuals of a least-squares fit, by restricted maximum likelihood.

    columns: the derivatives of the fitted c2 in every cell by all fitted parameters, contrast and offset
    too. simulated: pixels behind `noise`. mean_counts: μ where it is known; it is used unless the residuals
    rule it out.
    """
    outside = _complement(columns)
    left, of_left = outside.T @ residual, noise.mapped(outside.T)
    k = len(left)
    known = np.array([*([] if mean_counts is None else [mean_counts]), *MEAN_COUNTS])
    pixels, log_likelihood, whitened = np.zeros(len(known)), np.zeros(len(known)), []
    for n, mu in enumerate(known):
        values, vectors = np.linalg.eigh(of_left.at(mu))
        values, vectors = values[::-1], vectors[:, ::-1]
        values = np.maximum(values, 1e-12 * values[0])
        one = vectors.T @ left / np.sqrt(values)
        square = one @ one / _inverse_bias(of_left, mu, values, vectors, simulated)
        pixels[n] = k / square
        log_likelihood[n] = -0.5 * np.log(values).sum() - 0.5 * k * np.log(square)
        whitened.append(one * np.sqrt(k / (one @ one)))
    some = slice(None)
    if mean_counts is not None:
        counted = log_likelihood[0] > log_likelihood.max() - MOST_BELOW
        some = slice(0, 1) if counted else slice(1, None)
    known, pixels, log_likelihood = known[some], pixels[some], log_likelihood[some]
    weight = np.exp(log_likelihood - log_likelihood.max())
    best = int(np.argmax(log_likelihood))
    return NoiseFit(known, weight / weight.sum(), pixels, log_likelihood, k, whitened[some][best])


def _complement(columns: Float[np.ndarray, "cell column"]) -> Float[np.ndarray, "cell left"]:
    """Return orthonormal vectors orthogonal to all columns."""
    scaled = columns / np.maximum(np.abs(columns).max(0), np.finfo(float).tiny)
    vectors, values, _ = np.linalg.svd(scaled)
    rank = int((values > 1e-10 * values[0]).sum())
    return vectors[:, rank:]


def _inverse_bias(
    noise: Noise,
    mu: float,
    values: Float[np.ndarray, " n"],
    vectors: Float[np.ndarray, "n n"],
    simulated: int,
) -> float:
    """Return the factor by which a quadratic form in the inverse of a simulated covariance is too large.

    (S - 1)/(S - n - 2) for S pixels (Anderson 2003), where all of it is; the part of two counts is exact.
    """
    n = len(values)
    exact = np.einsum("ai,ab,bi->i", vectors, noise.counted_twice, vectors) / mu**2
    part = float(np.mean(1 - np.minimum(exact / values, 1)))
    whole = (simulated - 1) / max(simulated - n - 2, 1)
    return 1 + (whole - 1) * part**2


class Variance(NamedTuple):
    """A covariance of sums over all pixels of a bin, and what is known of its size."""

    covariance: Float[np.ndarray, "n n"]
    """Mean over the likelihood of P and μ."""
    log_size: Float[np.ndarray, " n"]
    """Mean logarithm of each variance over that in `covariance`."""
    relative: Float[np.ndarray, " n"]
    """Variance of the logarithm of each."""


def variance_of(noise: Noise, fit: NoiseFit) -> Variance:
    """Return the covariance of sums of ψ over the P pixels of a bin."""
    each = np.stack([noise.at(mu) / P for mu, P in zip(fit.mean_counts, fit.pixels, strict=True)])
    covariance = np.einsum("m,mab->ab", fit.weight, each)
    variances = np.einsum("maa->ma", each)
    log = np.log(np.maximum(variances, np.finfo(float).tiny))
    mean = fit.weight @ log
    known = np.diag(covariance) > 0
    size = np.where(known, mean - np.log(np.where(known, np.diag(covariance), 1.0)), 0.0)
    relative = fit.weight @ (log - mean) ** 2 + 2 / fit.freedom
    return Variance(covariance, size, relative)
