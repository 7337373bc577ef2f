"""The options of an ingest; q, φ and times in the units that people write, in 1/Å, degrees and s."""

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
)

from homodyne_dask.errors import SourceError, shown
from homodyne_dask.request.option_types import Form, Frames, parts
from homodyne_dask.request.options import Options, option, typed_value
from homodyne_dask.store.schema import GAPS, Finite, Positive, first_mistake

SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
SECONDS |= {"µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
"""Units of time."""
ANGSTROM = "(?:aa?|å|ang(?:s|stroms?)?)"
_LENGTH = f"(?:{ANGSTROM}|[nµμupmckf]?m)"
PER_LENGTH = rf"(?:1?\s*/\s*|inv[a-z]*\.?[ _]*){_LENGTH}(?![a-z])"
PER_LENGTH += rf"|{_LENGTH}\s*(?:\^|\*\*)?[({{]*-1[)}}]*(?!\.?\d)"
"""A unit of q, or what may be one, in a name."""
UNIT_OF_NAME = re.compile(r"\s*\[([^\[\]\d][^\[\]]*|1?/[^\[\]]*)\]$")
"""A unit after the name of a dataset, which is no index such as [3]."""
QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan)\s*(.*?)\s*")
"""A number and its unit."""


def in_own_units(quantity: str, value: Any) -> Any:
    """Return numbers of q, phi or time of text such as '0.1, 0.2 1/nm', and what holds no text as it is."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not any(isinstance(word, str) for word in words):
        return value
    numbers, unit = _numbers_with_unit(words)
    try:
        return converted(quantity, numbers, unit, "it", []).tolist()
    except SourceError as error:  # pydantic makes a sentence of a ValueError alone
        raise ValueError(str(error)) from None


def _numbers_with_unit(words: Sequence[Any]) -> tuple[Float[np.ndarray, " n"], str | None]:
    matches = [QUANTITY.fullmatch(text) for word in words for text in str(word).split(",")]
    # '0.1, 0.2 1/nm': the unit of one is that of all
    units = {match[2] for match in matches if match and match[2]}
    if len(units) > 1 or not all(matches):
        raise ValueError("it must be a number, or numbers, with one unit or none")
    return np.array([float(match[1]) for match in matches if match]), next(iter(units), None)


def decimals(values: Any) -> Float[np.ndarray, " n"]:
    """Return the shortest decimals that give values in their own width: float32 0.05 is 0.05."""
    return np.array([float(str(value)) for value in np.ravel(values)])


_UNSAID = {"q": "q is assumed to be in 1/Å", "time": "times are assumed to be in s"}
"""What is assumed of numbers without a unit, and said."""
_PER_NM, _PER_UM = "1?/nm|nm(-1|⁻¹)", "1?/[uµμ]m|[uµμ]m(-1|⁻¹)"
_UNITS = {
    "q": (rf"1?/{ANGSTROM}|{ANGSTROM}(-1|⁻¹)", "only 1/Å, 1/nm and 1/µm are known units of q"),
    "phi": ("(deg|°).*", "only degree and rad are known units of φ"),
    "time": ("|".join(SECONDS), f"the known units of time are {', '.join(filter(None, SECONDS))}"),
}
"""Units of numbers that stay as they are, and what is said of one that is unknown."""


def converted(
    quantity: str, values: np.ndarray, unit: str | None, where: str, notes: list[str]
) -> np.ndarray:
    """Return q in 1/Å, phi in degrees or time in s of values in a unit; add to `notes` what was done."""
    if unit is None:
        if quantity in _UNSAID:
            notes.append(f"{where} has no unit: {_UNSAID[quantity]}")
        return values
    plain = re.sub(r"[\s\\{}$^()*]", "", unit).lower().replace("å", "å")
    if quantity == "q" and re.fullmatch(_PER_NM, plain):
        notes.append(f"q converted from {unit} to 1/Å")
        return values / 10
    if quantity == "q" and re.fullmatch(_PER_UM, plain):
        notes.append(f"q converted from {unit} to 1/Å")
        return decimals([f"{value * 1e-4:.15g}" for value in values])
    if quantity == "phi" and plain.startswith("rad"):
        notes.append("φ converted from radians to degrees")
        return np.rad2deg(values)
    if quantity == "time" and SECONDS.get(plain, 1.0) != 1:
        notes.append(f"times converted from {unit} to s")
        return decimals([f"{value * SECONDS[plain]:.15g}" for value in values])
    as_it_is, sentence = _UNITS[quantity]
    if not re.fullmatch(as_it_is, plain):
        raise SourceError(f"{where} is in {unit!r}, but {sentence}")
    return values


Half = Literal["upper", "lower", "mean"]
HALVES: dict[Half, str] = {
    "upper": "the pairs above the diagonal, whose first axis is the earlier time",
    "lower": "the pairs below the diagonal, whose first axis is the later time",
    "mean": "the mean of both, with the noise of the mean",
}


def _split(value: Any) -> Any:
    """Return the words of text, or of several, between which there are commas, colons or spaces."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    return [word for text in texts for word in re.split(r"[:,\s]+", text.strip())]


