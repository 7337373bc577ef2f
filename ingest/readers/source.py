"""The output of every reader: the bins of one file, and a function that reads one matrix."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import psutil
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import OptionError, SourceError, shown
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import out_of_range
from homodyne_dask.store.files import patiently

MIN_FRAMES = 3
Half = Literal["upper", "lower", "mean"]
HALVES: dict[Half, str] = {
    "upper": "the pairs above the diagonal, whose first axis is the earlier time",
    "lower": "the pairs below the diagonal, whose first axis is the later time",
    "mean": "the mean of both, with the noise of the mean",
}
MAX_BINS = 100_000
"""Matrices of a file; one that claims more is damaged."""


class Pictures(NamedTuple):
    """What a file holds of both."""

    flux: Float[np.ndarray, " t"] | None = None
    """Intensity of each analysed frame, in any unit."""
    mean_image: Float[np.ndarray, "y x"] | None = None
    """Intensity averaged over the frames, in any unit; NaN where a pixel is unknown."""


NO_PICTURES = Pictures()


@dataclass(frozen=True)
class Source:
    """One file of measured two-time matrices; everything but the matrices is already in memory."""

    path: Path
    format: str
    """aps-u | aps-legacy | nxxpcs | esrf | chx | midtools | hdf5 | npy | npz | homodyne."""
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
    frame_time: float
    """s, spacing of the analysed frames."""
    time: Float[np.ndarray, " t"]
    """s."""
    stride: int = 1
    avg: int = 1
    begin_frame: int | None = None
    """First detector frame, 1-based."""
    end_frame: int | None = None
    """Last detector frame, 1-based."""
    intensity: Float[np.ndarray, "bin t"] | None = None
    """Counts per pixel and analysed frame, when the file has them in absolute units."""
    sigma: Float[np.ndarray, " bin"] | None = None
    """Noise of one pair when it was given; else it is worked out at ingest."""
    baseline: int | None = None
    """To which c2 decays in the file, 0 or 1, where the file says it; else it is detected at ingest."""
    truth: dict[str, Any] | None = None
    gap: float | None = None
    """Å."""
    cells: schema.CellEdges | None = None
    """The cells over which c2 is averaged, if it is not that of each pair."""
    experiment: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the file says of the measurement, by its names in NXxpcs (`ingest/readers/hdf5.py`)."""
    pictures: Pictures = NO_PICTURES
    """Intensity against frame and averaged over the frames, where the file has them."""
    notes: tuple[str, ...] = ()
    half: Half | None = None
    """Which half of a matrix that is not symmetric is taken."""
    masked: Bool[np.ndarray, " t"] | None = None
    """Frames of a scan, one of several, without data."""
    scans: "tuple[Source, ...]" = ()
    """The scans of which this holds the bins, one after the other (`ingest/repeats.py`); () for one scan."""
    scan_names: tuple[str, ...] = ()
    mean_of: "tuple[Source, ...]" = ()
    """The scans of whose matrices those of this source are the mean."""

    def scan_of(self, bin_index: int) -> "tuple[Source, int]":
        """Return the scan of a bin, and the position of the bin in it."""
        if not self.scans:
            return self, bin_index
        scan, own = divmod(bin_index, len(self.scans[0].label))
        return self.scans[scan], own

    def read(self, bin_index: int) -> np.ndarray:
        """Return the (n_frames, n_frames) matrix of one bin as the file holds it."""
        one, own = self.scan_of(bin_index)
        return patiently(one.path, lambda: one.reader(one.path, one.matrices[own]))

    def name(self, bin_index: int) -> str:
        """Return the name of a bin for messages."""
        if self.scans:
            one, own = self.scan_of(bin_index)
            return one.name(own)
        return f"bin {self.label[bin_index]} ({self.matrices[bin_index]}) of {self.path.name}"

    def only(self, bin_index: int) -> "Source":
        """Return the source of one bin alone, without what only the whole store says."""
        if self.scans:
            one, own = self.scan_of(bin_index)
            return one.only(own)
        one, mean_of = slice(bin_index, bin_index + 1), self.mean_of
        return replace(
            self,
            matrices=self.matrices[one],
            label=self.label[one],
            q=self.q[one],
            phi=self.phi[one],
            n_pixels=self.n_pixels[one],
            intensity=None if self.intensity is None else self.intensity[one],
            sigma=None if self.sigma is None else self.sigma[one],
            truth=None,
            pictures=NO_PICTURES,
            notes=(),
            mean_of=tuple(scan.only(bin_index) for scan in mean_of),
        )


