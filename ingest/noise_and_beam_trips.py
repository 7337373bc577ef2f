"""The noise of every pair, the frame mask, and the notes about the data."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import fdtrc, stdtr

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import HALVES
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import is_uneven, spacing_text
from homodyne_dask.text import counted, shown_ranges
from ingest.clean import PARTS, Excluded, NoDataError, median, sigma_from_counts
from ingest.readers.source import Source

BinRecord = dict[str, Any]
MIN_ANGLES = 4
"""Angles of which the range shows whether they may be radians; fewer may be of a small sector."""
ROUND = 0.5
"""Degrees: angles that are its multiples only after a conversion from radians are probably radians."""
MIN_RANGE = 2.5
"""Radians that the angles of a detector cover at least, somewhat below half a turn."""
LARGEST_Q = 0.05
"""1/Å; few detectors at small angles reach further."""
LONGEST_RECORD = 7200.0
"""s; few measurements last longer."""
MOST_SCATTER = 4.0
"""Variance of neighbouring pairs over that by counts, from which on counts are wrong: speckles of up to 2 × 2
pixels have less, and correlated noise is not among it."""
MOST_SMOOTHED, IMPROBABLE = 0.85, 1e-4
"""The smoothness of noise below which c2 was smoothed, and its probability: the mean over two frames has
about 0.6, and 5 % afterglow 0.95."""
CERTAIN, LEAST_REPEATED = 1e-6, 0.02
"""The probability of a period of c2 of next frames, and the share of the contrast by which it changes, up to
which and from which on it is said."""
Doubts = dict[schema.Doubt, dict[str, float]]
"""Numbers, by the code of a finding."""


class Noise(NamedTuple):
    rows: Float[np.ndarray, "bin t"]
    source: str
    """The value of `schema.Attributes.sigma_source`."""
    notes: list[str]
    doubts: Doubts
    counted: Bool[np.ndarray, " bin"]
    """Whether counts explain the scatter of pairs."""


def frame_mask(source: Source) -> Bool[np.ndarray, " t"]:
    """Return which frames to use: not those in a beam trip, below half the median intensity."""
    use = (
        np.ones(source.n_frames, bool) if source.masked is None or source.scans else ~source.masked
    )
    if source.intensity is None or source.scans:  # repeats are masked one by one
        return use
    lit = np.nan_to_num(source.intensity)
    flux = lit[lit.any(axis=1)].mean(axis=0) if lit.any() else lit.mean(axis=0)
    return use & (flux >= 0.5 * np.median(flux)) & (flux > 0)


def sigma_rows(source: Source, records: list[BinRecord]) -> Noise:
    """Return the noise as given, else from counts, else from the scatter of each bin."""
    if source.g2_sigma is not None:
        rows = source.g2_sigma.copy()
        rows[:, 0] = (
            1.0  # σ of a pair is that of both frames multiplied, and frame 0 is in every pair
        )
        return _noise(rows, "table" if source.g2_errors else "residuals")
    if source.sigma is not None:
        return _noise(_constant(source, source.sigma), "constant")
    # the mean of two halves has less noise than the counts say
    if source.intensity is None or source.half == "mean":
        return _noise_of_scatter(source, records)
    rows, largest = np.ones_like(source.intensity), np.ones(len(records))
    for index, record in enumerate(records):
        if not record["left_out"]:
            counts, pixels = source.intensity[index], int(source.n_pixels[index])
            if not (counts > 0).any():
                raise NoDataError(f"{source.name(index)} has no counts")
            contrast = record["contrast"] or 0.0
            rows[index] = sigma_from_counts(counts, contrast, pixels)
            hidden = sigma_from_counts(counts, max(contrast, record["largest_contrast"]), pixels)
            largest[index] = median(hidden) ** 2
    scatter = np.array([record["scatter"] or np.nan for record in records])
    ratio = np.median(rows, axis=1) ** 2 / scatter
    wrong = (largest / scatter) ** 2 * MOST_SCATTER < 1
    rows[wrong] /= np.sqrt(ratio[wrong, None])
    source_of_most = "scatter" if 2 * wrong.sum() > np.isfinite(ratio).sum() else "counts"
    noise = _noise(rows, source_of_most)
    if wrong.any():
        numbers = {"ratio": float(np.median(ratio[wrong])), "bins": int(wrong.sum())}
        return noise._replace(doubts={"counts-contradicted": numbers}, counted=~wrong)
    return noise._replace(notes=_notes_on_disagreement(ratio))


def _noise(rows: Float[np.ndarray, "bin t"], source: str) -> Noise:
    return Noise(rows, source, [], {}, np.ones(len(rows), dtype=bool))


def doubts_of_c2(records: list[BinRecord]) -> Doubts:
    return _missing(records) | _smoothed(records)


def _missing(records: list[BinRecord]) -> Doubts:
    """Return that c2 of next frames repeats: more time passes between some frames than between others."""
    bins = [record for record in records if record["periods"]]
    if not bins:
        return {}
    power, beside, freedom, change = np.array([record["periods"] for record in bins]).mean(0).T
    periods = np.arange(2, len(power) + 2)
    number = periods - 1  # as of one bin: beam and rates change in all alike
    p = fdtrc(number, number * freedom, power / np.maximum(beside, 1e-9)) * len(periods)
    best = int(p.argmin())
    contrast = max(np.mean([record["contrast"] or 0.0 for record in bins]), 1e-9)
    share = float(change[best] / contrast)
    if p[best] > CERTAIN or share < LEAST_REPEATED:
        return {}
    numbers = {"period": int(periods[best]), "share": share, "p": float(p[best])}
    return {"frames-missing": numbers}


def _smoothed(records: list[BinRecord]) -> Doubts:
    bins = np.array([record["smoothness"] for record in records if record["smoothness"]])
    if not len(bins):
        return {}
    log_ratio, stderr = bins[:, 0].mean(), np.sqrt((bins[:, 1] ** 2).mean() / len(bins))
    t = log_ratio / max(float(stderr), np.finfo(float).tiny)
    if np.exp(log_ratio) > MOST_SMOOTHED or stdtr((PARTS - 1) * len(bins), t) > IMPROBABLE:
        return {}
    return {"c2-smoothed": {"ratio": float(np.exp(log_ratio))}}


def _noise_of_scatter(source: Source, records: list[BinRecord]) -> Noise:
    for index, record in enumerate(records):
        if not record["scatter"] and not record["left_out"]:
            why = "too few pairs" if record["scatter"] is None else "no scatter"
            raise NoDataError(
                f"{source.name(index)} has {why} to measure its noise from {source.n_frames} frames: "
                "give --sigma"
            )
    scatter = np.array([record["scatter"] or 1.0 for record in records])
    return _noise(_constant(source, scatter), "scatter")


def _constant(source: Source, sigma: Float[np.ndarray, " bin"]) -> Float[np.ndarray, "bin t"]:
    return np.repeat(np.sqrt(sigma)[:, None], source.n_frames, axis=1)


def _notes_on_disagreement(ratio: Float[np.ndarray, " bin"]) -> list[str]:
    ratio = ratio[np.isfinite(ratio)]
    if not len(ratio) or np.median(ratio) < 2:
        return []
    return [
        f"σ from counts is {np.median(ratio):.2g} times the scatter of the bins: check that the "
        "counts are photons per pixel, or give --sigma"
    ]


def notes_on(source: Source, records: list[BinRecord], use: Bool[np.ndarray, " t"]) -> list[str]:
    notes = [*_notes_on_bins(source, records)]
    if source.half is not None:
        notes.append(f"half = {source.half}: {HALVES[source.half]}")
    if _baseline(source, records) == 0:
        notes.append("c2 has the baseline 0 in the file: 1 was added to all pairs")
    tripped = ~use if source.masked is None else ~(use | source.masked)
    if tripped.any():
        notes.append(dimmed(tripped))
    if source.g2 is None:
        notes += _without_data(source, records)
    return [*notes, *_notes_on_pairs(source, records), *_excluded(source, records)]


def _notes_on_bins(source: Source, records: list[BinRecord]) -> Iterator[str]:
    absent = [record["left_out"] for record in records if record["left_out"]]
    if absent:
        bins = f"{len(absent)} of {counted(len(records), 'bin')} left out: " + "; ".join(absent[:3])
        yield bins + (f"; and {len(absent) - 3} more" if len(absent) > 3 else "")
    if is_uneven(source.time) and source.g2 is None:
        spacing = spacing_text(source.time, source.measurement.frame_time)
        yield f"frames are not evenly spaced in time ({spacing}): pairs are not examined for outliers"
    if spread := [record["spread"] for record in records if record["spread"]]:
        yield (
            f"mean of {len(source.mean_of)} scans, which scatter {np.median(spread):.2g} times as much as "
            f"their noise; sigma is computed from this scatter"
        )


def _notes_on_pairs(source: Source, records: list[BinRecord]) -> Iterator[str]:
    for key, sentence in NOTES.items():
        if where := [label for label, r in zip(source.label, records, strict=True) if r[key]]:
            number = counted(sum(record[key] for record in records), "pair")
            yield f"{number} {sentence}, in {_bins(where)}"
    coarse = [n for n, r in enumerate(records) if r["scatter"] and r["scatter"] < r["spacing"]]
    if coarse:
        yield (
            f"c2 scatters by {records[coarse[0]]['scatter']:.2g} in {_bins(source.label[coarse])}, "
            "less than the distance of the numbers in which it is kept, "
            f"{records[coarse[0]]['spacing']:.2g}: fits of it are off; subtract the offset in float64, and "
            "ingest the rest"
        )


def _excluded(source: Source, records: list[BinRecord]) -> list[str]:
    groups: dict[str, list[tuple[int, Excluded]]] = {}
    for label, record in zip(source.label.tolist(), records, strict=True):
        for excluded in (Excluded(*fields) for fields in record["excluded"]):
            what = LEFT_OUT[excluded.why].format(f"{excluded.value:.6g}")
            groups.setdefault(what, []).append((label, excluded))
    notes = []
    for what, group in groups.items():
        (label, first), bins = group[0], sorted({label for label, _ in group})
        pairs = counted(sum(excluded.pairs for _, excluded in group), "pair")
        notes.append(
            f"{pairs} {what}: left out, in {_bins(bins)} (first {first.value:.6g} at frames {first.i} "
            f"and {first.j} of bin {label}; to keep them: --keep-outliers)"
        )
    return notes


def _without_data(source: Source, records: list[BinRecord]) -> list[str]:
    dead = {n: {*record["dead"]} for n, record in enumerate(records) if not record["left_out"]}
    everywhere = set.intersection(*dead.values()) if dead else set()
    bins = len(records) // max(len(source.scan_names), 1)
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for n, frames in dead.items():
        scan = f" of {source.scan_names[n // bins]}" if source.scan_names else ""
        key = scan, tuple(sorted(frames - everywhere))
        groups.setdefault(key, []).append(int(source.label[n]))
    where = {"any bin": sorted(everywhere)}
    for (scan, frames), labels in groups.items():
        where[f"{_bins(labels)}{scan}"] = [*frames]
    return [
        f"{counted(len(frames), 'frame')} {'has' if len(frames) == 1 else 'have'} no data in {what}: "
        f"{as_ranges(frames)}, counted from 0"
        for what, frames in where.items()
        if frames
    ]


def _bins(labels: Sequence[int] | np.ndarray) -> str:
    return f"bin{'s' * (len(labels) > 1)} {as_ranges(labels)}"


LEFT_OUT = {
    "repeated": "of exactly {0}, more than noise allows",
    "far": "30 σ or more from all pairs around them",
}
"""The words of a note on excluded pairs, by the reason."""

NOTES = {
    "zeros": "equal to 0: taken as measured (no pixel had photons in both frames)",
    "infinite": "infinite or beyond float32: set to NaN",
    "one_sided": "known only on one side of the diagonal: set to NaN",
    "outliers": "8 σ or more from neighbouring pairs: excluded from the averages for initial "
    "values, but not from the fit (see --loss)",
}


def _baseline(source: Source, records: list[BinRecord]) -> int:
    baselines = np.array([record["baseline"] for record in records if not record["left_out"]])
    if baselines.min() != baselines.max():
        odd = source.label[[record["baseline"] == 0 for record in records]]
        raise SourceError(
            f"bins {as_ranges(odd)} of {source.path.name} decay to 0, but the others decay to 1: ingest "
            f"the two groups separately"
        )
    return int(baselines[0])


def dimmed(masked: Bool[np.ndarray, " t"]) -> str:
    which = f"{as_ranges(np.flatnonzero(masked))}, counted from 0"
    return (
        f"{counted(int(masked.sum()), 'frame')} masked (intensity below half its median): {which}"
    )


def as_ranges(numbers: Sequence[int] | np.ndarray) -> str:
    """Return numbers as '3 to 5, 9', the first dozen runs of them."""
    ordered = np.sort(numbers)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    return shown_ranges([(run[0], run[-1] + 1) for run in runs], "more runs")


def implausible(source: Source) -> Iterator[str]:
    """Yield a note for each unit that is probably another one; the numbers stay as they are."""
    phi = np.unique(source.phi[np.isfinite(source.phi)])
    if len(phi) and np.abs(phi).max() <= 2 * np.pi:
        around = len(phi) >= MIN_ANGLES and np.ptp(phi) >= MIN_RANGE
        if around or (_multiples(np.degrees(phi)) and not _multiples(phi)):
            yield (
                f"are the angles in radians? {counted(len(phi), 'value')} of phi from {phi[0]:.3g} to "
                f"{phi[-1]:.3g}: phi is interpreted as degrees; if it is in radians, ingest np.degrees(phi)"
            )
    q = source.q[np.isfinite(source.q)]
    if len(q) and q.max() > LARGEST_Q:
        yield (
            f"is q in 1/nm? It is up to {q.max():.3g} 1/Å, which few small-angle detectors "
            "reach: q is interpreted as 1/Å; if it is in 1/nm, ingest q / 10, otherwise D comes out 100 "
            "times too small"
        )
    frame_time = source.measurement.frame_time
    lasts = source.n_frames * frame_time
    if lasts > LONGEST_RECORD and source.g2 is None:
        yield (
            f"is the frame time in ms? {source.n_frames:,} frames of {frame_time:g} s last "
            f"{lasts / 3600:.3g} h: the frame time is interpreted as seconds; if it is in ms, divide it by "
            "1000 and ingest again"
        )


def _multiples(angles: Float[np.ndarray, " n"]) -> bool:
    return bool((np.abs(angles / ROUND - np.round(angles / ROUND)) < 2e-3).all())
