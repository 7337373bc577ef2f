"""Scans that repeat one measurement as one source, their mean, and bins that hold the data of another bin."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.store import same_noise
from homodyne_dask.store.arrays import is_uneven
from homodyne_dask.store.same_noise import Signs
from homodyne_dask.text import counted, some_of
from ingest import noise_and_beam_trips as noise
from ingest.clean import CleanMatrix, NoDataError, clean, leave_out_single, measure_scatter
from ingest.noise_and_beam_trips import BinRecord
from ingest.readers import errors_of_points
from ingest.readers.source import NO_PICTURES, PER_BIN, Source, check_has_frames

RING_WIDTH, SAME_ANGLE = 0.02, 1.0
"""Relative difference of q, which drifts, and of φ [degree], up to which files hold one bin."""
MOST_ROUNDED = 1e-6
"""Relative difference up to which delays of several tables are one delay, rounded."""
MAX_NAMED = 3
"""Scans that a note names."""


def joined(scans: Sequence[Source], names: Sequence[str]) -> Source:
    """Return scans as one source; frames in a beam trip are masked only in the scan that has it."""
    first, pictures = scans[0], scans[0].pictures
    for name, other in zip(names[1:], scans[1:], strict=True):
        _check_alike(first, other, names[0], name)
    lit = [scan for scan in scans if scan.intensity is not None]
    masked = [replace(scan, masked=~noise.frame_mask(scan)) for scan in lit] or scans
    truth = first.measurement.truth
    return replace(
        first.saying(
            truth=truth if all(scan.measurement.truth == truth for scan in scans) else None,
            experiment=_experiment([scan.measurement.experiment for scan in scans]),
        ),
        **_of_all_bins(scans),
        # those of all scans of one file; several files have none in common
        pictures=pictures if all(scan.pictures is pictures for scan in scans) else NO_PICTURES,
        notes=_notes(masked, names),
        scans=tuple(masked),
        scan_names=tuple(names),
    )


def _experiment(of_scans: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the experiment of the first scan; of numbers that change, such as T, those of all scans."""
    experiment = {name: dict(quantity) for name, quantity in of_scans[0].items()}
    for name, quantity in experiment.items():
        of_all = [of_scan.get(name, {}) for of_scan in of_scans]
        values = [of_scan.get("value") for of_scan in of_all]
        alike = all(of_scan.get("units") == quantity.get("units") for of_scan in of_all)
        if alike and len(set(values)) > 1 and all(isinstance(v, int | float) for v in values):
            quantity["value"] = values
    return experiment


def _of_all_bins(sources: Sequence[Source]) -> dict[str, Any]:
    fields = [name for name in PER_BIN if getattr(sources[0], name) is not None]
    arrays = {
        name: np.concatenate([getattr(source, name) for source in sources]) for name in fields
    }
    return arrays | {"matrices": tuple(arrays["matrices"].tolist())}


def are_bins_of_one_scan(sources: Sequence[Source]) -> bool:
    """Return whether each of several files has one bin, each at a q or φ that no other file has."""
    if len(sources) < 2 or any(source.scans or len(source.label) > 1 for source in sources):
        return False
    q, phi = (np.array([getattr(source, name)[0] for source in sources]) for name in ("q", "phi"))
    turn = np.abs((np.nan_to_num(phi[:, None] - phi) + 180) % 360 - 180)
    one_place = (np.abs(q[:, None] / q - 1) <= RING_WIDTH) & (turn <= SAME_ANGLE)
    return bool(np.isfinite(q).all() and one_place.sum() == len(sources))


def at_all_delays(sources: Sequence[Source]) -> Sequence[Source]:
    """Return tables of g2 at the delays of all, NaN where a table lacks one; other sources stay."""
    if len(sources) < 2 or any(table.g2 is None for table in sources):
        return sources
    time = np.unique(np.concatenate([table.time for table in sources]))
    step = min(table.measurement.frame_time for table in sources)
    time = time[np.append(True, np.diff(time) > MOST_ROUNDED * np.maximum(time[1:], step))]
    # with so few delays in common they are not of one measurement, which the check of repeats then says
    if 2 * min(table.n_frames for table in sources) < len(time):
        return sources
    aligned = []
    for table in sources:
        assert table.g2 is not None
        assert table.g2_sigma is not None
        sigma = np.repeat(np.median(table.g2_sigma, axis=1, keepdims=True), len(time), axis=1)
        g2 = np.full(sigma.shape, np.nan)
        delays = np.abs(time[:, None] - table.time).argmin(axis=0)
        g2[:, delays], sigma[:, delays] = table.g2, table.g2_sigma
        filled = {"time": time, "n_frames": len(time), "g2": g2, "g2_sigma": sigma}
        aligned.append(replace(table.saying(frame_time=step), **filled))
    return aligned


