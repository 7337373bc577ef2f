"""What a column of a table of one-time correlations holds, and its conversion to g2.

A name says it by a token of its own; units, runs, temperatures and other words of it decide nothing.
"""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError
from homodyne_dask.text import joined_with_and
from ingest.readers.units import LENGTH, SECONDS

KINDS = ("g2", "g2-1", "g1", "f")
"""What a column may be; f, or ISF, the intermediate scattering function, is g1, the field correlation."""
DDM = re.compile(r"^d(_?qt)?(?![a-z])|structure[ _]function|ddm")
_QUANTITY = re.compile(
    r"(?:(?P<function>(?:log\d*|ln|sqrt|√|exp|1 ?[-/])[ _({\[|]*)|(?<![a-z]))"
    r"(?:(?:\|?g[_^]?[({]{0,2}|c(?=2))(?P<order>[12])(?!\d)[)}]{0,2}+\|?+"
    r"|isf(?![a-z])|intermediate[ _]scattering|field[ _](?:auto)?[ _]?corr"
    r"|^f(?:_?qt)?(?![a-z=]|[ _(\[]*[km]?hz))"
    r"(?:(?:[ _]*(?:\([^()]*\)|tau|τ))?(?:(?P<squared>(?:\^|\*\*)2)"
    r"|(?P<less>(?:[ _]*(?:-|minus)[ _]*|_?m)1(?:\.0*)?"
    r"(?![a-z0-9.]|\s*(?:[°%]|[mk]?(?:v|pa|bar|k|c)(?![a-z]))))))?"
)
"""g1 or g2, less 1 (not that of -1 °C) or squared, or a function of it, which is none."""
_OTHER = re.compile(rf"{DDM.pattern}|\w[ _]*[(\[]\s*q")
"""Something else as a function of q."""
_DELAY = re.compile(
    r"(taus?|τ|delays?|lags?|times?)([^a-z].*)?|(dt|t|t_el)([^-a-z\d].*)?|lag ?times?.*|delay_?(time|list).*|"
)
_Q_OF_ROWS = re.compile(r"q\s*([(\[_/](?!ind|idx|bin|n(o|um)).*)?")
"""A column of q, but not of the numbers of rings."""
_ERROR = re.compile(
    r"(?<![a-z])(isf|f)?(err[a-z]*|std[a-z]*|sigma(?!.?aldrich)[a-z0-9]*|σ|unc|uncert[a-z]*|dev(?!\d)|sem"
    r"|(standard )?deviation)(?![a-z])|(?<![a-z])[dsδ]_?(g[_^({]*[12]|isf)"
)
_PER_LENGTH = rf"(?:1?\s*/\s*|inv[a-z]*\.?[ _]*){LENGTH}(?![a-z])"
_PER_LENGTH += rf"|{LENGTH}\s*(?:\^|\*\*)?[({{]*-1[)}}]*(?!\.?\d)"
_NUMBER = r"(?:\d*\.|0,)?\d+(?:e[-+]?\d+)?"
_Q = re.compile(
    rf"(?:^|[^a-z])q[a-z]{{0,2}}(?:\s*[=:]\s*|[_ ]?(?=\d*\.\d))({_NUMBER})(?:[\s_(\[]*({_PER_LENGTH}))?"
    rf"|^({_NUMBER})$"
)
_UNIT = re.compile(
    rf"[(\[]\s*([^)\]]*?)\s*[)\]]|[_/, ]\s*({'|'.join(filter(None, SECONDS))}|frames?|{_PER_LENGTH})$"
)
NEAR_1, NEAR_0 = 0.25, 0.5
"""g2 - 1 that ends nearer to 1 than the first is g2; g2 that ends below the second is not."""


class Column(NamedTuple):
    """A column by its name."""

    name: str
    values: Float[np.ndarray, " n"]

    @property
    def plain(self) -> str:
        """The name in small letters, with plain digits and signs."""
        name = unicodedata.normalize("NFKC", re.sub(r"(?<=[\d|)])²", "^2", self.name))
        return re.sub("[−–]", "-", name).lower().strip()

    @property
    def role(self) -> str:
        """Delay (also of no name), q, error or value."""
        if _DELAY.fullmatch(self.plain):
            return "delay"
        if _Q_OF_ROWS.fullmatch(self.plain):
            return "q"
        return "error" if _ERROR.search(self.plain) else "value"

    @property
    def kind(self) -> str | None:
        """One of KINDS; None of a name with q alone, and '' of one that says something else."""
        if kinds := {_kind(match) for match in _QUANTITY.finditer(self.plain)}:
            return kinds.pop() if len(kinds) == 1 else ""
        alone = self.q or re.fullmatch(r"column \d+", self.plain)
        return None if alone and not _OTHER.search(self.plain) else ""

    @property
    def q(self) -> tuple[float, str | None] | None:
        """The q in its name, and its unit."""
        match = _Q.search(self.plain)
        if match is None or (match[1] is None and not re.search("[.,]", match[3])):
            return None
        return float((match[1] or match[3]).replace(",", ".")), match[2]

    @property
    def label(self) -> object:
        """The q in its name, or else its last number but that of the quantity, as 3 in g2_err_003."""
        numbers = re.findall(r"\d+", re.sub(r"\(.*\)", "", _QUANTITY.sub("", self.plain)))
        return self.q or (int(numbers[-1]) if numbers else None)

    @property
    def unit(self) -> str | None:
        """The unit in its name, in parentheses or at its end."""
        match = _UNIT.search(self.plain)
        return match and (match[1] or match[2])


