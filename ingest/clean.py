"""A matrix as stored in a file → its clean upper half, its noise and its contrast, without what is no data.

A number that many pairs hold exactly is no measurement where hardly any other pair of the same two frames is
even a quarter as far from the median of its lag: noise of few photons or of a beam trip reaches as far.
Frames twice as noisy as others, or that repeat numbers (few photons, rounding), keep all of their pairs. In
the middle of what is measured, a number is no measurement that is far more frequent than every other.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import HALVES, Half
from homodyne_dask.store.arrays import is_uneven

MIN_FLOAT32 = float(np.finfo(np.float32).tiny)
"""Anything smaller counts as 0."""
BAND_ROWS = 64
"""Rows processed together where whole rows are needed: small enough for the cache."""
SAMPLES = 200_000
MIN_DIFFERENCES = 10
NEIGHBOURS = 3
"""On each side along a lag diagonal, for frames that are not even in time."""
FEW = 0.35
"""σ above which a pair has less than some 8 photons in common: noise is that of small numbers."""
MIN_LEFT = 0.05
"""Share of the variance of a pair that a curve through it must leave."""


def measure_scatter(
    c2: Float32[np.ndarray, "t t"], time: Float[np.ndarray, " t"] | None = None
) -> float | None:
    """Return σ of one pair from its neighbours along the lag diagonal, None if too few.

    1.4826 · MAD of second differences / √6: neighbours along a lag diagonal share no frame beyond lag 2, and
    what decays slowly cancels. Of few photons, whose numbers are not normal, and may be 0 in most pairs, the
    root mean square is taken, of differences that are not FAR.
    time: of the frames; where they are uneven, lags along a diagonal are, too, and differences are those from
    a smooth curve through seven pairs.
    """
    if time is not None and is_uneven(time):
        apart, scale = _from_smooth(c2, time), 1.0
    else:  # about SAMPLES second differences: rows are taken at even distance
        step = max(1, len(c2) ** 2 // (2 * SAMPLES))
        first, middle, last = c2[:-2:step, :-2], c2[1:-1:step, 1:-1], c2[2::step, 2:]
        apart, scale = first.astype(np.float64) - 2.0 * middle + last, np.sqrt(6)
        apart = apart[~np.isnan(apart)]
    if len(apart) < MIN_DIFFERENCES:
        return None
    apart = np.abs(apart - median(apart))
    spread = 1.4826 * float(median(apart)) / scale
    if not 0 < spread < FEW:
        near = apart / scale < FAR * max(spread, spread**2) if spread else ...
        return float(np.sqrt(np.mean(np.square(apart[near]))) / scale)
    return spread


def median(values: np.ndarray) -> float:
    """Return the median of numbers without NaN; `np.median` takes three times as long for few."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, (low, high))
    return float((ordered[low] + ordered[high]) / 2)


