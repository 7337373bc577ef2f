"""Scans that repeat one measurement as one source: the bins of the first, then those of the second, ...

Bins that hold the data of another bin: raw and processed, a copy, a matrix and its transpose.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.store.arrays import is_uneven, same_times
from homodyne_dask.store.same_noise import (
    are_opposite,
    from_frame,
    have_one_noise,
    measured_twice,
    signs_of_noise,
)
from homodyne_dask.text import some_of
from ingest import noise_and_beam_trips as noise
from ingest.clean import CleanMatrix, NoDataError, clean, leave_out_single, measure_scatter
from ingest.noise_and_beam_trips import Record
from ingest.readers.source import NO_PICTURES, PER_BIN, Source

RING_WIDTH, SAME_ANGLE = 0.02, 1.0
"""Relative difference of q, and of φ [degree], up to which files hold one bin."""
MOST_ROUNDED = 1e-6
"""Relative difference of one delay as several tables have it."""
MAX_NAMED = 3
"""Notes are of so many scans one by one."""


def joined(scans: Sequence[Source], names: Sequence[str]) -> Source:
    """Return scans as one source, in which frames in a beam trip are masked in the scan that has it.

    Raises SourceError, naming the scan that differs from the first, and in what.
    """
    (first, *others), pictures = scans, scans[0].pictures
    for name, other in zip(names[1:], others, strict=True):
        _check_alike(first, other, names[0], name)
    known = [one for one in scans if one.intensity is not None]
    masked = [replace(one, masked=~noise.frame_mask(one)) for one in known] or scans
    return replace(
        first,
        **_of_all_bins(scans),
        truth=first.truth if all(one.truth == first.truth for one in scans) else None,
        # those of all scans of one file; several files have none in common
        pictures=pictures if all(one.pictures is pictures for one in scans) else NO_PICTURES,
        experiment=_experiment(scans),
        notes=_notes(masked, names),
        scans=tuple(masked),
        scan_names=tuple(names),
    )


def _of_all_bins(sources: Sequence[Source]) -> dict[str, Any]:
    fields = [name for name in PER_BIN if getattr(sources[0], name) is not None]
    found = {name: np.concatenate([getattr(one, name) for one in sources]) for name in fields}
    return found | {"matrices": tuple(found["matrices"].tolist())}


def _experiment(scans: Sequence[Source]) -> dict[str, dict[str, Any]]:
    """Return what the first scan says of the measurement; of numbers that change, such as T, those of all."""
    found = dict(scans[0].experiment)
    for name, held in scans[0].experiment.items():
        each = [one.experiment.get(name, {}) for one in scans]
        values = [of.get("value") for of in each]
        alike = all(of.get("units") == held.get("units") for of in each)
        if alike and len(set(values)) > 1 and all(isinstance(of, int | float) for of in values):
            found[name] = held | {"value": values}
    return found


def are_bins_of_one_scan(sources: Sequence[Source]) -> bool:
    """Return whether each of several files has one bin, of a ring or an angle of its own.

    Of repeats, q may drift a little.
    """
    if len(sources) < 2 or any(one.scans or len(one.label) > 1 for one in sources):
        return False
    q, phi = (np.array([getattr(one, name)[0] for one in sources]) for name in ("q", "phi"))
    turn = np.abs((np.nan_to_num(phi[:, None] - phi) + 180) % 360 - 180)
    one_place = (np.abs(q[:, None] / q - 1) <= RING_WIDTH) & (turn <= SAME_ANGLE)
    return bool(np.isfinite(q).all() and one_place.sum() == len(sources))


def at_all_delays(sources: Sequence[Source]) -> Sequence[Source]:
    """Return tables of g2 at the delays of all of them: a point that one of them lacks is unknown there.

    Other sources, and tables of which one lacks half of all delays, are returned as they are.
    """
    if len(sources) < 2 or any(one.g2 is None for one in sources):
        return sources
    time = np.unique(np.concatenate([one.time for one in sources]))
    step = min(one.frame_time for one in sources)
    time = time[np.append(True, np.diff(time) > MOST_ROUNDED * np.maximum(time[1:], step))]
    if 2 * min(one.n_frames for one in sources) < len(time):
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
        aligned.append(replace(table, frame_time=step, **filled))
    return aligned


def side_by_side(sources: Sequence[Source], names: Sequence[str]) -> Source:
    """Return files of one bin each as one scan, its bins in their order.

    Raises SourceError, naming the file that differs from the first in frames or times.
    """
    first = sources[0]
    for name, other in zip(names[1:], sources[1:], strict=True):
        here = {"q": first.q, "phi": first.phi, "label": first.label}
        _check_alike(first, replace(other, **here), names[0], name, "another bin of the scan in")
    readers = [partial(one.reader, one.path, one.matrices[0]) for one in sources]
    return replace(
        first,
        **_of_all_bins(sources)
        | {"matrices": tuple(names), "label": np.arange(1, len(sources) + 1)},
        files=tuple(one.path for one in sources),
        reader=partial(_read_one, of=dict(zip(names, readers, strict=True))),
        truth=None,
        pictures=NO_PICTURES,
        notes=(
            f"{len(sources)} files, one for each bin",
            *dict.fromkeys(n for one in sources for n in one.notes),
        ),
    )


def _read_one(path: Path, where: str, of: Mapping[str, Callable[[], np.ndarray]]) -> np.ndarray:
    return of[where]()


def averaged(source: Source) -> Source:
    """Return the mean of the scans of a source as one scan; raises OptionError where it is one."""
    if not source.scans:
        raise OptionError(
            f"{source.path.name} is one scan, but average applies to several: leave it out"
        )
    unknown = dict.fromkeys(("intensity", "sigma", "truth", "masked"))
    return replace(source.scans[0], **unknown, notes=source.notes, mean_of=source.scans)


def mean_of_scans(source: Source) -> tuple[CleanMatrix, float | None, float | None]:
    """Return the mean matrix of the only bin of scans, its σ from their scatter, and that scatter.

    Weights are 1/σ² of each scan. The scatter is relative to σ of the scans: 1 where they differ by noise.
    None for σ where no pair is known twice.
    """
    n = source.n_frames
    weight, first, second, number = (np.zeros((n, n)) for _ in range(4))
    cleaned, signs = [], []
    for one in source.mean_of:
        found, scatter = cleaned_scan(one)
        signs.append({(0.0, 0.0): signs_of_noise(found.c2, n)})
        sigma = scatter if one.sigma is None else float(one.sigma[0])
        known = ~np.isnan(found.c2)
        w = known / (sigma or 1.0) ** 2
        value = np.where(known, found.c2 - 1.0, 0.0)
        weight += w
        first += w * value
        second += w * value**2
        number += known
        cleaned.append(found._replace(c2=np.empty((0, 0), np.float32)))
    for at, first, shift in measured_twice(signs):
        one, of = source.mean_of[at], source.mean_of[first].path.name
        raise NoDataError(
            f"{one.name(0)} holds the data of {of}{from_frame(shift)}, which count once"
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = first / weight
        chisqr = second - weight * mean**2
    twice = number > 1
    freedom = float((number - 1)[twice].sum())
    scatter = float(np.sqrt(max(chisqr[twice].sum(), 0.0) / freedom)) if freedom else None
    sigma = scatter and scatter * float(np.sqrt(np.median(1 / weight[twice])))
    dead = set.intersection(*(set(one.dead.tolist()) for one in cleaned))
    excluded = [of for one in cleaned for of in one.excluded]
    c2, frames = (1 + mean).astype(np.float32), np.array(sorted(dead), dtype=np.int64)
    counts = ("zeros", "infinite", "one_sided")
    sums = {name: sum(getattr(scan, name) for scan in cleaned) for name in counts}
    whole = cleaned[0]._replace(c2=c2, dead=frames, excluded=excluded, **sums)
    return whole, sigma, scatter


def cleaned_scan(source: Source) -> tuple[CleanMatrix, float | None]:
    """Return the clean matrix of the only bin of a source, without frames masked in its scan, and its σ."""
    keep = source.keep_outliers or source.format == "esrf" or source.g2 is not None
    half, baseline = source.half, source.baseline
    cleaned = clean(source.read(0), source.n_frames, source.name(0), baseline, half, keep)
    if source.masked is not None:
        cleaned.c2[source.masked] = np.nan
        cleaned.c2[:, source.masked] = np.nan
    scatter = measure_scatter(cleaned.c2, source.time)
    if not keep and scatter and not is_uneven(source.time):
        found = leave_out_single(cleaned.c2, scatter)
        single = [one._replace(value=one.value + cleaned.baseline - 1) for one in found]
        if single or cleaned.excluded:
            scatter = measure_scatter(cleaned.c2, source.time)
        cleaned.excluded.extend(single)
    return cleaned, scatter


def _check_alike(
    first: Source, other: Source, name: str, other_name: str, what_of: str = "a repeat of"
) -> None:

    def check(what: str, value: object, theirs: object) -> None:
        if value != theirs:
            raise SourceError(
                f"{other_name} cannot be {what_of} {name}: {what} is {theirs}, not {value}; leave it out, "
                "or ingest it separately and fit both stores with --together"
            )

    for what, field in {
        "the format": "format",
        "the number of frames": "n_frames",
        "the frame time in s": "frame_time",
        "the gap in Å": "gap",
        "c2 over cells of age and lag": "cells",
        "whether it has errors": "g2_errors",
    }.items():
        check(what, getattr(first, field), getattr(other, field))
    check("the number of bins", len(first.label), len(other.label))
    for field in ("sigma", "intensity", "g2"):
        has, theirs = (getattr(one, field) is not None for one in (first, other))
        check(f"whether it has {'counts' if field == 'intensity' else field}", has, theirs)
    if not same_times(first.time, other.time, first.frame_time):
        at = int(np.argmax(np.abs(first.time - other.time)))
        check(f"the time of frame {at} in s", first.time[at], other.time[at])
    for what in ("label", "q", "phi"):
        values, theirs = (np.asarray(getattr(one, what), float) for one in (first, other))
        for at in np.flatnonzero(~np.isclose(values, theirs, rtol=1e-6, atol=1e-9, equal_nan=True)):
            check(f"{what} of bin {at + 1}", values[at], theirs[at])


def _notes(scans: Sequence[Source], names: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of scans, once where all have one, else with the scans that have it."""
    having: dict[str, list[str]] = {}
    for one, name in zip(scans, names, strict=True):
        dark = () if one.masked is None or not one.masked.any() else (noise.dimmed(one.masked),)
        for note in dict.fromkeys(one.notes + dark):
            having.setdefault(note, []).append(name)
    said = []
    for note, of in having.items():
        said.append(f"{some_of(of, MAX_NAMED)}: " * (len(of) < len(scans)) + note)
    return (
        f"{len(scans)} scans: {', '.join(names[:MAX_NAMED])}{', ...' * (len(names) > MAX_NAMED)}",
        *said,
    )


