"""What every reader returns: the bins of one file, made by `source_of`, and a function for one matrix."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.request.ingest_options import Half, IngestOptions, decimals
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import what_is_wrong
from homodyne_dask.store.files import is_file, patiently
from homodyne_dask.store.linked_files import following
from homodyne_dask.text import joined_with_and

MIN_FRAMES = 3
MAX_BINS = 100_000
"""Matrices of a file; one that claims more is damaged."""


class Pictures(NamedTuple):
    flux: Float[np.ndarray, " t"] | None = None
    """Of each analysed frame, in any unit."""
    mean_image: Float[np.ndarray, "y x"] | None = None
    """Intensity averaged over the frames, in any unit; NaN where a pixel is unknown."""


NO_PICTURES = Pictures()


@dataclass(frozen=True)
class Source:
    """One file of measured two-time matrices; everything but the matrices is already in memory."""

    path: Path
    format: str
    reader: Callable[[Path, str], np.ndarray]
    """Reads one matrix; a function of a module, so that a task can carry it."""
    matrices: tuple[str, ...]
    """Where each bin's matrix lies in the file."""
    label: Int[np.ndarray, " bin"]
    q: Float[np.ndarray, " bin"]
    """1/Å."""
    phi: Float[np.ndarray, " bin"]
    """degree."""
    n_pixels: Int[np.ndarray, " bin"]
    """0 where unknown."""
    n_frames: int
    time: Float[np.ndarray, " t"]
    """s."""
    measurement: schema.Measurement
    """What the file says of it, and the gap that the user gives."""
    intensity: Float[np.ndarray, "bin t"] | None = None
    """Counts per pixel and analysed frame, when the file has them in absolute units."""
    sigma: Float[np.ndarray, " bin"] | None = None
    """Noise of one pair if it was given; otherwise it is computed at ingest."""
    baseline: int | None = None
    """What c2 decays to in the file, 0 or 1, if the file says it; otherwise it is detected at ingest."""
    pictures: Pictures = NO_PICTURES
    notes: tuple[str, ...] = ()
    half: Half | None = None
    """Which half of a matrix that is not symmetric is taken."""
    keep_outliers: bool = False
    """Whether values that are no measurement stay (`ingest/clean.py`)."""
    follow: str | None = None
    """Folder below which a file may lead to others, by default its own."""
    masked: Bool[np.ndarray, " t"] | None = None
    """Frames of a scan, one of several, without data."""
    scans: "tuple[Source, ...]" = ()
    """The scans of which this holds the bins, one after the other; () for one scan."""
    scan_names: tuple[str, ...] = ()
    mean_of: "tuple[Source, ...]" = ()
    """The scans whose matrices are averaged to those of this source."""
    files: tuple[Path, ...] = ()
    """The file of each bin, if each has its own."""
    g2: Float[np.ndarray, "bin t"] | None = None
    """Of a table of one-time correlations: c2 of the first frame with each frame; NaN where unknown."""
    g2_sigma: Float[np.ndarray, "bin t"] | None = None
    """Its standard deviations; one number for all where the table has no errors."""
    g2_errors: bool = False

    def saying(self, **fields: Any) -> "Source":
        """Return the source with other fields of its measurement."""
        return replace(self, measurement=self.measurement.model_copy(update=fields))

    def read(self, bin_index: int) -> np.ndarray:
        if self.g2 is not None:
            matrix = np.full((self.n_frames, self.n_frames), np.nan)
            matrix[0] = self.g2[bin_index]
            return matrix
        if not is_file(self.path) and self.path.exists():  # a pipe is waited for without end
            raise SourceError(f"{self.path} is not a file any more: check the name")
        with following(self.follow, checked=True):
            return patiently(self.path, lambda: self.reader(self.path, self.matrices[bin_index]))

    def name(self, bin_index: int) -> str:
        path = self.files[bin_index] if self.files else self.path
        if self.scans:
            path = self.scans[bin_index // len(self.scans[0].label)].path
        return f"bin {self.label[bin_index]} ({self.matrices[bin_index]}) of {path.name}"

    def only(self, bin_index: int) -> "Source":
        """Return the source of one bin, without truth, pictures and notes, which are of the whole store."""
        if self.scans:
            scan, bin_of_scan = divmod(bin_index, len(self.scans[0].label))
            return self.scans[scan].only(bin_of_scan)
        arrays = {name: getattr(self, name) for name in (*PER_BIN, "files")}
        kept: dict[str, Any] = {
            name: values[bin_index : bin_index + 1]
            for name, values in arrays.items()
            if values is not None
        }
        kept["mean_of"] = tuple(scan.only(bin_index) for scan in self.mean_of)
        return replace(self._of_any_bin, **kept)

    @cached_property
    def _of_any_bin(self) -> "Source":
        return replace(self.saying(truth=None), pictures=NO_PICTURES, notes=())


PER_BIN = ("matrices", "label", "q", "phi", "n_pixels", "intensity", "sigma", "g2", "g2_sigma")


REQUIRED = {
    "q": "--q in 1/Å, one number or one per bin, or nan if it is unknown",
    "phi": "--phi in degrees, one number or one per bin; nan for whole rings",
    "its frame spacing": "--frame-time in s",
}
"""What is known of every source, and how a user gives it where the file lacks it."""


def source_of(
    path: Path,
    format: str,
    options: IngestOptions,
    reader: Callable[[Path, str], np.ndarray],
    matrices: Iterable[str],
    n_frames: int,
    *,
    q: Any = None,
    phi: Any = None,
    label: np.ndarray | None = None,
    pixels: Any = 0,
    sigma: Any = None,
    time: Float[np.ndarray, " t"] | None = None,
    dt: float | None = None,
    frame_time: float | None = None,
    notes: Iterable[str] = (),
    **fields: Any,
) -> Source:
    """Return the source of what a reader has read from a file, completed by the options.

    q [1/Å], phi [degree], pixels, sigma: one number or one per bin. time [s]: of the frames; without it they
    begin at 0, in steps of frame_time, which the file states, or of dt. fields: others of `Source` and of
    its measurement.
    """
    names = tuple(matrices)
    n_bins = len(names)
    check_frames(n_frames, path, n_bins)
    steps = (frame_time, dt, options.frame_time)
    _check_complete(path, (q, options.q), (phi, options.phi), (time, *steps))
    if time is None:
        step = next(value for value in steps if value is not None)
        with np.errstate(invalid="ignore"):  # of an infinite step, which is refused later
            time = np.arange(n_frames) * np.float64(step)
    spacing = _checked_spacing(path, n_frames, time, frame_time if dt is None else dt)
    measurement = {
        name: fields.pop(name) for name in schema.Measurement.model_fields if name in fields
    }
    # a spacing of decimal times, such as 0.3 - 0.2, without their binary rounding
    measurement["frame_time"] = frame_time or float(f"{spacing:.12g}")
    return Source(
        path=path,
        format=format,
        reader=reader,
        matrices=names,
        label=np.arange(1, n_bins + 1) if label is None else label,
        q=_from_file_or_option(path, "q", q, options.q, n_bins),
        phi=_from_file_or_option(path, "phi", phi, options.phi, n_bins),
        n_pixels=per_bin(f"pixels of {path.name}", pixels, n_bins).astype(np.int64),
        n_frames=n_frames,
        time=time,
        # not validated here: `with_options` refuses what is wrong in it by a sentence
        measurement=schema.Measurement.model_construct(**measurement),
        sigma=None if sigma is None else per_bin(f"sigma of {path.name}", sigma, n_bins),
        notes=tuple(notes),
        **fields,
    )


def _check_complete(path: Path, *values_of_file_or_options: tuple[Any, ...]) -> None:
    values_by_name = zip(REQUIRED, values_of_file_or_options, strict=True)
    missing = [name for name, values in values_by_name if all(value is None for value in values)]
    if missing:
        raise OptionError(
            f"{path.name} does not contain {joined_with_and(missing)}: give "
            f"{'; '.join(REQUIRED[name] for name in missing)} (or --q-dataset, --phi-dataset, "
            f"--time-dataset if the file contains them), which are options of `ingest`"
        )


def _checked_spacing(
    path: Path, n_frames: int, time: Float[np.ndarray, " t"], stated: float | None
) -> float:
    """Return the median spacing of times [s], which must be the one that the file states, where it does."""
    if len(time) != n_frames:
        raise SourceError(f"time of {path.name} has {len(time)} entries for {n_frames} frames")
    spacing = float(np.median(np.diff(time)))
    if stated is not None and spacing > 0 and not np.isclose(stated, spacing, rtol=1e-6, atol=0):
        raise SourceError(
            f"{path.name} has a frame time of {stated:g} s, but its times are {spacing:g} s apart: correct "
            "one of them"
        )
    return spacing


def _from_file_or_option(
    path: Path, name: str, of_file: Any, of_options: tuple[float, ...] | None, n_bins: int
) -> Float[np.ndarray, " bin"]:
    if of_file is None:
        return per_bin(name, of_options, n_bins)
    values = per_bin(f"{name} of {path.name}", decimals(of_file), n_bins)
    if of_options and not np.allclose(values, per_bin(name, of_options, n_bins), equal_nan=True):
        raise OptionError(f"{name} = {of_options}, but {path.name} has {values}: leave it out")
    return values


def counts_and_pixels(
    path: Path, arrays: Mapping[str, np.ndarray], n_bins: int, n_frames: int
) -> dict[str, Any]:
    """Return pixels, and as `intensity` the counts per pixel and frame of each bin, where they are known."""
    if "counts" in arrays and "pixels" not in arrays:
        raise OptionError(
            f"{path.name} has counts, but no pixels: also give the number of pixels of each bin"
        )
    if "pixels" not in arrays:
        return {}
    pixels = arrays["pixels"].astype(np.float64)
    if not (np.isfinite(pixels) & (pixels >= 1) & (pixels == np.round(pixels))).all():
        raise SourceError(
            f"pixels of {path.name} must be whole numbers of at least 1: one number, or one per bin"
        )
    if "counts" not in arrays:
        return {"pixels": pixels}
    counts = arrays["counts"].astype(np.float64)
    row = counts.reshape(1, -1)
    by_shape = {(): row, (n_bins,): row.T, (n_frames,): row, (n_bins, n_frames): counts}
    shaped = by_shape.get(counts.shape)
    if shaped is None or counts.shape == (n_bins,) == (n_frames,):
        raise SourceError(
            f"counts of {path.name} have shape {counts.shape}: give counts per pixel and frame as one "
            f"number, ({n_bins},) per bin, ({n_frames},) per frame, or ({n_bins}, {n_frames})"
        )
    if not np.isfinite(shaped).all() or (shaped < 0).any() or not shaped.any():
        raise SourceError(f"counts of {path.name} must be finite and not negative, and not all 0")
    return {"pixels": pixels, "intensity": np.broadcast_to(shaped, (n_bins, n_frames)).copy()}


def cut(source: Source, frames: tuple[int, int]) -> Source:
    """Return the source with the frames from one to before another, at the times that they have."""
    name, (first, end), n = source.path.name, frames, source.n_frames
    check_has_frames(source, "frames")
    if not 0 <= first < end <= n:
        raise OptionError(f"frames = {first}:{end}, but {name} has frames 0 to {n - 1}: correct it")
    check_frames(end - first, source.path)
    which, measurement, detector = slice(first, end), source.measurement, {}
    if measurement.begin_frame is not None:
        step = measurement.stride * measurement.avg
        begin = measurement.begin_frame + step * first
        detector = {"begin_frame": begin, "end_frame": begin + step * (end - first - 1)}
    intensity, flux = source.intensity, source.pictures.flux
    return replace(
        source.saying(**detector),
        reader=partial(_cut, reader=source.reader, frames=which),
        n_frames=end - first,
        time=source.time[which],
        intensity=None if intensity is None else intensity[:, which],
        pictures=source.pictures._replace(flux=None if flux is None else flux[which]),
        notes=(
            *source.notes,
            f"frames {first} to {end - 1} of {n} are stored, at the times that they have",
        ),
    )


def _cut(
    path: Path, where: str, reader: Callable[[Path, str], np.ndarray], frames: slice
) -> np.ndarray:
    return reader(path, where)[frames, frames]


def check_has_frames(source: Source, option: str) -> None:
    if source.g2 is not None or source.measurement.cells is not None:
        what = (
            "is a table of g2" if source.g2 is not None else "has means over cells of age and lag"
        )
        raise OptionError(
            f"{option} applies to two-time matrices, but {source.path.name} {what}: leave it out"
        )


def with_options(source: Source, options: IngestOptions) -> Source:
    """Return the source with what the user added; refuse what contradicts the file or cannot be."""
    if options.frames is not None and not source.scans:
        source = cut(source, options.frames)
    frame_time, name, measurement = options.frame_time, source.path.name, source.measurement
    if frame_time and not np.isclose(frame_time, measurement.frame_time, rtol=1e-6, atol=0):
        raise OptionError(
            f"frame_time = {frame_time:g} s, but {name} has {measurement.frame_time:g} s between stored "
            f"frames (stride {measurement.stride}, averaging {measurement.avg}): correct it or leave it out"
        )
    if options.column_is is not None and source.g2 is None:
        raise OptionError(f"{name} has matrices, not columns of g2: leave out column_is")
    stated = measurement.gap_angstrom
    gap = options.gap or stated
    if gap and stated and not np.isclose(gap, stated):
        raise OptionError(f"gap = {gap:g} Å, but {name} has {stated:g} Å: leave out gap")
    sigma, notes = source.sigma, source.notes
    if options.sigma is not None:
        sigma = per_bin("sigma", options.sigma, len(source.label))
    if options.time_offset:
        notes += (f"{options.time_offset:g} s were added to all times (time_offset)",)
    time = source.time + options.time_offset
    if wrong := what_is_wrong(time, source.q, source.phi, sigma):
        raise SourceError(f"{name} cannot be ingested: {wrong}; correct the value or its unit")
    completed = replace(source.saying(gap_angstrom=gap), sigma=sigma, time=time, notes=notes)
    kept = {"keep_outliers": options.keep_outliers, "follow": options.follow}
    return replace(completed, half=options.half, **kept)


def per_bin(name: str, values: Any, n_bins: int) -> Float[np.ndarray, " bin"]:
    values = np.ravel(values).astype(np.float64)
    if len(values) not in (1, n_bins):
        raise OptionError(
            f"{name} has {len(values)} values for {n_bins} bins: give one number or {n_bins}"
        )
    return np.broadcast_to(values, (n_bins,)).copy()


def times_or_spacing(times: Float[np.ndarray, " t"], notes: list[str]) -> dict[str, Any]:
    """Return times [s] that begin at 0, or a single one as dt, the spacing of the frames."""
    if times.size == 1:
        return {"dt": times[0]}
    if times[0]:
        notes.append(
            f"time began at {times[0]:g} s and was shifted to 0 (to keep an age, give --time-offset)"
        )
    return {"time": times - times[0]}


def spacing(seconds: float, frames: int) -> float:
    """Return a product of decimals without binary rounding: 0.1 · 3 is 0.3."""
    return float(f"{seconds * frames:.15g}")


def check_frames(n_frames: int, path: Path, n_bins: int = 1) -> None:
    """Raise SourceError for too few frames, or more than any file has: nothing is allocated before."""
    if n_frames < MIN_FRAMES:
        raise SourceError(
            f"{path.name} has {n_frames} frames, but a two-time fit needs at least {MIN_FRAMES}"
        )
    if n_bins > MAX_BINS:
        raise SourceError(
            f"{path.name} claims {n_bins:,} bins, more than {MAX_BINS:,}: it is damaged"
        )
    # int: a reader may give an int32, whose square overflows
    needed, memory = 4 * int(n_frames) ** 2, psutil.virtual_memory().total
    if needed > memory:
        raise SourceError(
            f"{path.name} claims {n_frames:,} frames: one matrix takes {needed / 1e9:.3g} GB, but "
            f"this machine has {memory / 1e9:.3g} GB of memory; it is damaged, or needs a larger machine"
        )


def place(where: str) -> tuple[str, int]:
    """Return the array and the number of a matrix named as c2[3]; number 0 where the name has none."""
    name, _, number = where.removesuffix("]").rpartition("[")
    return (name, int(number)) if name else (where, 0)