def with_errors_of_repeats(source: Source) -> Source:
    """Return curves of g2 without errors with those of the scatter of curves of one q, if there are any."""
    if source.g2 is None or source.g2_errors:
        return source
    q, phi = source.q, np.nan_to_num(source.phi)
    alike = (np.abs(q[:, None] / q - 1) <= RING_WIDTH) & (phi[:, None] == phi)
    sigma = np.array(source.g2_sigma)
    for repeats in alike:
        error = None
        if repeats.sum() > 1:
            error = errors_of_points.of_repeats(source.g2[repeats][:, 1:])
        if error is None:
            return source
        sigma[repeats, 1:] = error
    parts = np.split(sigma, max(len(source.scans), 1))
    scans = (
        replace(scan, g2_sigma=s, g2_errors=True)
        for scan, s in zip(source.scans, parts, strict=False)
    )
    note = "errors of points are those of the scatter of the curves that have one q"
    known = {"g2_sigma": sigma, "g2_errors": True, "notes": (*source.notes, note)}
    return replace(source, **known, scans=tuple(scans))


def side_by_side(sources: Sequence[Source], names: Sequence[str]) -> Source:
    first, places = sources[0], ("q", "phi", "label")
    for name, other in zip(names[1:], sources[1:], strict=True):
        moved = replace(other, **{place: getattr(first, place) for place in places})
        _check_alike(first, moved, names[0], name, "another bin of the scan in")
    readers = [partial(source.reader, source.path, source.matrices[0]) for source in sources]
    bins = {"matrices": tuple(names), "label": np.arange(1, len(sources) + 1)}
    notes = dict.fromkeys(note for source in sources for note in source.notes)
    return replace(
        first.saying(truth=None),
        **_of_all_bins(sources) | bins,
        files=tuple(source.path for source in sources),
        reader=partial(_read_one, readers=dict(zip(names, readers, strict=True))),
        pictures=NO_PICTURES,
        notes=(f"{len(sources)} files, one for each bin", *notes),
    )


def _read_one(
    path: Path, where: str, readers: Mapping[str, Callable[[], np.ndarray]]
) -> np.ndarray:
    return readers[where]()


def averaged(source: Source) -> Source:
    if not source.scans:
        raise OptionError(
            f"{source.path.name} is one scan, but average applies to several: leave it out"
        )
    unknown = dict.fromkeys(("intensity", "sigma", "masked"))
    return replace(
        source.scans[0].saying(truth=None), **unknown, notes=source.notes, mean_of=source.scans
    )


def mean_of_scans(source: Source) -> tuple[CleanMatrix, float | None, float | None]:
    """Return the mean matrix of the only bin of scans, its σ from their scatter, and that scatter.

    Weights are 1/σ² of each scan. The scatter is relative to σ of the scans: 1 where they differ by noise.
    None for σ where no pair is known twice.
    """
    n, cleaned, signs = source.n_frames, list[CleanMatrix](), list[dict]()
    weight, first, second, number = (np.zeros((n, n)) for _ in range(4))
    for scan in source.mean_of:
        matrix, scatter = cleaned_scan(scan)
        signs.append({(0.0, 0.0): same_noise.signs_of_noise(matrix.c2, n)})
        sigma = scatter if scan.sigma is None else float(scan.sigma[0])
        measured = ~np.isnan(matrix.c2)
        weight_of_scan = measured / (sigma or 1.0) ** 2
        value = np.where(measured, matrix.c2 - 1.0, 0.0)
        weight += weight_of_scan
        first += weight_of_scan * value
        second += weight_of_scan * value**2
        number += measured
        cleaned.append(matrix._replace(c2=np.empty((0, 0), np.float32)))
    for later, earlier, shift in same_noise.measured_twice(signs):
        name, other_name = source.mean_of[later].name(0), source.mean_of[earlier].path.name
        raise NoDataError(
            f"{name} holds the data of {other_name}{same_noise.from_frame(shift)}, which count once"
        )
    with np.errstate(invalid="ignore", divide="ignore"):  # of pairs that no scan knows
        mean = first / weight
        chisqr = second - weight * mean**2
    twice = number > 1
    freedom = float((number - 1)[twice].sum())
    scatter = float(np.sqrt(max(chisqr[twice].sum(), 0.0) / freedom)) if freedom else None
    sigma = scatter and scatter * float(np.sqrt(np.median(1 / weight[twice])))
    return _all_scans(cleaned, (1 + mean).astype(np.float32)), sigma, scatter