def _paths(value: Any) -> Any:
    """Return the paths in one text, or of several, which may hold spaces and colons."""
    if isinstance(value, str):
        return _split(value)
    paths = parts(value)
    return paths if paths or not len(value) else value  # an empty name is refused, not left out


def _numbers(value: Any) -> list[float]:
    try:
        if np.asarray(value).dtype.kind in "cmMV":  # NumPy would make numbers of them
            raise TypeError
        return np.asarray(_split(value), dtype=np.float64).ravel().tolist()
    except (TypeError, ValueError):
        raise ValueError("it is not a number") from None


def _number(value: Any) -> float:
    number, *further = _numbers(value)
    if further:
        raise ValueError(f"it takes one number, not {len(further) + 1}")
    return number


def _in_units(quantity: str) -> BeforeValidator:
    return BeforeValidator(lambda value: _numbers(in_own_units(quantity, value)))


def _finite_or_nan(number: float) -> float:
    if np.isinf(number):
        raise ValueError("it must be finite")
    return number


def _positive_or_nan(number: float) -> float:
    if number <= 0:
        raise ValueError("it must be positive")
    return _finite_or_nan(number)


def _with_two_times(axes: tuple[str, ...]) -> tuple[str, ...]:
    if axes.count("t") != 2:
        raise ValueError("it must name two axes t")
    return axes


def _folder(value: Any) -> Any:
    """Return the absolute path of a folder as text, which a store records."""
    if not isinstance(value, str | PathLike) or not Path(value).expanduser().is_dir():
        raise ValueError("it is not a folder")
    return str(Path(value).expanduser().absolute())


def _excluded_frames(value: Any) -> list[str]:
    words = [str(word) for word in parts(value)]
    if wrong := [word for word in words if not re.fullmatch(r"\d+:\d+-\d+|\d+(-\d+)?", word)]:
        raise ValueError(f"{wrong[0]!r} is not of a form below")
    return words


AtLeastOne = Field(min_length=1)
QUANTITIES = Form("a number, with or without its unit, or a list", "NUMBER[UNIT]")
NUMBER, NUMBERS = Form("a number", "FLOAT"), Form("a number, or a list", "FLOAT")
MaybeUnknown = Annotated[float, Field(allow_inf_nan=True)]
Wavevector = Annotated[MaybeUnknown, AfterValidator(_positive_or_nan)]
Azimuth = Annotated[MaybeUnknown, AfterValidator(_finite_or_nan)]
Wavevectors = Annotated[tuple[Wavevector, ...], AtLeastOne, _in_units("q"), QUANTITIES]
Azimuths = Annotated[tuple[Azimuth, ...], AtLeastOne, _in_units("phi"), QUANTITIES]
OneTime = Annotated[Positive, BeforeValidator(_number), _in_units("time"), QUANTITIES]
Sigmas = Annotated[tuple[Positive, ...], AtLeastOne, BeforeValidator(_numbers), NUMBERS]
Offset = Annotated[Finite, BeforeValidator(lambda value: _number(value or 0.0)), NUMBER]
GapInAngstrom = Annotated[float, Field(ge=GAPS[0], le=GAPS[1]), BeforeValidator(_number), NUMBER]
Folder = Annotated[str, BeforeValidator(_folder), Form("a folder", "DIR")]
TrainRange = Annotated[tuple[int, int], BeforeValidator(_split)]
ArrayName = Annotated[str, StringConstraints(pattern="[^/ ]")]
ArrayNames = Annotated[tuple[ArrayName, ...], BeforeValidator(_paths), Form("a name", "NAME")]
ExcludedFrames = Annotated[
    tuple[str, ...], BeforeValidator(_excluded_frames), Form("frames", "[[SCAN:]FIRST-]LAST")
]
Axes = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_with_two_times)]


