"""q, φ and times in the units that people and files write: in 1/Å, degrees and s."""

import re
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError

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
    """Return numbers of q, phi or time of text such as '0.22 1/nm'; what holds no text is returned as it is.

    Of several with one unit, such as '0.1, 0.2 1/nm', all have it. Raises ValueError for another unit.
    """
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not any(isinstance(word, str) for word in words):
        return given
    found = [QUANTITY.fullmatch(part) for word in words for part in str(word).split(",")]
    units = {match[2] for match in found if match and match[2]}
    if len(units) > 1 or not all(found):
        raise ValueError("it must be a number, or numbers, with one unit or none")
    values = np.array([float(match[1]) for match in found if match])
    try:
        return converted(what, values, units.pop() if units else None, "it", []).tolist()
    except SourceError as error:
        raise ValueError(str(error)) from None


def decimals(values: Any) -> Float[np.ndarray, " n"]:
    """Return the shortest decimals that give values in their own width: float32 0.05 is 0.05."""
    return np.array([float(str(value)) for value in np.ravel(values)])


def converted(
    what: str, values: np.ndarray, unit: str | None, where: str, notes: list[str]
) -> np.ndarray:
    """Return q in 1/Å, phi in degrees or time in s of values in a unit; add to `notes` what was done.

    Raises SourceError for another unit; where there is none, it is the one of the store.
    """
    plain = re.sub(r"[\s\\{}$^()*]", "", unit or "").lower().replace("å", "å")
    if what == "q":
        if unit is None:
            notes.append(f"{where} has no unit: q is assumed to be in 1/Å")
        elif re.fullmatch(r"1?/nm|nm(-1|⁻¹)", plain):
            notes.append(f"q converted from {unit} to 1/Å")
            return values / 10
        elif not re.fullmatch(rf"1?/{ANGSTROM}|{ANGSTROM}(-1|⁻¹)", plain):
            raise SourceError(f"{where} is in {unit!r}, but only 1/Å and 1/nm are known units of q")
    elif what == "phi" and plain.startswith("rad"):
        notes.append("φ converted from radians to degrees")
        return np.rad2deg(values)
    elif what == "phi" and unit is not None and not plain.startswith(("deg", "°")):
        raise SourceError(f"{where} is in {unit!r}, but only degree and rad are known units of φ")
    elif what == "time" and unit is None:
        notes.append(f"{where} has no unit: times are assumed to be in s")
    elif what == "time" and plain not in SECONDS:
        known = ", ".join(filter(None, SECONDS))
        raise SourceError(f"{where} is in {unit!r}, but the known units of time are {known}")
    elif what == "time" and SECONDS[plain] != 1:
        notes.append(f"times converted from {unit} to s")
        return decimals([f"{value * SECONDS[plain]:.15g}" for value in values])
    return values
