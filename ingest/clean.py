"""A matrix as stored in a file → its clean upper half, its noise and its contrast."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import SourceError
from ingest.holes import Excluded, leave_out_fills
from ingest.readers.options import HALVES, Half
from ingest.scatter import BAND_ROWS, MIN_FLOAT32

BLOCK_SIDE = 512
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_ASYMMETRY = 1e-5
"""Largest |C - Cᵀ| that rounding explains, relative to values above 1."""
SAMPLED_FRAMES = 100
"""Frames of which the symmetry of a matrix is looked at, to say how it is wrong."""


class NoDataError(SourceError):
    """A matrix of which nothing is known, or whose noise cannot be told: its bin is left out."""


class CleanMatrix(NamedTuple):
    """The upper half of one matrix, and counts of pairs without data."""

    c2: Float32[np.ndarray, "t t"]
    """NaN on and below the diagonal and where nothing is known; baseline 1."""
    baseline: int
    """Of the matrix in the file, 0 or 1."""
    dead: Int[np.ndarray, " n"]
    """Frames without a single known pair, or of which every pair is 0: no data."""
    zeros: int
    """Pairs of other frames that are 0: measured, no pixel had photons in both frames."""
    infinite: int
    """Pairs that were not finite and not NaN, or too large for float32."""
    one_sided: int
    """Pairs a full matrix knows on one side of the diagonal only: no data."""
    excluded: list[Excluded]
    """Pairs that are no measurement (`ingest/holes.py`): no data."""
    spacing: float
    """From one number to the next, where c2 is, in the file or in the store."""


def clean(
    raw: np.ndarray,
    n_frames: int,
    name: str,
    baseline: int | None = None,
    half: Half | None = None,
    keep_outliers: bool = True,
) -> CleanMatrix:
    """Return the clean upper half of a matrix given as upper, lower or full.

    0 is a measurement, and with few photons most pairs may be 0. It means no data in an empty half, and
    in the row and column of a frame that have nothing else: such a frame had no photon.

    baseline: 0 or 1 where the file says it; else it is detected. A float32 `raw` that may be written to
    is cleaned in place: a second matrix would double the memory. half: what to take of a matrix that is not
    symmetric. keep_outliers: whether pairs of one exact number that is no measurement stay.
    """
    if raw.shape != (n_frames, n_frames) or raw.dtype.kind not in "fiu":
        raise SourceError(
            f"{name} has shape {raw.shape} and dtype {raw.dtype}: it is not a {n_frames}×{n_frames} matrix "
            f"of numbers"
        )
    if raw.dtype.kind in "iu":  # their differences, sums and sizes overflow
        raw = raw.astype(np.float32 if raw.dtype.itemsize < 4 else np.float64)
    kind = np.float16 if raw.dtype == np.float16 else np.float32
    side, counted = _side(raw, name, half)
    turned = side == "full" and _is_symmetric_upside_down(raw)
    in_place = raw.dtype == np.float32 and raw.flags.c_contiguous and raw.flags.writeable
    c2 = raw if in_place else np.empty(raw.shape, dtype=np.float32)
    alive = np.zeros(n_frames, dtype=bool)
    zeros = infinite = one_sided = 0
    worst = 0.0
    for rows, cols in upper_blocks(n_frames, BLOCK_SIDE):
        shape = rows.stop - rows.start, cols.stop - cols.start
        above = ~np.tri(*shape, k=0 if rows == cols else -shape[0], dtype=bool)
        value = raw[cols, rows].T.copy() if side == "lower" else raw[rows, cols]
        pairs = above & counted[rows, None] & counted[cols]
        known = _known(value) & pairs
        if not np.array_equal(known, above):
            infinite += int(np.count_nonzero((np.abs(value) > MAX_FLOAT32) & above))
        if side == "full":
            lower = raw[cols, rows].T.copy()
            both = known & _known(lower) & (_is_zero(value) == _is_zero(lower))
            one_sided += int(np.count_nonzero((known | (_known(lower) & pairs)) & ~both))
            known = both
            if half == "mean":
                value = (value + lower) / 2
            else:
                worst = max(worst, _asymmetry(value, lower, known))
        zeros += int(np.count_nonzero(_is_zero(value) & known))
        c2[rows, cols] = value if known.all() else np.where(known, value, np.nan)
        if rows != cols:
            c2[cols, rows] = np.nan
        alive[rows] |= known.any(axis=1)
        alive[cols] |= known.any(axis=0)
    if worst:
        halves = ", ".join(f"{one} for {of}" for one, of in HALVES.items())
        how = "it is upside down: give c2[..., ::-1, :]" if turned else f"give --half {halves}"
        raise SourceError(f"{name} is not symmetric: the largest |C - Cᵀ| is {worst:.6g}; {how}")
    excluded = [] if keep_outliers else leave_out_fills(c2)
    if baseline is None:
        baseline = _baseline(c2)
    if baseline == 0:
        c2 += 1
    spacing = float(np.spacing(kind(_typical(np.diagonal(c2, 1)))))
    if excluded:
        zeros -= sum(one.pairs for one in excluded if one.value == 0)
        alive &= ~np.isnan(c2).all(axis=1) | ~np.isnan(c2).all(axis=0)
    return CleanMatrix(
        c2, baseline, np.flatnonzero(~alive), zeros, infinite, one_sided, excluded, spacing
    )


def _known(value: np.ndarray) -> Bool[np.ndarray, "..."]:
    return np.abs(value) <= MAX_FLOAT32


def _filled(value: np.ndarray) -> Bool[np.ndarray, "..."]:
    size = np.abs(value)
    return (size <= MAX_FLOAT32) & (size >= MIN_FLOAT32)


def _is_zero(value: np.ndarray) -> Bool[np.ndarray, "..."]:
    return np.abs(value) < MIN_FLOAT32


def upper_blocks(n_frames: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Yield the blocks on and above the diagonal, row by row."""
    starts = range(0, n_frames, side)
    for i in starts:
        for j in starts[i // side :]:
            yield slice(i, min(i + side, n_frames)), slice(j, min(j + side, n_frames))


def _side(raw: np.ndarray, name: str, half: Half | None) -> tuple[str, Bool[np.ndarray, " n"]]:
    """Return which half to take (upper, lower, or full for both), and which frames have a value but 0.

    half: the one to take where both have such values.
    """
    above = below = 0
    counted = np.zeros(len(raw), dtype=bool)
    for start in range(0, len(raw), BAND_ROWS):
        band = raw[start : start + BAND_ROWS]
        filled = _filled(band)
        stop = start + len(filled)
        square = filled[:, start:stop]
        np.fill_diagonal(square, False)
        above += np.count_nonzero(filled[:, stop:]) + np.count_nonzero(np.triu(square))
        below += np.count_nonzero(filled[:, :start]) + np.count_nonzero(np.tril(square))
        counted[start:stop] |= filled.any(axis=1)
        counted |= filled.any(axis=0)
    if above == below == 0:
        raise NoDataError(f"{name} contains no data: every pair is 0 or not finite")
    if min(above, below) == 0:
        side = "upper" if above else "lower"
        if half not in (None, side):
            raise SourceError(
                f"{name} has only its {side} half, but half = {half} is given: leave it out"
            )
        return side, counted
    if half in ("upper", "lower"):
        return half, counted
    if 2 * min(above, below) < max(above, below):
        raise SourceError(
            f"{name} is neither a full matrix nor one half: {above:,} pairs are known above the diagonal and "
            f"{below:,} below; give --half upper or lower to select one half"
        )
    return "full", counted


def _asymmetry(upper: np.ndarray, lower: np.ndarray, both: np.ndarray) -> float:
    """Return the largest |C - Cᵀ| beyond rounding, 0 where there is none."""
    differ = both & (upper != lower)
    one, other = upper[differ].astype(np.float64), lower[differ].astype(np.float64)
    difference = np.abs(one - other)
    return float(
        difference[difference > MAX_ASYMMETRY * np.maximum(np.abs(one), 1)].max(initial=0.0)
    )


def _is_symmetric_upside_down(raw: np.ndarray) -> bool:
    """Return whether a sample of the rows, taken from the last to the first, is symmetric."""
    n = len(raw)
    at = np.linspace(0, n - 1, min(n, SAMPLED_FRAMES)).astype(int)
    some = raw[np.ix_(n - 1 - at, at)]
    return _asymmetry(some, some.T, _known(some) & _known(some.T)) == 0


def _baseline(c2: Float32[np.ndarray, "t t"]) -> int:
    """Return the value that c2 decays to in its far corner: 0 or 1.

    Pairs of 0 do not tell: c2 of few photons has many, and c2 - 1 without noise where it has decayed. If
    the corner has nothing else, all pairs are looked at.
    """
    far, filled = _corner(c2), _filled(_corner(c2))
    if not filled.any():
        far, filled = c2, _filled(c2)
    return int(np.median(far[filled]) >= 0.5)


def _corner(c2: Float32[np.ndarray, "t t"]) -> Float32[np.ndarray, "h h"]:
    """Return the pairs of the longest lags: first against last quarter of the frames."""
    quarter = max(1, len(c2) // 4)
    return c2[:quarter, -quarter:]


def measure_contrast(c2: Float32[np.ndarray, "t t"]) -> float | None:
    """Return the near-diagonal mean minus the long-lag mean, both without their outer tenths."""
    near, far = _trimmed_mean(np.diagonal(c2, 1)), _trimmed_mean(_corner(c2))
    return None if near is None or far is None else near - far


def _typical(values: np.ndarray) -> float:
    known = np.abs(values[~np.isnan(values)])
    return float(np.median(known)) if len(known) else 0.0


def _trimmed_mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    cut = len(known) // 10
    ordered = np.partition(known, [cut, len(known) - cut - 1])
    return float(ordered[cut : len(known) - cut].mean(dtype=np.float64))


def sigma_from_counts(
    intensity: Float[np.ndarray, " t"], contrast: float, n_pixels: int
) -> Float[np.ndarray, " t"]:
    """Return sigma_row: σ²(t1, t2) = (1/μ(t1) + β)(1/μ(t2) + β)/n_pixels, μ counts per pixel,
    β the contrast.

    Frames without a count are never used; they get the σ of the darkest frame, for it to be finite.
    """
    counted = np.maximum(intensity, intensity[intensity > 0].min())
    return np.sqrt((1 / counted + max(contrast, 0.0)) / np.sqrt(n_pixels))
