"""The types of options: what Python, a YAML file and the command line give for each is read alike."""

import math
import re
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field

from homodyne_dask.errors import OptionError
from homodyne_dask.store import schema

T = TypeVar("T")
_ANGSTROM = {"a": 1.0, "å": 1.0, "angstrom": 1.0, "nm": 10.0, "um": 1e4, "µm": 1e4, "μm": 1e4}
_ANGSTROM |= {"micron": 1e4, "mm": 1e7, "cm": 1e8, "m": 1e10}
_LENGTH = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s\d]+)\s*")


class Form(NamedTuple):
    """What a value of a type is called."""

    words: str
    """To follow 'give'."""
    metavar: str
    """What stands for it in the help of a command."""


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would read 0 or 1
        raise ValueError("a truth value")
    return value


def parts(value: Any) -> list[Any]:
    members = _plain(value) if not isinstance(value, str) else [value]
    members = members if isinstance(members, list | tuple) else [members]
    split = (member.split(",") if isinstance(member, str) else [member] for member in members)
    words = (word for words_of_member in split for word in words_of_member if word != "")
    return [word.strip() if isinstance(word, str) else word for word in words]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _pair(value: Any) -> Any:
    members = value.split(":") if isinstance(value, str) else _plain(value)
    if isinstance(value, str) and len(members) != 2:
        raise ValueError("not LOW:HIGH")
    return members


def _whole(value: Any) -> Any:
    """Return text such as 1e3, which YAML does not read as a number, as the whole number that it is."""
    if not isinstance(value, str):
        return value
    number = float(value.replace("_", "?"))  # Python would read 1_0 as 10
    return int(number) if number.is_integer() else value


def _pair_if_colon(value: Any) -> Any:
    return _pair(value) if isinstance(value, str) and ":" in value else value


def _by_name(value: Any) -> Any:
    """Return values by name, also from words 'name=value'; None where there is none."""
    if isinstance(value, str | tuple):
        words = parts(value)
        if not all(isinstance(word, str) for word in words):
            raise ValueError("not NAME=VALUE")
        pairs = [word.partition("=") for word in words]
        if not all(name and equals and text for name, equals, text in pairs):
            raise ValueError("not NAME=VALUE")
        value = {name.strip(): text.strip() for name, _, text in pairs}
    return None if value == {} else value


def _by_name_or_word(value: Any) -> Any:
    """Return values by name, or the one word that is none of 'name=value'."""
    words = parts(value) if isinstance(value, str | list | tuple) else []
    is_word = len(words) == 1 and isinstance(words[0], str) and "=" not in words[0]
    return words[0] if is_word else _by_name(tuple(words) if isinstance(value, list) else value)


def _by_group(value: Any) -> Any:
    """Return names by group, also from pairs of words, and from words 'ring D0'."""
    if isinstance(value, str):
        value = [word.split(maxsplit=1) for word in value.split(",")]
    if isinstance(value, list | tuple):
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            raise ValueError("not GROUP NAME")
        by_group: dict[str, list[Any]] = {}
        for group, names in value:
            by_group.setdefault(str(group), []).extend(parts(names))
        value = by_group
    return None if value == {} else value


def _several_ranges(value: Any) -> list[Any]:
    value = _plain(value)
    is_range = isinstance(value, list | tuple) and not any(
        isinstance(member, list | tuple | str) for member in value
    )
    return [tuple(value)] if is_range else [_pair(member) for member in parts(value)]


