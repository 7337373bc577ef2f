"""Lengths with units, converted to Å."""

import math
import re
from numbers import Real

from homodyne_dask.errors import OptionError
from homodyne_dask.store import schema

_ANGSTROM = {"a": 1.0, "å": 1.0, "angstrom": 1.0, "nm": 10.0, "um": 1e4, "µm": 1e4, "μm": 1e4}
_ANGSTROM |= {"micron": 1e4, "mm": 1e7, "cm": 1e8, "m": 1e10}
_LENGTH = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s\d]+)\s*")


def length_in_angstrom(text: str | float) -> float:
    """Return a length in Å from text with a unit, as '200 um'; a bare number is refused."""
    found = _LENGTH.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise OptionError(
            f"gap {text!r} has no unit: write a number and a unit, such as '200 um' or '2e6 A'"
        )
    number, unit = found.groups()
    # the capital of MM or UM would be another unit; only a lone A and words are taken in any case
    known = _ANGSTROM.get(unit, _ANGSTROM.get(unit.lower() if len(unit) != 2 else unit))
    if known is None:
        raise OptionError(f"gap {text!r}: unit {unit!r} is unknown; use A, nm, um, mm or m")
    try:
        value = float(number) * known
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
