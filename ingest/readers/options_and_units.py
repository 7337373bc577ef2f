"""The options of an ingest; q, φ and times in the units that people write, in 1/Å, degrees and s."""

import re
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
)

from homodyne_dask.errors import OptionError, SourceError, shown
from homodyne_dask.store.schema import GAPS, Finite, Positive, first_mistake

SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
SECONDS |= {"µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
"""Units of time."""
ANGSTROM = "(?:aa?|å|ang(?:s|stroms?)?)"
_LENGTH = f"(?:{ANGSTROM}|[nµμupmckf]?m)"
PER_LENGTH = rf"(?:1?\s*/\s*|inv[a-z]*\.?[ _]*){_LENGTH}(?![a-z])"
PER_LENGTH += rf"|{_LENGTH}\s*(?:\^|\*\*)?[({{]*-1[)}}]*(?!\.?\d)"
"""A unit of q, or what may be one, in a name."""
QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan)\s*(.*?)\s*")
"""A number and its unit."""


def in_own_units(what: str, given: Any) -> Any:
    """Return numbers of q, phi or time of text such as '0.1, 0.2 1/nm', and what holds no text as it is."""
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not any(isinstance(word, str) for word in words):
        return given
    matches = [QUANTITY.fullmatch(text) for word in words for text in str(word).split(",")]
    units = {match[2] for match in matches if match and match[2]}
    if len(units) > 1 or not all(matches):
        raise ValueError("it must be a number, or numbers, with one unit or none")
    values = np.array([float(match[1]) for match in matches if match])
    try:
        return converted(what, values, units.pop() if units else None, "it", []).tolist()
    except SourceError as error:
        raise ValueError(str(error)) from None


def decimals(values: Any) -> Float[np.ndarray, " n"]:
    """Return the shortest decimals that give values in their own width: float32 0.05 is 0.05."""
    return np.array([float(str(value)) for value in np.ravel(values)])


_UNSAID = {"q": "q is assumed to be in 1/Å", "time": "times are assumed to be in s"}
"""What is assumed of numbers without a unit, and said."""
_PER_NM = "1?/nm|nm(-1|⁻¹)"
_UNITS = {
    "q": (rf"1?/{ANGSTROM}|{ANGSTROM}(-1|⁻¹)", "only 1/Å and 1/nm are known units of q"),
    "phi": ("(deg|°).*", "only degree and rad are known units of φ"),
    "time": ("|".join(SECONDS), f"the known units of time are {', '.join(filter(None, SECONDS))}"),
}
"""Units of numbers that stay as they are, and what is said of one that is unknown."""


def converted(
    what: str, values: np.ndarray, unit: str | None, where: str, notes: list[str]
) -> np.ndarray:
    """Return q in 1/Å, phi in degrees or time in s of values in a unit; add to `notes` what was done."""
    if unit is None:
        if what in _UNSAID:
            notes.append(f"{where} has no unit: {_UNSAID[what]}")
        return values
    plain = re.sub(r"[\s\\{}$^()*]", "", unit).lower().replace("å", "å")
    if what == "q" and re.fullmatch(_PER_NM, plain):
        notes.append(f"q converted from {unit} to 1/Å")
        return values / 10
    if what == "phi" and plain.startswith("rad"):
        notes.append("φ converted from radians to degrees")
        return np.rad2deg(values)
    if what == "time" and SECONDS.get(plain, 1.0) != 1:
        notes.append(f"times converted from {unit} to s")
        return decimals([f"{value * SECONDS[plain]:.15g}" for value in values])
    as_it_is, known = _UNITS[what]
    if not re.fullmatch(as_it_is, plain):
        raise SourceError(f"{where} is in {unit!r}, but {known}")
    return values


Half = Literal["upper", "lower", "mean"]
HALVES: dict[Half, str] = {
    "upper": "the pairs above the diagonal, whose first axis is the earlier time",
    "lower": "the pairs below the diagonal, whose first axis is the later time",
    "mean": "the mean of both, with the noise of the mean",
}


def _numbers(given: Any) -> list[float]:
    try:
        if np.asarray(given).dtype.kind in "cmMV":  # NumPy would make numbers of them
            raise TypeError
        return np.asarray(given, dtype=np.float64).ravel().tolist()
    except (TypeError, ValueError):
        raise ValueError("it is not a number") from None


def _number(given: Any) -> float:
    number, *others = _numbers(given)
    if others:
        raise ValueError(f"it takes one number, not {len(others) + 1}")
    return number


def _in_units(what: str) -> BeforeValidator:
    return BeforeValidator(lambda given: _numbers(in_own_units(what, given)))