@dataclass(frozen=True)
class IngestOptions:
    """Options of an ingest; None where the file holds the value."""

    q: tuple[float, ...] | None = None
    phi: tuple[float, ...] | None = None
    frame_time: float | None = None
    sigma: tuple[float, ...] | None = None
    time_offset: float = 0.0
    gap: float | None = None
    trains: tuple[int, int] | None = None
    """The first train, counted from 0, and the one after the last."""
    half: Half | None = None
    dataset: str | None = None
    """The matrices in a file of any layout: a dataset or group of HDF5, an array of .npz."""
    q_dataset: str | None = None
    phi_dataset: str | None = None
    time_dataset: str | None = None
    """Times of the frames, or their spacing, in s."""
    axes: tuple[str, ...] | None = None
    """The axes of the matrices, t for each of the two times."""
    average: str | None = None
    """"scans" for the mean of scans."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values that compare equal when the options are the same."""
        return {
            "q": _plain(self.q),
            "phi": _plain(self.phi),
            "frame_time": self.frame_time,
            "sigma": _plain(self.sigma),
            "time_offset": self.time_offset,
            "gap": self.gap,
        } | {
            name: list(value) if isinstance(value, tuple) else value
            for name in LAYOUT
            if (value := getattr(self, name)) is not None
        }


LAYOUT = (
    "trains",
    "average",
    "half",
    "dataset",
    "q_dataset",
    "phi_dataset",
    "time_dataset",
    "axes",
)
"""Options that say where in a file something is; only those given are recorded."""


def _plain(values: tuple[float, ...] | None) -> list[float | str] | None:
    if values is None:
        return None
    return [value if np.isfinite(value) else str(value) for value in values]


def checked_options(q, phi, frame_time, sigma, time_offset, gap, **layout: Any) -> IngestOptions:
    """Return checked options; each error names the option and its value."""
    width = _number("gap", gap, positive=True)
    if width is not None and not schema.GAPS[0] <= width <= schema.GAPS[1]:
        raise OptionError(
            f"gap = {gap} Å is {width / 1e4:g} um, but gaps are between 1 um and 10 cm: give it in Å"
        )
    return IngestOptions(
        q=_numbers("q", q, positive=True, unknown=True),
        phi=_numbers("phi", phi, unknown=True),
        frame_time=_number("frame_time", frame_time, positive=True),
        sigma=_numbers("sigma", sigma, positive=True),
        time_offset=_number("time_offset", time_offset) or 0.0,
        gap=width,
        **_checked_layout(**layout),
    )


def _checked_layout(
    trains=None, half=None, axes=None, average=None, **names: str | None
) -> dict[str, Any]:
    """Return the options of LAYOUT; each error names the option and its value."""
    if average not in (None, "scans"):
        raise OptionError(
            f"average = {shown(average)} is unknown: give 'scans', for the mean of the scans"
        )
    if half is not None and (not isinstance(half, str) or half not in HALVES):
        each = "; ".join(f"{name}, {what}" for name, what in HALVES.items())
        raise OptionError(f"half = {shown(half)} is unknown; choose from {each}")
    for name, value in names.items():
        if value is not None and (not isinstance(value, str) or not value.strip("/ ")):
            raise OptionError(
                f"{name} = {shown(value)} is not the name of an array: write it as /c2"
            )
    return {
        "trains": _trains(trains),
        "half": half,
        "axes": _axes(axes),
        "average": average,
        **names,
    }


def _axes(value) -> tuple[str, ...] | None:
    if value is None:
        return None
    parts = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or [*parts].count("t") != 2:
        raise OptionError(
            f"axes = {shown(value)} must name every axis of the matrices, with t for both time axes, such "
            "as t,t,q"
        )
    return tuple(map(str, parts))


def _trains(value) -> tuple[int, int] | None:
    if value is None:
        return None
    parts = value.split(":") if isinstance(value, str) else value
    try:
        first, last = (int(part) for part in parts)
    except (TypeError, ValueError):
        raise OptionError(
            f"trains = {shown(value)} is not two whole numbers: give the first train, counted from 0, and "
            f"the one after the last, such as 0:500"
        ) from None
    return first, last


def _number(name: str, value, *, positive: bool = False) -> float | None:
    if value is not None and np.size(value) > 1:
        times = "; times of frames are read from an .npz file, as `time`" * (name == "frame_time")
        raise OptionError(f"{name} takes one number, not {np.size(value)}: {_unit_of(name)}{times}")
    numbers = _numbers(name, value, positive=positive)
    return None if numbers is None else numbers[0]


def _numbers(name, value, *, positive=False, unknown=False) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        if np.asarray(value).dtype.kind in "cmMV":  # NumPy would make numbers of them
            raise TypeError
        numbers = np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise OptionError(f"{name} = {shown(value)} is not a number: {_unit_of(name)}") from None
    good = np.isfinite(numbers) | (unknown & np.isnan(numbers))
    if positive:
        good &= ~(numbers <= 0)
    if numbers.size == 0 or not good.all():
        raise OptionError(
            f"{name} = {shown(value)} must be finite{' and positive' * positive}: {_unit_of(name)}"
        )
    return tuple(map(float, numbers))


def _unit_of(name: str) -> str:
    return {
        "q": "give it in 1/Å, or nan if it is unknown",
        "phi": "give it in degrees, or nan if it is unknown",
        "frame_time": "give the spacing of the stored frames in seconds",
        "sigma": "give the noise of one pair of c2, one number or one per bin",
        "time_offset": "give it in seconds",
        "gap": "give it in Å",
    }[name]