def _all_scans(cleaned: Sequence[CleanMatrix], c2: np.ndarray) -> CleanMatrix:
    """Return the mean matrix of scans with their counts of pairs; a frame is dead if it is in every scan."""
    dead = set.intersection(*(set(scan.dead.tolist()) for scan in cleaned))
    return cleaned[0]._replace(
        c2=c2,
        dead=np.array(sorted(dead), dtype=np.int64),
        zeros=sum(scan.zeros for scan in cleaned),
        infinite=sum(scan.infinite for scan in cleaned),
        one_sided=sum(scan.one_sided for scan in cleaned),
        excluded=[pairs for scan in cleaned for pairs in scan.excluded],
    )


def cleaned_scan(source: Source) -> tuple[CleanMatrix, float | None]:
    """Return the clean matrix of the only bin of a source, with masked frames unknown, and its σ."""
    keep = source.keep_outliers or source.format in ("esrf", "cells") or source.g2 is not None
    how = source.baseline, source.half, keep
    cleaned = clean(source.read(0), source.n_frames, source.name(0), *how)
    if source.masked is not None:
        cleaned.c2[source.masked] = np.nan
        cleaned.c2[:, source.masked] = np.nan
    scatter = measure_scatter(cleaned.c2, source.time)
    if not keep and scatter and not is_uneven(source.time):
        for single in leave_out_single(cleaned.c2, scatter):
            value = single.value + cleaned.baseline - 1
            cleaned.excluded.append(single._replace(value=value))
        if cleaned.excluded:
            scatter = measure_scatter(cleaned.c2, source.time)
    return cleaned, scatter


def without_frames(source: Source, options: IngestOptions) -> Source:
    """Return the source without the frames that the user excludes, of all scans or of one."""
    if not options.exclude_frames:
        return source
    check_has_frames(source, "exclude_frames")
    scans = list(source.scans or (source,))
    masks = [np.zeros(scan.n_frames, bool) for scan in scans]
    skipped = options.frames[0] if options.frames else 0
    for word in options.exclude_frames:
        scan_number, frames = _frames_named(word, source, skipped)
        for mask in [masks[scan_number - 1]] if scan_number else masks:
            mask[frames] = True
    scans = [
        replace(scan, masked=mask if scan.masked is None else scan.masked | mask)
        for scan, mask in zip(scans, masks, strict=True)
    ]
    note = f"left out by exclude_frames: {', '.join(options.exclude_frames)}, counted from 0"
    if source.scans:
        return replace(source, scans=tuple(scans), notes=(*source.notes, note))
    return replace(scans[0], notes=(*source.notes, note))


def _frames_named(word: str, source: Source, skipped: int) -> tuple[int, slice]:
    """Return the scan, 0 for all, and the frames of '51-60' or '3:51-60'; skipped: frames cut before them."""
    before, _, frames = word.rpartition(":")
    first, _, last = frames.partition("-")
    begin, end = int(first) - skipped, int(last or first) + 1 - skipped
    if before and not 1 <= int(before) <= len(source.scans):
        number = counted(len(source.scans or (source,)), "scan")
        raise OptionError(
            f"exclude_frames = {word} is of scan {before}, but there are {number}: correct it"
        )
    if begin < 0 or end > source.n_frames or end <= begin:
        raise OptionError(
            f"exclude_frames = {word} is not in frames {skipped} to {skipped + source.n_frames - 1}: "
            "correct it"
        )
    return int(before or 0), slice(begin, end)


_ALIKE = {
    "the format": "format",
    "the number of frames": "n_frames",
    "the frame time in s": "measurement.frame_time",
    "the gap in Å": "measurement.gap_angstrom",
    "c2 over cells of age and lag": "measurement.cells",
    "whether it has errors": "g2_errors",
}
"""What scans must have in common to be one source, and the field that has it."""


def _check_alike(
    first: Source, other: Source, name: str, other_name: str, what_of: str = "a repeat of"
) -> None:
    for what, value, theirs in _compared(first, other):
        if value != theirs:
            raise SourceError(
                f"{other_name} cannot be {what_of} {name}: {what} is {theirs}, not {value}; leave it out, "
                "or ingest it separately and fit both stores with --together"
            )


