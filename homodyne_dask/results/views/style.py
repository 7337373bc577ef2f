"""What figures of all kinds look like and say, without matplotlib."""

import re
from itertools import cycle

import numpy as np

from homodyne_dask.errors import printable
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.store.scan import Scan
from homodyne_dask.text import in_brackets

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008), in an order that also differs in lightness between neighbours."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
UNKNOWN_COLOUR = "#d9d9d9"
SYMBOLS = {"frozen_fraction": "frozen fraction F", "gamma_dot": "γ̇", "alpha": "α", "beta": "β"}
SYMBOLS |= {"Gamma": "Γ", "mu": "μ", "phi": "φ", "tau": "τ", "D0": "D₀", "phi0": "φ₀"}
SYMBOLS |= {"gamma_dot_t0": "γ̇₀", "gamma_dot_t_offset": "γ̇ offset"}
LARGEST = 1e100
"""Of a number that is drawn; the smallest is its inverse."""


def power_of_ten(exponent: int) -> str:
    """Return 10⁻⁵, without math text."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def with_powers(text: str) -> str:
    """Return a text with 1e-05 written as 1·10⁻⁵."""
    return re.sub(r"e([+-]\d+)", lambda match: f"·{power_of_ten(int(match[1]))}", text)


def symbol(name: str) -> str:
    """Return the name of a quantity as in print: 'frozen fraction F', 'D offset', 'γ̇₀'."""
    words = re.split(
        "(frozen_fraction|gamma_dot_t0|gamma_dot_t_offset|gamma_dot|D0|phi0|[A-Za-z]+)", name
    )
    return "".join(SYMBOLS.get(word, word) for word in words).replace("_", " ")


def plain_label(text: str, unit: str = "") -> str:
    """Return a text, and its unit, as matplotlib draws it letter by letter: a $ begins no formula."""
    return printable(in_brackets(text, unit)).replace("$", r"\$")


def bin_name(scan: Scan, bin: int) -> str:
    """Return q, φ and label of a bin, those that are known, for titles."""
    q, phi = scan.q[bin], scan.phi[bin]
    names = (q, with_powers(f"q = {q:.4g} Å⁻¹")), (phi, f"φ = {phi:.4g}°".replace("-", "−"))
    terms = [words for value, words in names if np.isfinite(value)] + [f"bin {scan.label[bin]}"]
    return ", ".join(terms + [f"scan {scan.scan_number[bin]}"] * scan.has_repeats)


def drawable(values: np.ndarray) -> np.ndarray:
    """Return values with NaN for those that no axis can hold."""
    size = np.abs(values)
    return np.where((size == 0) | ((size > 1 / LARGEST) & (size < LARGEST)), values, np.nan)


RingStyles = list[tuple[float, str, str, str | None]]


def ring_styles(q: np.ndarray, words: str = "q = {:.4g} Å⁻¹") -> RingStyles:
    """Return q, colour, marker and label of each ring: of more than seven, three have a label."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    rings = [float(value) for value in dict.fromkeys(np.sort(q))] if np.isfinite(q).all() else []
    if not rings:
        return [(np.nan, COLOURS[0], MARKERS[0], None)]
    shades, n = [*COLOURS], len(rings)
    labels = [with_powers(words.format(ring)) if n > 1 else None for ring in rings]
    if n > len(COLOURS):
        shades = [to_hex(shade) for shade in colormaps["viridis"](np.linspace(0, 0.9, n))]
        labels = [labels[k] if k in (0, n // 2, n - 1) else None for k in range(n)]
    return list(zip(rings, shades, cycle(MARKERS), labels, strict=False))


TITLES = {
    "maps": "Data, model and residuals of single bins against both times",
    "cuts": "c₂ against lag at several ages: data as symbols, model as lines; bars are standard errors of "
    "points, or of speckle and counting noise where that is known",
    "angles": "Dependence on the direction φ, of rings at one φ on q, of repeats on the scan: contrast and "
    "offset with standard errors, decay time and f with the model as a line",
    "rates": "Rates against time, or their distribution, with 68 % and 95 % bands",
    "passes": "Convergence of the fit",
    "residuals": "Residuals: distribution, and dependence on lag",
    "influence": "Change of each parameter, in units of its error, when one bin is excluded",
}


def alternative(name: str, view: FitView) -> str:
    """Return the text alternative of a figure; its numbers are in the tables of the report."""
    bins = "; ".join(bin_name(view.scan, int(b)) for b in view.shown)
    what_is_drawn = bins if name in ("maps", "cuts", "residuals") else f"{len(view.scan.bins)} bins"
    return f"{TITLES[name]}, for {what_is_drawn}. Reduced χ² {view.result.redchi:.5g}."