def _finite_or_nan(number: float) -> float:
    if np.isinf(number):
        raise ValueError("it must be finite")
    return number


def _positive_or_nan(number: float) -> float:
    if number <= 0:
        raise ValueError("it must be positive")
    return _finite_or_nan(number)


def _array(example: str) -> Any:
    return Field(None, description=f"give the name of an array, such as {example}")


def _split(given: Any) -> Any:
    return re.split(r"[:,\s]+", given.strip()) if isinstance(given, str) else given


def _with_two_times(axes: tuple[str, ...]) -> tuple[str, ...]:
    if axes.count("t") != 2:
        raise ValueError("it must name two axes t")
    return axes


AtLeastOne = Field(min_length=1)
Wavevectors = tuple[Annotated[float, AfterValidator(_positive_or_nan)], ...]
Angles = tuple[Annotated[float, AfterValidator(_finite_or_nan)], ...]
ArrayName = Annotated[str, StringConstraints(pattern="[^/ ]")]


class IngestOptions(BaseModel):
    """Options of an ingest, None where the file holds the value; their descriptions end messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    q: Annotated[Wavevectors, AtLeastOne, _in_units("q")] | None = Field(
        None, description="give it in 1/Å or with its unit, as '0.22 1/nm', or nan if it is unknown"
    )
    phi: Annotated[Angles, AtLeastOne, _in_units("phi")] | None = Field(
        None, description="give it in degrees, or nan if it is unknown"
    )
    frame_time: Annotated[Positive, BeforeValidator(_number), _in_units("time")] | None = Field(
        None,
        description="give the spacing of the stored frames in seconds or with its unit, as '443 ns'; "
        "times of frames are read from an .npz file, as `time`",
    )
    sigma: Annotated[tuple[Positive, ...], AtLeastOne, BeforeValidator(_numbers)] | None = Field(
        None, description="give the noise of one pair of c2, one number or one per bin"
    )
    time_offset: Annotated[Finite, BeforeValidator(lambda value: _number(value or 0.0))] = Field(
        0.0, description="give it in seconds"
    )
    gap: Annotated[float, Field(ge=GAPS[0], le=GAPS[1]), BeforeValidator(_number)] | None = Field(
        None, description="give it in Å: gaps are between 1 um and 10 cm"
    )
    trains: Annotated[tuple[int, int], BeforeValidator(_split)] | None = Field(
        None,
        description="give the first train, counted from 0, and the one after the last, such as 0:500",
    )
    half: Half | None = Field(
        None, description="; ".join(f"{name}: {what}" for name, what in HALVES.items())
    )
    dataset: ArrayName | None = _array("/c2")
    """The matrices in a file of any layout: a dataset or group of HDF5, an array of .npz."""
    q_dataset: ArrayName | None = _array("/q")
    phi_dataset: ArrayName | None = _array("/phi")
    time_dataset: ArrayName | None = _array("/t")
    """Times of the frames, or their spacing, in s."""
    axes: (
        Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_with_two_times)] | None
    ) = Field(
        None, description="name every axis of the matrices, t for each of the two times, as t,t,q"
    )
    column_is: Literal["g2", "g2-1", "g1", "f"] | None = Field(
        None, description="say what the columns of a table are: g2, g2-1, or g1, which f is, too"
    )
    keep: Annotated[tuple[ArrayName, ...], BeforeValidator(_split)] = Field(
        (), description="give paths of single numbers in HDF5 files, such as /entry/sample/humidity"
    )
    average: Literal["scans"] | None = Field(None, description="give 'scans' for the mean of scans")
    keep_copies: StrictBool = Field(
        False, description="give True to keep bins that hold the data of another one"
    )
    keep_outliers: StrictBool = Field(
        False, description="give True to keep pairs that are no measurement, such as fill values"
    )

    def as_json(self) -> dict[str, Any]:
        """Return plain values that compare equal when the options are the same."""
        always = ("q", "phi", "frame_time", "sigma", "time_offset", "gap")
        return {
            name: [str(v) if v != v else v for v in value] if isinstance(value, tuple) else value
            for name, value in self
            if value not in (None, False, ()) or name in always
        }


def checked_options(**given: Any) -> IngestOptions:
    try:
        return IngestOptions(**given)
    except ValidationError as e:
        (name, *_), _, message = first_mistake(e)
        field = IngestOptions.model_fields.get(str(name))
        advice = (
            field.description if field else f"choose from {', '.join(IngestOptions.model_fields)}"
        )
        raise OptionError(f"{name} = {shown(given[str(name)])} ({message}): {advice}") from None