def apply_options(source: Source, options: IngestOptions) -> Source:
    """Return the source with what the user added; what contradicts the file is an error."""
    given = options.frame_time
    if given is not None and not np.isclose(given, source.frame_time, rtol=1e-6, atol=0):
        raise OptionError(
            f"frame_time = {given:g} s, but {source.path.name} has {source.frame_time:g} s between "
            f"stored frames (stride {source.stride}, averaging {source.avg}): correct it or leave "
            "it out"
        )
    if options.trains is not None and source.format != "midtools":
        raise OptionError(f"{source.path.name} contains no trains: leave out trains")
    if options.gap and source.gap and not np.isclose(options.gap, source.gap):
        raise OptionError(
            f"gap = {options.gap:g} Å, but {source.path.name} has {source.gap:g} Å: leave out gap"
        )
    sigma = source.sigma
    if options.sigma is not None:
        sigma = per_bin("sigma", options.sigma, len(source.label))
    time = source.time + options.time_offset
    _check_ranges(source, time, sigma)
    notes = source.notes
    if options.time_offset:
        notes += (f"{options.time_offset:g} s were added to all times (time_offset)",)
    gap = options.gap or source.gap
    return replace(source, half=options.half, sigma=sigma, gap=gap, time=time, notes=notes)


def _check_ranges(source: Source, time: np.ndarray, sigma: np.ndarray | None) -> None:
    """Raise SourceError for numbers that no measurement has, of which nothing can be computed."""
    spacing, unknown = np.array([source.frame_time]), np.empty(0)
    found = {"q": source.q, "phi": source.phi, "frame_time": spacing, "time": time}
    found["sigma"] = unknown if sigma is None else sigma
    for wrong in filter(None, (out_of_range(*one) for one in found.items())):
        raise SourceError(
            f"{source.path.name} cannot be ingested: {wrong}; correct the value or its unit"
        )


def per_bin(name: str, values: tuple[float, ...], n_bins: int) -> Float[np.ndarray, " bin"]:
    """Return one value per bin from one value for all, or from one each."""
    if len(values) not in (1, n_bins):
        raise OptionError(
            f"{name} has {len(values)} values for {n_bins} bins: give one number or {n_bins}"
        )
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (n_bins,)).copy()


def decimal(value) -> float:
    """Return the shortest decimal that gives `value` in its own width: float32 0.05 is 0.05."""
    return float(str(np.asarray(value)[()]))


def spacing(seconds: float, frames: int) -> float:
    """Return a product of decimals without binary rounding: 0.1 · 3 is 0.3."""
    return float(f"{seconds * frames:.15g}")


def inverse_angstrom(q: np.ndarray, unit: str | None, where: str) -> tuple[np.ndarray, list[str]]:
    """Return q in 1/Å and what to note about it."""
    if unit is None:
        return q, [f"{where} has no unit: q is assumed to be in 1/Å"]
    plain = re.sub(r"[\s\\{}$^()*]", "", unit).lower()
    if re.fullmatch(r"(1/)?nm(-1|⁻¹)?", plain):
        return q / 10, [f"q converted from {unit} to 1/Å"]
    if re.fullmatch(r"(1/)?(a|aa|å|ang|angs|angstroms?)(-1|⁻¹)?", plain.replace("å", "å")):
        return q, []
    raise SourceError(f"{where} is in {unit!r}, but only 1/Å and 1/nm are known units of q")


def degrees(phi: np.ndarray, unit: str | None, where: str) -> tuple[np.ndarray, list[str]]:
    """Return φ in degrees and what to note about it."""
    if unit is None or unit.lower().startswith("deg") or unit == "°":
        return phi, []
    if unit.lower().startswith("rad"):
        return np.rad2deg(phi), ["φ converted from radians to degrees"]
    raise SourceError(f"{where} is in {unit!r}, but only degree and rad are known units of φ")


def check_seconds(unit: str | None, where: str) -> None:
    """Raise SourceError for times in another unit than seconds; none is taken for seconds."""
    if unit not in (None, "", "s", "sec", "second", "seconds"):
        raise SourceError(f"{where} is in {unit!r}, not in seconds")


def check_frames(n_frames: int, path: Path, n_bins: int = 1) -> None:
    """Raise SourceError for matrices of too few frames to fit, or larger or more than any are.

    A small file can claim any size: nothing is allocated before this.
    """
    if n_frames < MIN_FRAMES:
        raise SourceError(
            f"{path.name} has {n_frames} frames, but a two-time fit needs at least {MIN_FRAMES}"
        )
    if n_bins > MAX_BINS:
        raise SourceError(
            f"{path.name} claims {n_bins:,} bins, more than {MAX_BINS:,}: it is damaged"
        )
    needed, memory = 4 * int(n_frames) ** 2, psutil.virtual_memory().total
    if needed > memory:
        raise SourceError(
            f"{path.name} claims {n_frames:,} frames: one matrix takes {needed / 1e9:.3g} GB, but "
            f"this machine has {memory / 1e9:.3g} GB of memory; it is damaged, or needs a larger machine"
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""

    def read() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    try:
        return patiently(path, read)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