def _compared(first: Source, other: Source) -> Iterator[tuple[str, object, object]]:
    """Yield what two scans must agree in, with both values; of arrays, the first entries that differ."""
    for what, field in _ALIKE.items():
        value_of = attrgetter(field)
        yield what, value_of(first), value_of(other)
    yield "the number of bins", len(first.label), len(other.label)
    for field in ("sigma", "intensity", "g2"):
        what = f"whether it has {'counts' if field == 'intensity' else field}"
        yield what, getattr(first, field) is not None, getattr(other, field) is not None
    if not np.allclose(first.time, other.time, rtol=1e-9, atol=1e-6 * first.measurement.frame_time):
        frame = int(np.argmax(np.abs(first.time - other.time)))
        yield f"the time of frame {frame} in s", first.time[frame], other.time[frame]
    for what in ("label", "q", "phi"):
        values, theirs = (np.asarray(getattr(scan, what), float) for scan in (first, other))
        for n in np.flatnonzero(~np.isclose(values, theirs, rtol=1e-6, atol=1e-9, equal_nan=True)):
            yield f"{what} of bin {n + 1}", values[n], theirs[n]


def _notes(scans: Sequence[Source], names: Sequence[str]) -> tuple[str, ...]:
    having: dict[str, list[str]] = {}
    for scan, name in zip(scans, names, strict=True):
        dark = [] if scan.masked is None or not scan.masked.any() else [noise.dimmed(scan.masked)]
        for note in dict.fromkeys([*scan.notes, *dark]):
            having.setdefault(note, []).append(name)
    some = f"{', '.join(names[:MAX_NAMED])}{', ...' * (len(names) > MAX_NAMED)}"
    notes = (
        f"{some_of(which, MAX_NAMED)}: " * (len(which) < len(scans)) + note
        for note, which in having.items()
    )
    return f"{len(scans)} scans: {some}", *notes


def scan_names_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its own, with as many folders as tell the files apart."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    twice = next(name for name, number in Counter(map(str, paths)).items() if number > 1)
    raise OptionError(f"{twice} is given twice: give each file once")


def check_different(paths: Sequence[Path], digests: Sequence[str]) -> None:
    for n, digest in enumerate(digests):
        if (first := digests.index(digest)) < n:
            raise SourceError(
                f"{paths[n]} has the same content as {paths[first]}, but a measurement counts only once: "
                "leave out one of them"
            )


PAIRS = 256
"""Pairs of frames at which signs of all bins are compared."""
BINS = 500
"""Bins that are compared with all others at once: with 100,000, each of the arrays takes 200 MB."""


def copies(source: Source, records: Sequence[BinRecord]) -> dict[int, tuple[int, int]]:
    """Return the bins that hold the data of an earlier bin: that bin, and its frame at which each begins.

    Bins 180° apart at one q see the same speckle, and are no copies.
    """
    if source.g2 is not None:
        curves = [curve.tobytes() for curve in source.g2]
        first = [curves.index(curve) for curve in curves]
        return {n: (m, 0) for n, m in enumerate(first) if m != n}
    signs = {
        n: np.frombuffer(bytes.fromhex(record["signs"]), np.int8).reshape(source.n_frames, -1)
        for n, record in enumerate(records)
        if record["signs"]
    }
    if not signs:
        return {}
    return _shifted_copies(source, signs, len(records)) | _equal_copies(source, signs)


def _shifted_copies(
    source: Source, signs: Mapping[int, Signs], total: int
) -> dict[int, tuple[int, int]]:
    """Return copies in scans that begin at a later frame of another scan."""
    bins = total // max(len(source.scans), 1)
    scans = [
        {(float(k), 0.0): signs[n + k] for k in range(bins) if n + k in signs}
        for n in range(0, total, bins)
    ]
    return {
        m * bins + k: (n * bins + k, shift)
        for m, n, shift in same_noise.measured_twice(scans)
        for k in range(bins)
        if shift and {n * bins + k, m * bins + k} <= signs.keys()
    }


def _equal_copies(source: Source, signs: Mapping[int, Signs]) -> dict[int, tuple[int, int]]:
    """Return copies that begin at the same frame, by a sample of the signs of the noise."""
    numbers = np.array([*signs])
    step = max((source.n_frames - 1) * signs[numbers[0]].shape[1] // PAIRS, 1)
    flat = np.array([of_bin[:-1:step].ravel() for of_bin in signs.values()])
    neighbours = np.array([of_bin[1::step].ravel() for of_bin in signs.values()])
    places = [*zip(source.q.tolist(), source.phi.tolist(), strict=True)]
    equal = dict[int, tuple[int, int]]()
    for start in range(0, len(numbers), BINS):
        alike = same_noise.have_one_noise(
            flat[start : start + BINS], flat[start:], neighbours[start:]
        )
        for n, m in numbers[start + np.argwhere(np.triu(alike, 1))].tolist():
            if not same_noise.are_opposite(places[n], places[m]):
                equal.setdefault(m, (n, 0))
    return equal
