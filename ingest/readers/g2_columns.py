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
from ingest.readers.units import LENGTH

KINDS = ("g2", "g2-1", "g1", "f")
"""What a column may be; f, or ISF, the intermediate scattering function, is g1, the field correlation."""
ACCEPTED = "g2, g2-1, g1, f (or ISF, which is g1), or an error of one, as in err(q=0.01)"
DDM = re.compile(r"^d(_?qt)?(?![a-z])|structure[ _]function|ddm")
NUMBER = r"(?:\d*\.|0,)?\d+(?:e[-+]?\d+)?"
_G = r"(?<![a-z])\|?g[_^]?[({{]{{0,2}}{}(?!\d)[)}}]{{0,2}}+\|?+"
_G1, _G2 = _G.format(1), rf"(?:{_G.format(2)}|(?<![a-z])c2(?!\d))"
_OF_TAU = r"(?:[ _]*(?:\([^()]*\)|tau|τ))?"
_NO_UNIT = r"(?![a-z0-9.]|\s*(?:[°%]|[mk]?(?:v|pa|bar|k|c)(?![a-z])))"
_LESS_1 = rf"{_OF_TAU}(?:[ _]*(?:-|minus)[ _]*|_?m)1(?:\.0*)?{_NO_UNIT}"
_SQUARED = rf"{_OF_TAU}(?:\^|\*\*)2"
_NAMED = {
    "g2-1": re.compile(rf"{_G2}{_LESS_1}|{_G1}{_SQUARED}"),
    "g2": re.compile(rf"{_G2}(?!{_LESS_1})"),
    "g1": re.compile(rf"{_G1}(?!{_SQUARED})"),
}
_ALSO_G1 = re.compile(
    r"(?<![a-z])isf(?![a-z])|intermediate[ _]scattering|field[ _](auto)?[ _]?corr"
    r"|^f(_?qt)?(?![a-z=]|[ _(\[]*[km]?hz)"
)
_CHANGED = re.compile(r"(log\d*|ln|sqrt|√|exp|1 ?[-/])[ _({\[|]*[gc][_^({]*[12]")
"""Functions of a quantity, which are none."""
_OTHER = re.compile(r"\w[ _]*[(\[]\s*q")
"""Something else as a function of q."""
DELAY = re.compile(
    r"(taus?|τ|delays?|lags?|times?)([^a-z].*)?|(dt|t|t_el)([^-a-z\d].*)?|lag ?times?.*|delay_?(time|list).*"
)
RING = re.compile(r"q\s*([(\[_/](?!ind|idx|bin|n(o|um)).*)?")
"""A column of q, but not of the numbers of rings."""
ERROR = re.compile(
    r"(?<![a-z])(isf|f)?(err[a-z]*|std[a-z]*|sigma(?!.?aldrich)[a-z0-9]*|σ|unc|uncert[a-z]*|dev(?!\d)|sem"
    r"|(standard )?deviation)(?![a-z])|(?<![a-z])[dsδ]_?(g[_^({]*[12]|isf)"
)
_UNIT = rf"(?:1?\s*/\s*|inv[a-z]*\.?[ _]*){LENGTH}(?![a-z])|{LENGTH}\s*(?:\^|\*\*)?[({{]*-1[)}}]*(?!\.?\d)"
_Q = re.compile(
    rf"(?:^|[^a-z])q[a-z]{{0,2}}(?:\s*[=:]\s*|[_ ]?(?=\d*\.\d))({NUMBER})(?:[\s_(\[]*({_UNIT}))?|^({NUMBER})$"
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
    def kind(self) -> str | None:
        """One of KINDS; None of a name with q alone, and '' of one that says something else."""
        found = [kind for kind, pattern in _NAMED.items() if pattern.search(self.plain)]
        if len(found) > 1 or _CHANGED.search(self.plain):
            return ""
        if found or _ALSO_G1.search(self.plain):
            return found[0] if found else "g1"
        alone = self.q or re.fullmatch(r"column \d+", self.plain)
        alone = alone and not _OTHER.search(self.plain) and not DDM.search(self.plain)
        return None if alone else ""

    @property
    def is_error(self) -> bool:
        """Whether it holds errors."""
        return bool(ERROR.search(self.plain))

    @property
    def q(self) -> tuple[float, str | None] | None:
        """The q in its name, and its unit."""
        found = _Q.search(self.plain)
        if found is None or (found[1] is None and not re.search("[.,]", found[3])):
            return None
        return float((found[1] or found[3]).replace(",", ".")), found[2]

    @property
    def number(self) -> int | None:
        """The last number in its name but that of the quantity, as 3 in g2_err_q003; None without one."""
        found = re.findall(r"\d+", re.sub(rf"{_G2}({_LESS_1})?|{_G1}|\(.*\)", "", self.plain))
        return int(found[-1]) if found else None

    @property
    def unit(self) -> str:
        """The unit in its name, in parentheses or after its last separator."""
        found = re.search(
            r"[(\[]\s*([^)\]]*?)\s*[)\]]|(?:[_/,]|\s)\s*([a-zµμ]+)$", self.name.lower()
        )
        return "" if found is None else found[1] or found[2] or ""


def known_kinds(
    path: Path,
    names: Sequence[str],
    kinds: Sequence[str | None],
    points: Float[np.ndarray, "bin n"],
    notes: list[str],
) -> list[str]:
    """Return what curves are, with those whose names do not say it taken for g2 if they decay to 1.

    points: in the order of delays, NaN where unknown. Raises SourceError where values contradict names.
    """
    each = [row[np.isfinite(row)] for row in points]
    start, end = (
        np.array([np.median(row[: max(len(row) // 4, 1)]) for row in (of[::way] for of in each)])
        for way in (1, -1)
    )
    unsaid = np.array([kind is None for kind in kinds])
    if unsaid.any() and not _like_g2(start[unsaid].max(), float(np.median(end[unsaid]))):
        raise SourceError(
            f"{path.name} does not say whether {names[int(np.argmax(unsaid))]!r} is g2, g2 - 1 or g1, nor do "
            f"its values, which end at {np.median(end[unsaid]):.3g}: name it, or give --column-is"
        )
    if unsaid.any():
        notes.append(f"{_some(unsaid)} g2: they decay to 1, and nothing else says what they are")
    found = ["g2" if kind is None else "g1" if kind == "f" else kind for kind in kinds]
    for name, kind, first, last in zip(names, found, start, end, strict=True):
        if last < NEAR_0 if kind == "g2" else _like_g2(first, last):
            raise SourceError(
                f"{path.name}: {name!r} is taken for {kind}, which decays to {int(kind == 'g2')}, but "
                f"ends at {last:.3g}: name it by what it is, or give --column-is with {', '.join(KINDS)}"
            )
    return found


def _like_g2(start: float, end: float) -> bool:
    """Return whether points decay from above 1 to 1, as neither g2 - 1 nor g1 do."""
    return abs(end - 1) < NEAR_1 and start - 1 > abs(end - 1)


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
    less, field = (np.array([kind == of for kind in kinds]) for of in ("g2-1", "g1"))
    if less.any():
        notes.append(f"{_some(less)} g2 - 1: 1 was added")
    if not field.any():
        return points + less[:, None], sigma
    notes.append(
        f"{_some(field)} g1: g2 - 1 is its square times the contrast, with the error 2 |g1| σ"
    )
    padded = np.pad(points, ((0, 0), (2, 2)), constant_values=np.nan)
    n = points.shape[1]
    beside = np.stack([padded[:, at : at + n] for at in (0, 1, 3, 4)])
    known = np.isfinite(beside)
    g1 = np.where(known, beside, 0).sum(0) / np.maximum(known.sum(0), 1)
    squared, spread = 1 + points**2 - sigma**2, sigma * np.sqrt(4 * g1**2 + 2 * sigma**2)
    of_field, plain = field[:, None], points + less[:, None]
    return np.where(of_field, squared, plain), np.where(of_field, spread, sigma)


def _some(which: np.ndarray) -> str:
    """Return 'the curve is', 'all curves are', or which of them are."""
    at = [str(n + 1) for n in np.flatnonzero(which)]
    return (
        f"{'all curves are' if which.all() else f'of curves, {joined_with_and(at)} are'} taken for"
    )
