"""Numbers as text, an error with two significant digits; intervals from an error and its dof."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError

Vector = Float[np.ndarray, " n"]
"""A number of each of some times, fits or bins."""
Numbers = Float[np.ndarray, "*n"] | float
"""A number, or an array of numbers."""


def value_and_error(value: float, error: float, largest: float = 0.0) -> str:
    """Return '68600 ± 1500', '(9.00 ± 0.12)e-04', or the value with six digits if no error is known.

    largest: of the values and errors of a row of one notation; 0 for one value.
    """
    if not math.isfinite(value):
        return "-"
    if not (math.isfinite(error) and error > 0):
        return f"{value:.6g}"
    exponent = _exponent(max(abs(value), error))
    plain = -4 < (_exponent(largest) if largest else exponent) < 7
    scale = 1.0 if plain else 10.0**exponent
    places = _places(error / scale)
    rounded = _rounded(value / scale, places)
    if not float(rounded):  # its size is not lost in an error that is far larger
        rounded = f"{value / scale:.2g}"
    text = f"{rounded} ± {_rounded(error / scale, places)}"
    return text if plain else f"({text})e{exponent:+03d}"


def limit_words(lower: float, upper: float) -> str:
    """Return limits as 'below 1760' or 'above 0.98', '' where both are unknown."""
    ends = {"above": lower, "below": upper}.items()
    return " and ".join(f"{word} {end:.3g}" for word, end in ends if math.isfinite(end))


def quantiles(values: Sequence[float], sd: float) -> list[str]:
    """Return quantiles of a quantity of that standard deviation, with the decimals of value and error."""
    if not (all(map(math.isfinite, values)) and math.isfinite(sd) and sd > 0):
        return [f"{value:.6g}" if math.isfinite(value) else "-" for value in values]
    exponent = _exponent(max(sd, *map(abs, values)))
    scale, power = (1.0, "") if -4 < exponent < 7 else (10.0**exponent, f"e{exponent:+03d}")
    return [f"{_rounded(value / scale, _places(sd / scale))}{power}" for value in values]


def format_error(value: float) -> str:
    """Return an error with two significant digits, '-' if it is unknown."""
    if not math.isfinite(value):
        return "-"
    if value == 0 or -5 < _exponent(value) < 7:
        return _rounded(value, _places(value))
    return f"{value:.1e}"


def or_dash(value: float, form: str) -> str:
    """Return a number in a format such as '.3g', '-' if it is unknown."""
    return format(value, form) if math.isfinite(value) else "-"


def format_count(number: float) -> str:
    """Return an integer with commas between thousands: 1,031,550."""
    return f"{number:,.0f}"


def format_seconds(value: float) -> str:
    """Return a time with three digits: '0.324 s'; from 100 s on in whole seconds."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def level_name(side: int) -> str:
    """Return what the passes before a fit read: '4×4 means', or for 1 all data, to compare initial values."""
    return f"{side}×{side} means" if side > 1 else "all data from several initial values"


def format_range(values: np.ndarray, form: str) -> str:
    """Return 'from 0.27 to 0.33', the one value there is, or 'unknown'."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "unknown"
    low, high = (format(float(value), form) for value in (finite.min(), finite.max()))
    return low if low == high else f"from {low} to {high}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0 else 0


def _places(error: float) -> int:
    """Return the decimals that leave two significant digits of an error; negative for tens."""
    places = 1 - _exponent(error)
    # 0.0996 rounds to 0.100: one place less
    return places - 1 if round(error, places) >= 10.0 ** (2 - places) else places


def _rounded(value: float, places: int) -> str:
    number = round(value, places) + 0.0  # no minus before a zero
    return f"{number:.{max(places, 0)}f}"


FEWEST = 1.0
"""Degrees of freedom below which an error is taken as known from so many."""


def half_width(percent: float, dof: Numbers) -> Float[np.ndarray, "*n"]:
    """Return the half width of a confidence interval in standard errors: Student's t.

    percent: above 0 and below 100, else OptionError. dof: of the error, infinite where it is known.
    """
    from scipy.special import stdtrit  # loads for a fifth of a second

    if not 0 < percent < 100:
        raise OptionError(f"percent = {percent!r}: give a number between 0 and 100, such as 95")
    return stdtrit(np.maximum(dof, FEWEST), 0.5 + percent / 200)


def normal_deviate(deviation: Numbers, dof: Numbers) -> Float[np.ndarray, "*n"]:
    """Return the normal deviate that is as improbable as a deviation in standard errors of few dof."""
    from scipy.special import ndtri, stdtr  # loads for a fifth of a second

    below = stdtr(np.maximum(dof, FEWEST), -np.abs(deviation))
    return np.sign(deviation) * -ndtri(np.maximum(below, np.finfo(float).tiny))