def _frames(value: Any, files: bool = True) -> list[Any]:
    """Return ranges from ranges and single frames, 2,5,10-14, or from a file of them (in no file)."""
    value = _plain(value)
    if isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value)):
        if isinstance(value, tuple):
            return [value]
        a, b = value
        raise OptionError(
            f"exclude_frames = [{a}, {b}] may be a range or two frames: write {a}:{b} for the range, "
            f"{a},{b} without brackets for the frames"
        )
    return [frames for word in parts(value) for frames in _ranges_of_word(word, files)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ranges_of_word(word: Any, files: bool) -> list[Any]:
    if frame := re.fullmatch(r"(\d+)(?:-(\d+))?", str(word)):
        # 10-14 are five frames, as people write them: the last one is included
        return [(int(frame[1]), int(frame[2] or frame[1]) + 1)]
    if files and isinstance(word, str) and (text := _text_of(word)) is not None:
        return _frames(",".join(text.replace(",", " ").split()), files=False)
    return [_pair(word)]


def _text_of(path: str) -> str | None:
    try:
        return re.sub(r"#.*", "", Path(path).read_text("utf-8-sig"))
    except OSError:
        return None


def _number_or_ranges(value: Any) -> Any:
    members = parts(value)
    is_word = len(members) == 1 and not isinstance(members[0], list | tuple)
    return members[0] if is_word and ":" not in str(members[0]) else _several_ranges(value)


def _angles(value: Any) -> Any:
    members = parts(value)
    angles = list(map(_pair_if_colon, members))
    if len(angles) == 1:
        return angles[0]
    if len(angles) == 2 and all(isinstance(angle, str) for angle in angles):
        return [*angles, angles[1]]  # two numbers would be a range
    return angles


def _scaling_values(value: Any) -> Any:
    named = isinstance(value, Mapping) or any("=" in str(word) for word in parts(value))
    return _by_name(value) if named else parts(value)


def length_in_angstrom(text: str | float) -> float:
    """Return a length in Å from text with a unit, as '200 um'; a bare number is refused."""
    match = _LENGTH.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise OptionError(
            f"gap {text!r} has no unit: write a number and a unit, such as '200 um' or '2e6 A'"
        )
    number, unit = match.groups()
    # the capital of MM or UM would be another unit; only a lone A and words are taken in any case
    factor = _ANGSTROM.get(unit, _ANGSTROM.get(unit.lower() if len(unit) != 2 else unit))
    if factor is None:
        raise OptionError(f"gap {text!r}: unit {unit!r} is unknown; use A, nm, um, mm or m")
    try:
        value = float(number) * factor
    except ValueError:
        raise OptionError(f"gap {text!r}: {number!r} is not a number") from None
    if not 0 < value < math.inf:
        raise OptionError(f"gap {text!r} is not a positive length")
    return value


def gap_in_angstrom(gap: str | float) -> float:
    """Return a gap in Å: text needs its unit, a number is in Å; refused outside of 1 um to 10 cm."""
    if isinstance(gap, str):
        angstrom = length_in_angstrom(gap)
    elif isinstance(gap, Real) and not isinstance(gap, bool) and 0 < gap < math.inf:
        angstrom = float(gap)
    else:
        raise OptionError(f"gap {gap!r} is not a positive length")
    low, high = schema.GAPS
    if not low <= angstrom <= high:
        raise OptionError(
            f"gap {gap!r} is {angstrom / 1e4:g} um, but gaps are between 1 um and 10 cm: write it with "
            f"its unit, such as '200 um'"
        )
    return angstrom


def _gap(value: Any) -> Any:
    gap_in_angstrom(value)
    return value


def _names(value: Any) -> Any:
    members = value.split(",") if isinstance(value, str) else _plain(value)
    members = members if isinstance(members, list | tuple) else [members]
    words = [member.strip() if isinstance(member, str) else member for member in members]
    return [int(w) if isinstance(w, str) and w.isdecimal() else w for w in words if w != ""]


def _path_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _optional(read: Callable[[Any], Any]) -> BeforeValidator:
    def given(value: Any) -> Any:
        values = None if value is None else read(value)
        if isinstance(values, list) and not values:
            raise ValueError("nothing")
        return values

    return BeforeValidator(given)


FIRST = Field(union_mode="left_to_right")
"""Of a union: the first type that takes a value, also by converting it, and not the closest one."""
Number = Annotated[float, BeforeValidator(_no_truth_value), Form("a number", "FLOAT")]
Positive = Annotated[Number, Field(gt=0), Form("a positive number", "FLOAT")]
Integer = Annotated[
    int,
    BeforeValidator(_no_truth_value),
    BeforeValidator(_whole),
    Field(gt=-(2**63), lt=2**63),  # what an array holds
    Form("a whole number", "INTEGER"),
]
Count = Annotated[Integer, Field(ge=1), Form("a whole number of at least 1", "INTEGER")]
Range = Annotated[tuple[Number, Number], BeforeValidator(_pair), Form("two numbers", "LOW:HIGH")]
Extended = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_no_truth_value),
    Form("a number", "FLOAT"),
]
"""A number that may be infinite, as a bound on one side, or NaN, as what is unknown."""
Bounds = Annotated[
    tuple[Extended, Extended], BeforeValidator(_pair), Form("two numbers", "LOW:HIGH")
]
Frames = Annotated[
    tuple[Integer, Integer], BeforeValidator(_pair), Form("two whole numbers", "FIRST:END")
]
Gap = Annotated[
    str | float | None, _optional(_gap), Form("a length with its unit, such as '200 um'", "LENGTH")
]
StoreName = Annotated[str | None, _optional(_path_as_text), Form("the name of a store", "STORE")]
Names = Annotated[tuple[str, ...], BeforeValidator(parts), Form("a name, or a list", "NAME")]
Numbers = Annotated[list[Number] | None, _optional(parts), Form("a number, or a list", "FLOAT")]
Quantities = Annotated[
    list[Annotated[Extended | str, FIRST]] | None,
    _optional(parts),
    Form("a number, with or without its unit, or a list", "NUMBER[UNIT]"),
]
Integers = Annotated[
    list[Integer] | None, _optional(parts), Form("a whole number, or a list", "INTEGER")
]
ScanNames = Annotated[
    list[int | str] | None,
    _optional(_names),
    Form("a number or name, or a list", "NUMBER|NAME"),
]
Angles = Annotated[
    Number | Range | list[Annotated[Number | Range, FIRST]] | None,
    FIRST,
    _optional(_angles),
    Form("an angle in degrees, or a range", "ANGLE|LOW:HIGH"),
]
Ranges = Annotated[
    list[Range] | None, _optional(_several_ranges), Form("a range, or several", "START:END")
]
FrameRanges = Annotated[
    list[Frames] | None,
    _optional(_frames),
    Form(
        "frames, ranges of them, or a file of both, such as 2,5,10-14,51:61 (frames of one scan are left out "
        "by `ingest --exclude-frames 3:51-60`)",
        "FRAME|FIRST:END",
    ),
]
Windows = Annotated[
    Integer | list[Range] | None,
    FIRST,
    _optional(_number_or_ranges),
    Form("a number, or windows in seconds, such as 0:30,30:60", "INTEGER|START:END"),
]
Jobs = Annotated[
    Integer | tuple[Integer, Integer] | None,
    FIRST,
    _optional(_pair_if_colon),
    Form("a whole number, or two", "INTEGER|LEAST:MOST"),
]
ScalingValues = Annotated[
    list[Number] | dict[Literal["bounds", "prior"], Bounds] | None,
    _optional(_scaling_values),
    Form("one number, a list, or bounds or prior with two numbers", "FLOAT|NAME=LOW:HIGH"),
]
NamesByGroup = Annotated[
    Mapping[str, Names] | None, _optional(_by_group), Form("a group and parameters", "GROUP NAME")
]
ByName = Annotated[Mapping[str, T] | None, _optional(_by_name)]
NumberByName = Annotated[ByName[Number], Form("a number for each parameter", "NAME=VALUE")]
PositiveByName = Annotated[ByName[Positive], Form("a positive number for each rate", "NAME=VALUE")]
RangeByName = Annotated[ByName[Bounds], Form("two numbers for each parameter", "NAME=LOW:HIGH")]
TextByName = Annotated[
    ByName[Annotated[str, BeforeValidator(str)]],
    Form("an expression for each parameter", "NAME=EXPRESSION"),
]
PriorByName = Annotated[ByName[Any], Form("two numbers for each parameter", "NAME=MEAN:SD")]
ScanValues = Annotated[
    Mapping[str, Annotated[str, BeforeValidator(str)]] | str | None,
    _optional(_by_name_or_word),
    Form(
        "the path of a table (CSV) of scans and values, or a value for each scan", "PATH|NAME=VALUE"
    ),
]
OnOff = Annotated[
    Literal["on", "off"],
    # YAML reads both as truth values
    BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value),
]
