"""What an option of a fit is: its definition, from which all that is said of it follows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from numbers import Integral, Real
from operator import or_
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from homodyne_dask.errors import OptionError, shown


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a fit: its definition."""

    help: str
    """What it is, without a full stop."""
    example: str
    """A value in YAML."""
    value: str = ""
    """The form of its value in words, to follow 'give'; by default its choices."""
    typed: str = ""
    """A value on the command line, where it is written in another way than in YAML."""
    unit: str = ""
    choices: tuple[str, ...] = ()
    default_text: str = ""
    """What happens by default, where the default does not say so itself."""
    command: str = ""
    """Name on the command line and in YAML, where it is not the name in Python."""
    identity: bool = True
    """Whether a fit resumes only with the same value."""
    plan: bool = False
    """Whether a plan depends on it."""
    report: bool = True
    """Whether the report lists a value that is not the default; else it has its own place there."""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def key(self) -> str:
        """The name on the command line and in YAML."""
        return self.command or self.name

    @property
    def value_type(self) -> Any:
        """The type of a value that is given: without None."""
        if not isinstance(self.type, UnionType):
            return self.type
        return reduce(or_, (one for one in get_args(self.type) if one is not NoneType))

    @property
    def by_name(self) -> bool:
        """Whether it has a value for each of some parameters."""
        return get_origin(self.value_type) is Mapping

    @property
    def repeatable(self) -> bool:
        """Whether it takes several values."""
        whole = self.value_type
        members = get_args(whole) if isinstance(whole, UnionType) else (whole,)
        several = (get_origin(one) is Sequence or ... in get_args(one) for one in members)
        return self.by_name or any(several)

    @property
    def form(self) -> str:
        """The form of its value in words, to follow 'give'."""
        if not self.value:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if not self.typed:
            return self.value
        return f"{self.value}: {self.typed} as an option, {self.example} in a file"

    @property
    def description(self) -> str:
        """What it is, with its unit and default."""
        shown = self.default if self.default not in (None, ()) else ""
        default = self.default_text or shown
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.help}{unit}" + (f"; default: {default}" if default else "")


def define(default: Any, help: str, example: str, value: str = "", **more: Any) -> Any:
    """Return a field of `FitOptions`; the arguments are those of `Option`."""
    definition = Option(help=help, example=example, value=value, **more)
    return field(default=default, metadata={"option": definition})


def plain_value(option: Option, value: Any) -> Any:
    """Return a value of an option as one of Python's own types, which JSON can hold.

    Raises OptionError for values of another type.
    """
    if value is None and option.default is None:
        return None
    try:
        return _PLAIN[option.value_type](value) if option.value_type in _PLAIN else value
    except TypeError:
        import yaml  # for this message alone

        example = f", as {option.name}={yaml.safe_load(option.example)!r}" if option.value else ""
        form = f"{option.value or option.form}{example}"
        raise OptionError(f"{option.name} = {shown(value)} cannot be used: give {form}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError
    return int(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return value


def _is_real(value: Any) -> bool:
    """Return whether a value is a number with a fraction, of Python or of NumPy."""
    return isinstance(value, Real) and not isinstance(value, Integral)


def _pair(value: Any) -> Any:
    """Return a pair of numbers; what is none is refused where it is used, with a better sentence."""
    with suppress(TypeError, ValueError):
        return value if isinstance(value, str) else tuple(map(float, value))
    return value


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _whole,
    float: lambda value: float(value) if _is_real(value) else value,
    tuple[float, float]: _pair,
    tuple[str, ...]: lambda value: (value,) if isinstance(value, str) else tuple(value),
    Mapping[str, float]: _mapping,
    Mapping[str, tuple[float, float]]: _mapping,
    Mapping[str, str | tuple[float, float]]: _mapping,
}
"""By the type of an option: what returns its value as one of Python's own types, or a TypeError."""