def _kind(match: re.Match[str]) -> str:
    if match["function"] or (match["order"] == "2" and match["squared"]):
        return ""
    if match["order"] == "2":
        return "g2-1" if match["less"] else "g2"
    return "g2-1" if match["squared"] else "g1"


def checked_kinds(
    path: Path,
    names: Sequence[str],
    kinds: Sequence[str | None],
    points: Float[np.ndarray, "bin n"],
    notes: list[str],
) -> list[str]:
    """Return what curves are, with those whose names do not say it taken for g2 if they decay to 1.

    points: in the order of delays, NaN where unknown. Raises SourceError where values contradict names.
    """
    curves = [row[np.isfinite(row)] for row in points]
    begin, end = (
        np.array([np.median(row[::step][: max(len(row) // 4, 1)]) for row in curves])
        for step in (1, -1)
    )
    unsaid = np.array([kind is None for kind in kinds])
    if unsaid.any() and not _like_g2(begin[unsaid].max(), last := float(np.median(end[unsaid]))):
        raise SourceError(
            f"{path.name} does not say whether {names[int(np.argmax(unsaid))]!r} is g2, g2 - 1 or g1, nor do "
            f"its values, which end at {last:.3g}: name it, or give --column-is"
        )
    if unsaid.any():
        notes.append(f"{_some(unsaid)} g2: they decay to 1, and nothing else says what they are")
    known = ["g2" if kind is None else kind.replace("f", "g1") for kind in kinds]
    for name, kind, first, last in zip(names, known, begin, end, strict=True):
        if last < NEAR_0 if kind == "g2" else _like_g2(first, last):
            raise SourceError(
                f"{path.name}: {name!r} is taken for {kind}, which decays to {int(kind == 'g2')}, but "
                f"ends at {last:.3g}: name it by what it is, or give --column-is with {', '.join(KINDS)}"
            )
    return known


def _like_g2(begin: float, end: float) -> bool:
    """Return whether points decay from above 1 to 1, as neither g2 - 1 nor g1 do."""
    return abs(end - 1) < NEAR_1 and begin - 1 > abs(end - 1)


def as_g2(
    kinds: Sequence[str],
    points: Float[np.ndarray, "bin n"],
    sigma: Float[np.ndarray, "bin n"],
    notes: list[str],
) -> tuple[Float[np.ndarray, "bin n"], Float[np.ndarray, "bin n"]]:
    """Return g2 and its errors of curves in the order of delays, g2 - 1 = g1² of those of g1.

    The square of a value with the error σ is too large by σ² in the mean, which is subtracted, and has the
    variance 4 g1² σ² + 2 σ⁴, with g1 from the points beside: its own noise must not weight a point. It holds
    for negative values, too.
    """
    less, field = (np.array([[kind == name] for kind in kinds]) for name in ("g2-1", "g1"))
    if less.any():
        notes.append(f"{_some(less)} g2 - 1: 1 was added")
    if field.any():
        square = "g2 - 1 is its square times the contrast, with the error 2 |g1| σ"
        notes.append(f"{_some(field)} g1: {square}")
    padded = np.pad(points, ((0, 0), (2, 2)), constant_values=np.nan)
    neighbours = np.lib.stride_tricks.sliding_window_view(padded, 5, axis=1)[..., [0, 1, 3, 4]]
    g1 = np.ma.masked_invalid(neighbours).mean(-1).filled(0)
    spread = sigma * np.sqrt(4 * g1**2 + 2 * sigma**2)
    g2 = np.where(field, 1 + points**2 - sigma**2, points + less)
    return g2, np.where(field, spread, sigma)


def _some(which: np.ndarray) -> str:
    """Return 'all curves are taken for', or which of them are."""
    numbers = joined_with_and([str(n + 1) for n in np.flatnonzero(which)])
    return f"{'all curves' if which.all() else f'of curves, {numbers}'} are taken for"