def scan_names_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its own, with as many folders as tell the files apart."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    twice = next(name for name, number in Counter(map(str, paths)).items() if number > 1)
    raise OptionError(f"{twice} is given twice: give each file once")


def check_different(paths: Sequence[Path], digests: Sequence[str]) -> None:
    """Raise SourceError where two files have the same content, of these SHA-256."""
    seen: dict[str, Path] = {}
    for path, digest in zip(paths, digests, strict=True):
        if digest in seen:
            raise SourceError(
                f"{path} has the same content as {seen[digest]}, but a measurement counts only once: leave "
                "out one of them"
            )
        seen[digest] = path


PAIRS = 256
"""Pairs of frames at which signs of all bins are compared."""
BINS = 500
"""Bins that are compared with all others at once: with 100,000, each of the arrays takes 200 MB."""


def copies(source: Source, records: Sequence[Record]) -> dict[int, tuple[int, int]]:
    """Return the bins whose data are those of another one, with the first such bin of each.

    And the frame of that bin at which it begins. Bins 180° apart at one q see one speckle, and count as one
    cluster in a fit: they are no copies.
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
    numbers, bins = [*signs], len(records) // max(len(source.scans), 1)
    starts = range(0, len(records), bins)
    scans = [{(float(k), 0.0): signs[n + k] for k in range(bins) if n + k in signs} for n in starts]
    shifted = {
        m * bins + k: (n * bins + k, shift)
        for m, n, shift in measured_twice(scans)
        for k in range(bins)
        if shift and {n * bins + k, m * bins + k} <= signs.keys()
    }
    step = max((source.n_frames - 1) * signs[numbers[0]].shape[1] // PAIRS, 1)
    flat = np.array([each[:-1:step].ravel() for each in signs.values()])
    neighbours = np.array([each[1::step].ravel() for each in signs.values()])
    places = [*zip(source.q.tolist(), source.phi.tolist(), strict=True)]
    equal = dict[int, tuple[int, int]]()
    for start in range(0, len(numbers), BINS):
        alike = have_one_noise(flat[start : start + BINS], flat[start:], neighbours[start:])
        for n, m in np.array(numbers)[start + np.argwhere(np.triu(alike, 1))].tolist():
            if not are_opposite(places[n], places[m]):
                equal.setdefault(m, (n, 0))
    return shifted | equal