class IngestOptions(Options):
    """How files are read, by the names in `hd.ingest`; None where the file holds the value.

    The help of an option is the way out of an error, too.
    """

    q: Wavevectors | None = option(None)
    """q in 1/Å, or with its unit ("0.22 1/nm"), if the file does not contain it: one or one per bin, nan if
    it is unknown."""
    phi: Azimuths | None = option(None)
    """φ in degrees if the file does not contain it: one number or one per bin, nan if it is unknown."""
    frame_time: OneTime | None = option(None, names=("--dt", "--frame-time"))
    """Time between stored frames in seconds, or with its unit ("443 ns"); times of frames are read from an
    .npz file, as time."""
    sigma: Sigmas | None = option(None)
    """Standard deviation of c2 of a single pair of frames: one number or one per bin."""
    time_offset: Offset = option(0.0)
    """Seconds between loading the sample and the first frame."""
    gap: GapInAngstrom | None = option(None)
    """Gap between the plates in Å, from 1 um to 10 cm; stored with the data."""
    trains: TrainRange | None = option(None)
    """For files with one matrix per train: first train to use, counted from 0, and the one after the last,
    such as 0:500."""
    half: Half | None = option(None)
    """Part of asymmetric matrices to use: one half, or the mean of both."""
    dataset: ArrayName | None = option(None)
    """Name of the matrices, such as /data/c2, in an HDF5 or .npz file of any other layout."""
    q_dataset: ArrayName | None = option(None)
    """With --dataset: name of the dataset of q, with the unit if the file lacks it, such as /q[1/nm]."""
    phi_dataset: ArrayName | None = option(None)
    """With --dataset: name of the dataset of φ, perhaps with its unit, such as /phi[rad]."""
    time_dataset: ArrayName | None = option(None)
    """With --dataset: name of the dataset of frame times, or of their spacing, in seconds, or with another
    unit, such as /t[ms]."""
    counts_dataset: ArrayName | None = option(None)
    """With --dataset: name of the mean counts per pixel and frame: one number, or one per frame, per bin, or
    both (bin, frame)."""
    pixels_dataset: ArrayName | None = option(None)
    """With --dataset: name of the numbers of pixels, one per bin; with counts, sigma follows from them."""
    frames: Frames | None = option(None)
    """Frames to store, from the first to before the end, such as 100:900; they keep their times."""
    exclude_frames: ExcludedFrames = option(())
    """Frames of the file, counted from 0, to leave out: 51, 51-60, or 3:51-60 in scan 3 alone."""
    axes: Axes | None = option(None)
    """Axes of the matrices if they are not detected, with t for both time axes, such as t,t,q."""
    column_is: Literal["g2", "g2-1", "g1", "f", "contrast"] | None = option(None)
    """What the columns of a table are, if their names do not say it; f is g1, the field correlation."""
    follow: Folder | None = option(None)
    """Folder below which an HDF5 file may lead to other files, by external links and virtual datasets;
    default: the folder of the file."""
    keep: ArrayNames = option(())
    """Paths of numbers in an HDF5 file, such as /entry/sample/humidity, over which scans may then be fitted
    (fit --over-scans /entry/sample/humidity)."""
    average: Literal["scans"] | None = option(None)
    """Write the mean of the scans instead of the bins of each scan."""
    reject_scans: StrictBool = option(False)
    """Leave out scans of five or more that differ from the others in c2 at long or short lags, or in where c2
    lies, before they are stored or averaged."""
    keep_copies: StrictBool = option(False)
    """Keep bins that hold the data of another bin, instead of leaving them out."""
    keep_outliers: StrictBool = option(False)
    """Keep pairs that are no measurement, such as fill values, instead of leaving them out."""

    @property
    def dataset_names(self) -> dict[str, str]:
        """The names of the datasets of q, phi, time, counts and pixels that are given, without units."""
        names = {what: getattr(self, f"{what}_dataset") for what in (*_UNITS, "counts", "pixels")}
        given = ((what, name) for what, name in names.items() if name is not None)
        return {
            what: UNIT_OF_NAME.sub("", name) if what in _UNITS else name for what, name in given
        }

    @property
    def dataset_units(self) -> dict[str, str]:
        """The units that are given with the names of datasets."""
        matches = {
            what: UNIT_OF_NAME.search(getattr(self, f"{what}_dataset") or "") for what in _UNITS
        }
        return {what: match[1] for what, match in matches.items() if match}

    @classmethod
    def _sentence(cls, values: dict[str, Any], wrong: ValidationError) -> str:
        (name, *_), _, message = first_mistake(wrong)
        refused = cls.options().get(str(name))
        if refused is None or refused.choices:
            return super()._sentence(values, wrong)
        value = shown(typed_value(values[refused.name]))
        typed = f"--{refused.name.replace('_', '-')}"
        return f"{typed} = {value} cannot be used ({message}): correct it ({refused.help})"

    def as_json(self) -> dict[str, Any]:
        """Return plain values that compare equal when the options are the same."""
        always = ("q", "phi", "frame_time", "sigma", "time_offset", "gap")
        return {
            name: [str(v) if v != v else v for v in value] if isinstance(value, tuple) else value
            for name, value in self
            if value not in (None, False, ()) or name in always
        }