def _from_smooth(
    c2: Float32[np.ndarray, "t t"], time: Float[np.ndarray, " t"]
) -> Float[np.ndarray, " n"]:
    """Return how far pairs lie from a curve through their neighbours along the diagonal.

    The curve is quadratic in the position along the diagonal and in the logarithm of the lag. Each
    distance is divided by the share of σ that remains after the fit of its curve.
    """
    along = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)
    i, j = np.triu_indices(len(c2), 1)
    inside = np.flatnonzero((i >= NEIGHBOURS) & (j < len(c2) - NEIGHBOURS))
    inside = inside[:: max(1, len(inside) // (SAMPLES // 10))]
    i, j = i[inside, None] + along, j[inside, None] + along
    values = c2[i, j].astype(np.float64)
    complete = np.isfinite(values).all(axis=1)
    values, lag = values[complete], np.log(time[j[complete]] - time[i[complete]])
    lag -= lag[:, [NEIGHBOURS]]
    step = np.broadcast_to(along / NEIGHBOURS, lag.shape)
    terms = np.stack([np.ones_like(lag), step, step**2, lag, lag**2], axis=-1)
    terms /= np.maximum(np.abs(terms).max(axis=1, keepdims=True), MIN_FLOAT32)
    basis, size, _ = np.linalg.svd(terms, full_matrices=False)
    # of terms that hardly differ at these lags, directions within rounding would fit any noise
    basis *= (size > 1e-6 * size[:, :1])[:, None, :]
    basis_of_pair = basis[:, NEIGHBOURS]
    variance_left = 1 - np.square(basis_of_pair).sum(axis=-1)
    free = variance_left > MIN_LEFT
    apart = values[:, NEIGHBOURS] - np.einsum("nk,njk,nj->n", basis_of_pair, basis, values)
    return apart[free] / np.sqrt(variance_left[free])


SHIFTS, APART, PARTS, LEAST_SMOOTHABLE = (1, 2, 4), 8, 10, 60
"""Frames between pairs that are compared, those to pairs of the same lag whose noise is another one, parts of
a record whose scatter gives an error, and least frames."""


class NoiseSmoothness(NamedTuple):
    """How far next pairs differ, over what follows from pairs further apart: 1 unless c2 was smoothed."""

    log_ratio: float
    stderr: float
    """With PARTS - 1 degrees of freedom."""


def measure_smoothness(c2: Float32[np.ndarray, "t t"]) -> NoiseSmoothness | None:
    """Return the smoothness of the noise at long lags; None of a short record.

    The noise of y(i, j) - y(i+d, j) - y(i, j+d) + y(i+d, j+d) is 2/√P [1/μ + β(1 - f(d))]: a straight line in
    the mean of c2 at the lags d. That at the first of SHIFTS is compared with the line through the others.
    Smoothed counting noise is far below this line. What all pairs of a lag have in common is taken off.
    """
    n = len(c2)
    if n < LEAST_SMOOTHABLE:
        return None
    near, far = np.zeros(len(SHIFTS)), n // 3
    rows = np.arange(0, n - far - 2 * APART, max(1, n**2 // SAMPLES))
    sums = np.zeros((2, len(SHIFTS), PARTS))
    with np.errstate(over="ignore", invalid="ignore"):
        for k, d in enumerate(SHIFTS):
            diagonal = np.diagonal(c2, d).astype(np.float64)
            near[k] = (
                diagonal[~np.isnan(diagonal)].mean() if np.isfinite(diagonal).any() else np.nan
            )
            step, later = (
                c2[rows + by].astype(np.float64) - c2[rows + by + d] for by in (0, APART)
            )
            mixed = step[:, : -d - APART] - step[:, d:-APART]
            mixed = np.square(mixed - later[:, APART:-d] + later[:, APART + d :])
            mixed[np.arange(n - d - APART) < rows[:, None] + far] = np.nan
            part = np.arange(len(rows)) * PARTS // len(rows)
            of_rows = np.nansum(mixed, axis=1), np.isfinite(mixed).sum(1)
            sums[:, k] = [np.bincount(part, of_row, PARTS) for of_row in of_rows]
    whole = sums.sum(2, keepdims=True)
    squares, number = np.concatenate([whole, whole - sums], axis=2)
    if not (number > 0).all() or not (squares > 0).all():
        return None
    first, second, last = np.sqrt(squares / number)
    slope = np.maximum(last - second, 0) / (near[1] - near[2]) if near[1] > near[2] else 0.0
    expected = second - slope * max(near[0] - near[1], 0.0)
    if not (expected > 0).all():
        return None
    log = np.log(first / expected)
    return NoiseSmoothness(float(log[0]), float(np.sqrt((PARTS - 1) * log[1:].var())))


MOST_PERIOD, MOST_BESIDE, LEAST_CYCLES = 64, 16, 12
"""The longest period that is looked for, frequencies on each side of one that say how noisy it is, and least
periods in a record."""
MOST_UNKNOWN = 0.2
"""Share of pairs of next frames."""


class Period(NamedTuple):
    """How far c2 of next frames repeats with a period."""

    power: float
    """Mean of its harmonics, over that of all frequencies."""
    beside: float
    """The same of the frequencies beside them."""
    freedom: int
    """Degrees of freedom of `beside` for each of `power`."""
    change: float
    """The largest less the least mean of c2 at its frames."""


def measure_periods(c2: Float32[np.ndarray, "t t"]) -> list[Period]:
    """Return how far c2 of next frames repeats every 2, 3, ... frames; none where too few are known."""
    near, periods = np.diagonal(c2, 1).astype(np.float64), list[Period]()
    if np.isnan(near).mean() > MOST_UNKNOWN:
        return periods
    place, measured = np.arange(len(near)), np.isfinite(near)
    # along the trend: a constant at frames that are dead in turn would repeat
    near = np.interp(place, place[measured], near[measured]) if measured.any() else near
    for period in range(2, min(MOST_PERIOD, len(near) // LEAST_CYCLES) + 1):
        cycles = len(near) // period
        whole = near[: cycles * period]
        power = np.abs(np.fft.rfft(whole - whole.mean())) ** 2
        if not power.sum() > 0:
            return []
        power /= power[1:].mean()
        harmonics, reach = cycles * np.arange(1, period // 2 + 1), min(cycles // 3, MOST_BESIDE)
        beside = harmonics[:, None] + np.arange(-reach, reach + 1)
        beside = np.where(beside < len(power), beside, 2 * harmonics[:, None] - beside)
        # the last frequency, of period 2, has half as much freedom as others, and as many beside it
        weight = np.where(2 * harmonics < cycles * period, 2, 1) / (period - 1)
        level = weight @ (power[beside].sum(1) - power[harmonics]) / (2 * reach)
        change = float(np.ptp(whole.reshape(cycles, period).mean(0)))
        periods.append(Period(float(weight @ power[harmonics]), float(level), 2 * reach, change))
    return periods


OFTEN = 20
"""A number that is no measurement is so many times as frequent as others."""
MAX_NUMBERS = 3
"""Where more numbers are so frequent, photons are few, or c2 is rounded."""
REACH = 4.0
"""A pair that is no measurement is so many times as far from the median of its lag as others."""
FAR = 30.0
"""A single pair that is no measurement is so many σ from all pairs around it."""
DIFFERENT = 0.75
"""Where a smaller share of the pairs of a frame have numbers that differ, the numbers repeat."""
MIDDLE = 0.05, 0.95
"""Quantiles between which a number is in the middle of what is measured."""

Pairs = tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]


class Excluded(NamedTuple):
    why: str
    value: float
    """The value of the first pair, which is that of the frames i and j."""
    pairs: int
    i: int
    j: int


def _leave_out(c2: Float32[np.ndarray, "t t"], why: str, i: np.ndarray, j: np.ndarray) -> Excluded:
    excluded = Excluded(why, float(c2[i[0], j[0]]), len(i), int(i[0]), int(j[0]))
    c2[i, j] = np.nan
    return excluded


@np.errstate(over="ignore")
def leave_out_fills(c2: Float32[np.ndarray, "t t"]) -> list[Excluded]:
    """Make the pairs unknown that hold one exact number, no measurement; return them by number."""
    sample = c2[:: max(1, len(c2) ** 2 // (2 * SAMPLES))]
    ordered = np.sort(sample[~np.isnan(sample)])
    if (ordered[1:] != ordered[:-1]).all():
        return []
    numbers, counts = np.unique(ordered, return_counts=True)
    if 3 * counts.max(initial=0) >= 2 * counts.sum():  # as zeros of few photons
        return []
    often = counts >= OFTEN * median(counts)
    if not 0 < np.count_nonzero(often) <= min(MAX_NUMBERS, len(counts) - 1):
        return []
    low, high = np.quantile(np.repeat(numbers[~often], counts[~often]), MIDDLE)
    most = max(OFTEN * counts[~often].max(), counts.sum() / OFTEN)
    lags, excluded = _measure_lags(c2, numbers[often]), list[Excluded]()
    for number, count in zip(numbers[often], counts[often], strict=True):
        i, j = np.nonzero(c2 == number)
        if not low < number < high or count < most:
            noisy, frames = np.zeros(len(c2), bool), np.unique(np.append(i, j))
            noisy[frames] = [_is_noise(number, n, c2, lags, numbers[often]) for n in frames]
            stay = noisy[i] | noisy[j] | (2 * np.count_nonzero(noisy) > len(frames))
            i, j = i[~stay], j[~stay]
        if len(i) >= OFTEN:
            excluded.append(_leave_out(c2, "repeated", i, j))
    return excluded


@np.errstate(over="ignore")
def leave_out_single(c2: Float32[np.ndarray, "t t"], sigma: float) -> list[Excluded]:
    """Make single pairs unknown that are FAR from all around them; return them together."""
    i, j = long_steps(c2, FAR * sigma)
    if not 0 < len(i) < 4 * len(c2):  # those of few photons are many
        return []
    i, j = distinct((i, j), len(c2))
    # from the nearest value of those around it, NaN where none is known
    around = [c2[max(a - 1, 0) : a + 2, max(b - 1, 0) : b + 2] for a, b in zip(i, j, strict=True)]
    steps = (np.sort(np.abs(c - c2[a, b]), axis=None) for c, a, b in zip(around, i, j, strict=True))
    far = np.array([step[1] > FAR * sigma for step in steps])
    i, j, lags = i[far], j[far], _measure_lags(c2, np.empty(0))
    single = [
        not any(_is_noise(float(c2[pair]), frame, c2, lags, c2[pair]) for frame in pair)
        for pair in zip(i, j, strict=True)
    ]
    return [_leave_out(c2, "far", i[single], j[single])] if any(single) else []


def _measure_lags(
    c2: Float32[np.ndarray, "t t"], without: Float32[np.ndarray, " number"]
) -> Float[np.ndarray, "2 lag"]:
    lags = np.full((2, len(c2)), np.nan)
    for lag in range(1, len(c2)):
        pairs = c2.diagonal(lag)
        pairs = pairs[~np.isnan(pairs) & ~np.isin(pairs, without)]
        if len(pairs):
            lags[0, lag] = median(pairs)
            lags[1, lag] = median(np.abs(pairs - lags[0, lag]))
    return lags


def _is_noise(
    number: float, frame: int, c2: np.ndarray, lags: np.ndarray, numbers: np.ndarray
) -> bool:
    """Return whether a number may be noise of a frame, by the pairs of the frame with other numbers.

    It may be where these are few, lie as far from the median of their lags, are mostly farther from it than
    is typical, or repeat one another's numbers. numbers: those that may be no measurement.
    """
    pairs = np.append(c2[:frame, frame], c2[frame, frame:])
    median, typical = lags[:, np.abs(np.arange(len(c2)) - frame)]
    ordinary = ~np.isnan(pairs) & ~np.isin(pairs, numbers)
    apart = np.abs(pairs - median)
    far = ordinary & (REACH * apart >= np.abs(number - median))
    total = np.count_nonzero(ordinary)
    return bool(total) and bool(
        total < OFTEN
        or OFTEN * np.count_nonzero(far) > np.count_nonzero(pairs == number)
        or 2 * np.count_nonzero(ordinary & (apart > 2 * typical)) > total
        or len(np.unique(pairs[ordinary])) < DIFFERENT * total
    )


@np.errstate(over="ignore")  # an infinite step is far, too
def long_steps(value: np.ndarray, least: float) -> Pairs:
    """Return both pairs of each long step from one to the next of its lag; some pairs are there twice."""
    n, steps = len(value), list[Pairs]()
    for first in range(0, n - 1, BAND_ROWS):
        last = min(first + BAND_ROWS, n - 1)
        step = np.abs(value[first + 1 : last + 1, first + 1 :] - value[first:last, first:-1])
        i, j = np.nonzero(step > least)
        i, j = i + first, j + first
        steps.append((np.append(i, i + 1), np.append(j, j + 1)))
    i, j = (np.concatenate(frames) for frames in zip(*steps, strict=True))
    return i, j


def distinct(pairs: Pairs, n_frames: int) -> Pairs:
    i, j = pairs
    i, j = np.divmod(np.unique(i * n_frames + j), n_frames)
    return i, j


BLOCK_SIDE = 512
"""Frames of the blocks in which matrices are worked on: no temporary array has the size of a matrix."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_ASYMMETRY = 1e-5
"""Largest |C - Cᵀ| that rounding explains, relative to values above 1."""
SAMPLED_FRAMES = 100
"""Frames by which a matrix that is not symmetric is compared with its mirror image."""


class NoDataError(SourceError):
    """A matrix without a known pair, or whose noise is unknown: its bin is left out."""


class CleanMatrix(NamedTuple):
    """The upper half of one matrix, and counts of pairs without data."""

    c2: Float32[np.ndarray, "t t"]
    """NaN on and below the diagonal and where nothing is known; baseline 1."""
    baseline: int
    """What the matrix in the file decays to, 0 or 1."""
    dead: Int[np.ndarray, " n"]
    """Frames without a single known pair, or of which every pair is 0: no data."""
    zeros: int
    """Pairs of other frames that are 0: measured, no pixel had photons in both frames."""
    infinite: int
    """Pairs that were not finite and not NaN, or too large for float32."""
    one_sided: int
    """Pairs a full matrix knows on one side of the diagonal only: no data."""
    excluded: list[Excluded]
    """Pairs that are no measurement: no data."""
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
    is cleaned in place. half: what to take of a matrix that is not symmetric. keep_outliers: whether pairs
    of one exact number that is no measurement stay.
    """
    if raw.dtype.kind in "iu":  # their differences, sums and sizes overflow
        raw = raw.astype(np.result_type(raw.dtype, np.float32))
    side, counted = _side_and_frames(raw, n_frames, name, half)
    c2 = _destination(raw)
    zeros = infinite = one_sided = 0
    for rows, cols, above, upper, lower in _pairs(raw):
        value, pairs = lower if side == "lower" else upper, above & counted[rows, None]
        pairs &= counted[cols]
        measured = _known(value) & pairs
        infinite += int(np.count_nonzero((np.abs(value) > MAX_FLOAT32) & above))
        if side == "full":
            both = measured & _known(lower) & (_is_zero(value) == _is_zero(lower))
            one_sided += int(np.count_nonzero((measured | (_known(lower) & pairs)) & ~both))
            measured = both
            if half == "mean":
                value = (value + lower) / 2
        zeros += int(np.count_nonzero(_is_zero(value) & measured))
        block = np.where(measured, value, np.nan)  # before c2, which may be `raw`, is written
        c2[cols, rows] = np.nan
        c2[rows, cols] = block
    excluded = [] if keep_outliers else leave_out_fills(c2)
    baseline = _baseline(c2) if baseline is None else baseline
    if baseline == 0:
        c2 += 1
    zeros -= sum(fill.pairs for fill in excluded if fill.value == 0)
    # without a copy of the matrix: the largest number is NaN where there is none
    dead = np.flatnonzero(np.isnan([np.fmax.reduce(c2, axis) for axis in (0, 1)]).all(axis=0))
    spacing = _spacing_of_numbers(c2, raw.dtype)
    return CleanMatrix(c2, baseline, dead, zeros, infinite, one_sided, excluded, spacing)


def _destination(raw: np.ndarray) -> Float32[np.ndarray, "t t"]:
    """Return the array for the clean matrix: `raw` itself where it can be, as two would double the memory."""
    in_place = raw.dtype == np.float32 and raw.flags.c_contiguous and raw.flags.writeable
    return raw if in_place else np.empty(raw.shape, dtype=np.float32)


def _spacing_of_numbers(c2: Float32[np.ndarray, "t t"], dtype: np.dtype) -> float:
    """Return the distance from a typical c2 at lag 1 to the next number of the type in the file."""
    near = np.abs(np.diagonal(c2, 1))
    near = near[~np.isnan(near)]
    kind = np.float16 if dtype == np.float16 else np.float32  # a store has no more than float32
    return float(np.spacing(kind(median(near) if len(near) else 0.0)))


def _known(value: np.ndarray) -> Bool[np.ndarray, "..."]:
    return np.abs(value) <= MAX_FLOAT32


def _is_zero(value: np.ndarray) -> Bool[np.ndarray, "..."]:
    return np.abs(value) < MIN_FLOAT32


def _filled(value: np.ndarray) -> Bool[np.ndarray, "..."]:
    return _known(value) & ~_is_zero(value)


def upper_blocks(n_frames: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Yield the blocks on and above the diagonal, row by row."""
    starts = range(0, n_frames, side)
    for i in starts:
        for j in starts[i // side :]:
            yield slice(i, min(i + side, n_frames)), slice(j, min(j + side, n_frames))


def _pairs(raw: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows and columns of blocks, which of their pairs have t1 < t2, and both halves as (t1, t2)."""
    for rows, cols in upper_blocks(len(raw), BLOCK_SIDE):
        shape = rows.stop - rows.start, cols.stop - cols.start
        above = _upper(*shape, 0 if rows == cols else -shape[0])
        yield rows, cols, above, raw[rows, cols], raw[cols, rows].T


@lru_cache(4)
def _upper(rows: int, columns: int, diagonal: int) -> Bool[np.ndarray, "row column"]:
    return ~np.tri(rows, columns, diagonal, dtype=bool)


def _side_and_frames(
    raw: np.ndarray, n_frames: int, name: str, half: Half | None
) -> tuple[str, Bool[np.ndarray, " n"]]:
    """Return the half to take (upper, lower, or full for both), and the frames with a value other than 0."""
    if raw.shape != (n_frames, n_frames) or raw.dtype.kind != "f":
        raise SourceError(
            f"{name} has shape {raw.shape} and dtype {raw.dtype}: it is not a {n_frames}×{n_frames} matrix "
            f"of numbers"
        )
    filled, worst = {"upper": 0, "lower": 0}, 0.0
    counted = np.zeros(n_frames, dtype=bool)
    for rows, cols, above, *values in _pairs(raw):
        for side, value in zip(filled, values, strict=True):
            pairs = _filled(value) & above
            filled[side] += int(np.count_nonzero(pairs))
            counted[rows] |= pairs.any(axis=1)
            counted[cols] |= pairs.any(axis=0)
        if half is None:
            worst = max(worst, _asymmetry(values[0], values[1], above))
    return _side(raw, name, half, filled, worst), counted


def _side(
    raw: np.ndarray, name: str, half: Half | None, filled: dict[str, int], worst: float
) -> str:
    """Return the half to take, by the number of pairs in each and the largest |C - Cᵀ|."""
    few, most = sorted(filled, key=lambda side: filled[side])
    if not filled[most]:
        raise NoDataError(f"{name} contains no data: every pair is 0 or not finite")
    if not filled[few]:
        if half not in (None, most):
            raise SourceError(
                f"{name} has only its {most} half, but half = {half} is given: leave it out"
            )
        return most
    if half in ("upper", "lower"):
        return half
    if 2 * filled[few] < filled[most]:
        raise SourceError(
            f"{name} is neither a full matrix nor one half: {filled['upper']:,} pairs are known above the "
            f"diagonal and {filled['lower']:,} below; give --half upper or lower to select one half"
        )
    if worst:
        how = "give --half " + ", ".join(f"{side} for {pairs}" for side, pairs in HALVES.items())
        frames = np.linspace(0, len(raw) - 1, min(len(raw), SAMPLED_FRAMES)).astype(int)
        turned = raw[np.ix_(len(raw) - 1 - frames, frames)]
        if _asymmetry(turned, turned.T, np.array(True)) == 0:
            how = "it is upside down: give c2[..., ::-1, :]"
        raise SourceError(f"{name} is not symmetric: the largest |C - Cᵀ| is {worst:.6g}; {how}")
    return "full"


def _asymmetry(upper: np.ndarray, lower: np.ndarray, pairs: np.ndarray) -> float:
    """Return the largest |C - Cᵀ| beyond rounding of pairs known in both halves, 0 where there is none."""
    differ = pairs & (upper != lower) & _known(upper) & _known(lower)
    differ &= _is_zero(upper) == _is_zero(lower)
    first, second = upper[differ].astype(np.float64), lower[differ].astype(np.float64)
    difference = np.abs(first - second)
    rounding = MAX_ASYMMETRY * np.maximum(np.abs(first), 1)
    return float(difference[difference > rounding].max(initial=0.0))


def _baseline(c2: Float32[np.ndarray, "t t"]) -> int:
    """Return the value that c2 decays to in its far corner: 0 or 1.

    Pairs of 0 do not count: c2 of few photons has many, and so has c2 - 1 without noise where it has decayed.
    If the corner has nothing else, all pairs are taken.
    """
    far = _corner(c2)
    filled = far[_filled(far)]
    return int(median(filled if len(filled) else c2[_filled(c2)]) >= 0.5)


def _corner(c2: Float32[np.ndarray, "t t"]) -> Float32[np.ndarray, "h h"]:
    quarter = max(1, len(c2) // 4)
    return c2[:quarter, -quarter:]


def measure_contrast(c2: Float32[np.ndarray, "t t"]) -> float | None:
    """Return the near-diagonal mean minus the long-lag mean, both without their outer tenths."""
    near, far = _trimmed_mean(np.diagonal(c2, 1)), _trimmed_mean(_corner(c2))
    return None if near is None or far is None else near - far


def largest_contrast(c2: Float32[np.ndarray, "t t"]) -> float:
    """Return the contrast that c2 may have, where decays are shorter than a frame or longer than the record.

    Above 1 at the shortest lag, or continued to lag 0 as an exponential; at most 1.
    """
    near, next_, far = (
        _trimmed_mean(values) for values in (np.diagonal(c2, 1), np.diagonal(c2, 2), _corner(c2))
    )
    if near is None or next_ is None or far is None:
        return 1.0
    first, second = near - far, next_ - far
    continued = first**2 / second if 0 < second < first else 1.0
    return float(np.clip(max(near - 1, first, continued), 0.0, 1.0))


def _trimmed_mean(values: np.ndarray) -> float | None:
    known_values = values[~np.isnan(values)]
    if not len(known_values):
        return None
    cut = len(known_values) // 10
    ordered = np.partition(known_values, [cut, len(known_values) - cut - 1])
    return float(ordered[cut : len(known_values) - cut].mean(dtype=np.float64))


def sigma_from_counts(
    intensity: Float[np.ndarray, " t"], contrast: float, n_pixels: int
) -> Float[np.ndarray, " t"]:
    """Return sigma_row: σ²(t1, t2) = (1/μ(t1) + β)(1/μ(t2) + β)/n_pixels, μ counts per pixel,
    β the contrast.

    Frames without a count are never used; they get the σ of the darkest frame, for it to be finite.
    """
    counted = np.maximum(intensity, intensity[intensity > 0].min())
    return np.sqrt((1 / counted + max(contrast, 0.0)) / np.sqrt(n_pixels))
