"""Curves of one-time correlations as a source of pairs: in results of APS, in NXxpcs files, and in tables.

Tables are text that pandas reads: g2(delay) of one or several q. The names of columns, in one line above the
numbers, say what they hold: delays, in s unless the name has another unit, q, g2, g2 - 1 or g1, and errors.
Each curve belongs to the q in its name, or to the one in a column q. A name says what it is by a token of its
own; units, runs and temperatures in it decide nothing.
"""

import csv
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, SourceError, one_line
from homodyne_dask.request.ingest_options import PER_LENGTH, SECONDS, IngestOptions, converted
from homodyne_dask.text import counted
from ingest.readers import aps, errors_of_points, hdf5, nxxpcs
from ingest.readers.dls_tables import as_table
from ingest.readers.source import Source, source_of

KINDS = ("g2", "g2-1", "g1", "f", "contrast")
"""What a column may be; f, or ISF, the intermediate scattering function, is g1, the field correlation. The
contrast is that of speckle in an exposure, or in the sum of two pulses."""
MIN_POINTS = 2
LEAST_SCATTER = 1e-9
"""Points that scatter less have no noise, but rounding."""
NEAR_1, NEAR_0 = 0.25, 0.5
"""A curve that ends nearer to 1 than NEAR_1 may be g2; one that ends below NEAR_0 is not."""


class Curves(NamedTuple):
    delay: Float[np.ndarray, " n"]
    """s, or frames."""
    values: Float[np.ndarray, "bin n"]
    """Of g2, g2 - 1 or g1; NaN where they are unknown."""
    error: Float[np.ndarray, "bin n"] | None
    q: Float[np.ndarray, " bin"] | None
    """1/Å."""
    phi: Float[np.ndarray, " bin"] | None = None
    frames: bool = False
    """Whether delays are in frames."""
    exposures: bool = False
    """Whether delays are lengths of exposures."""
    names: Sequence[str] = ()
    kinds: Sequence[str | None] = ()
    """What each curve is; None where its name does not say it."""


def source_of_curves(
    path: Path, format: str, options: IngestOptions, curves: Curves, notes: list[str]
) -> Source:
    """Return curves as a source: pairs of a first frame with those that follow it by each delay."""
    _check_options(path, options, curves)
    delay, values, error = curves.delay * (options.frame_time or 1.0), curves.values, curves.error
    if error is not None:
        error = _not_of_points(curves, options.column_is, delay, error, notes)
    if options.sigma is not None:
        error = np.ones_like(values) * np.reshape(options.sigma, (-1, 1))
    usable = _usable(path, delay, values, np.ones_like(values) if error is None else error, notes)
    order = np.argsort(delay, kind="stable")
    order = order[usable.any(0)[order]]  # without delays at which no curve has a point
    time = np.concatenate([[0.0], delay[order]])
    if (np.diff(time) <= 0).any():
        twice = time[int(np.argmin(np.diff(time)))]
        raise SourceError(f"{path.name} has the delay {twice:g} s twice: give each table by itself")
    points = np.where(usable, values, np.nan)[:, order]
    if error is None:
        sigma = np.full(points.shape, _scatter(np.log(time[1:]), points))
    else:
        sigma = np.where(usable, error, np.nan)[:, order]
    kinds = _checked_kinds(path, curves, options.column_is, points, notes)
    g2, sigma = (
        np.pad(rows, ((0, 0), (1, 0)), constant_values=np.nan)
        for rows in _as_g2(kinds, points, sigma, notes)
    )
    # a store has finite σ everywhere; at unknown points it is not used
    sigma = np.where(np.isnan(sigma), np.nanmedian(sigma, axis=1, keepdims=True), sigma)
    phi = np.full(len(g2), np.nan) if curves.phi is options.phi else curves.phi
    source = source_of(
        path, format, options, _no_matrix, (f"curve {n + 1}" for n in range(len(g2))), len(time),
        q=curves.q, phi=phi, time=time, baseline=1, notes=dict.fromkeys(notes), g2=g2,
        g2_sigma=np.where(sigma > 0, sigma, 1.0), g2_errors=error is not None,
    )  # fmt: skip
    source = source.saying(exposures=True) if curves.exposures else source
    return source.saying(frame_time=options.frame_time) if options.frame_time else source


def _not_of_points(
    curves: Curves, column_is: str | None, delay: np.ndarray, error: np.ndarray, notes: list[str]
) -> np.ndarray:
    """Return errors, in place of those that follow their points the errors of delays."""
    order = np.argsort(delay, kind="stable")
    unseen = (curves.values == 0) & (error == 0)
    unseen &= np.array([[(column_is or kind) == "g2"] for kind in curves.kinds])
    points = counted(int(unseen.sum()), "point")
    if not errors_of_points.follow_points(curves.values[:, order], error[:, order]):
        if unseen.any():
            notes.append(f"{points} 0 ± 0, at which no pair of photons was seen, as it seems")
        return error
    averaged = errors_of_points.of_delays(error[:, order])[:, np.argsort(order, kind="stable")]
    notes.append(
        "errors follow their points, as with few photons: each is replaced by that of its delay, averaged "
        f"over {'curves' if len(error) > 1 else 'neighbours'}"
        + f"; {points} 0 ± 0 kept with it"
        * bool(unseen.any())
    )
    return np.where((error > 0) | unseen, averaged, error)


def _no_matrix(path: Path, where: str) -> np.ndarray:
    raise SourceError(f"{path.name} has g2 in {where}, not matrices: ingest it again")


def _check_options(path: Path, options: IngestOptions, curves: Curves) -> None:
    for name in ("time_offset", "half", "axes", "average"):
        if (value := getattr(options, name)) not in (None, 0.0):
            what = f"{name} = {value} applies to two-time matrices, not to g2"
            raise OptionError(f"{what}: leave it out")
    if curves.frames != (options.frame_time is not None):
        needed = f"frames: give --dt, the time between frames in {path.name}"
        raise OptionError(f"delays are in {needed if curves.frames else 's: leave out --dt'}")
    if options.sigma is not None and curves.error is not None:
        raise OptionError(f"sigma is given, but {path.name} has errors: leave it out")


def _usable(
    path: Path, delay: np.ndarray, values: np.ndarray, error: np.ndarray, notes: list[str]
) -> np.ndarray:
    if not (delay >= 0).all():
        raise SourceError(f"delays of {path.name} must be numbers from 0 on: correct them")
    if (delay == 0).any():
        notes += ["the point at delay 0, where each photon is correlated with itself, is left out"]
    usable = np.isfinite(values) & (delay > 0)
    if without := int((usable & ~(error > 0)).sum()):
        notes.append(f"{counted(without, 'point')} without an error above 0 left out")
    usable &= error > 0
    if (few := usable.sum(1) < MIN_POINTS).any():
        raise SourceError(
            f"curve {int(np.argmax(few)) + 1} of {path.name} has fewer than {MIN_POINTS} points: remove it"
        )
    used = usable[:, usable.any(0)]
    if not used.all():
        notes.append(f"{counted(int((~used).sum()), 'point')} of {used.size} unknown")
    return usable


def _scatter(x: Float[np.ndarray, " n"], y: Float[np.ndarray, "bin n"]) -> float:
    """Return the scatter of points around the lines between their neighbours; 0 where it cannot be seen."""
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    apart = y[:, 1:-1] - (1 - share) * y[:, :-2] - share * y[:, 2:]
    apart = np.abs(apart / np.sqrt(1 + share**2 + (1 - share) ** 2))[np.isfinite(apart)]
    scatter = 1.4826 * float(np.median(apart)) if apart.size else 0.0
    return scatter if scatter > LEAST_SCATTER else 0.0


def _checked_kinds(
    path: Path, curves: Curves, column_is: str | None, points: np.ndarray, notes: list[str]
) -> list[str]:
    """Return g2, g2-1 or g1 for each curve, by the option, its name or its values, which must not differ."""
    names, kinds = curves.names, [column_is or kind for kind in curves.kinds]
    begin, end = _first_quarters(points), _first_quarters(points[:, ::-1])
    unsaid = np.array([kind is None for kind in kinds])
    if unsaid.any() and not _like_g2(begin[unsaid].max(), last := float(np.median(end[unsaid]))):
        raise SourceError(
            f"{path.name} does not say whether {names[int(np.argmax(unsaid))]!r} is g2, g2 - 1 or g1, nor do "
            f"its values, which end at {last:.3g}: name it, or give --column-is"
        )
    if unsaid.any():
        notes.append("curves with q alone are taken for g2: they decay to 1")
    checked = ["g2" if kind is None else kind.replace("f", "g1") for kind in kinds]
    for name, kind, first, last in zip(names, checked, begin, end, strict=True):
        if last < NEAR_0 if kind == "g2" else _like_g2(first, last):
            raise SourceError(
                f"{path.name}: {name!r} is taken for {kind}, which decays to {int(kind == 'g2')}, but ends "
                f"at {last:.3g}: name it by what it is, or give --column-is with {', '.join(KINDS)}"
            )
    return checked


def _first_quarters(points: Float[np.ndarray, "bin n"]) -> Float[np.ndarray, " bin"]:
    """Return the median of the first quarter of the points that are known of each curve."""
    curves = (row[np.isfinite(row)] for row in points)
    return np.array([np.median(row[: max(len(row) // 4, 1)]) for row in curves])


def _like_g2(begin: float, end: float) -> bool:
    """Return whether points decay from above 1 to 1, as neither g2 - 1 nor g1 do."""
    return abs(end - 1) < NEAR_1 and begin - 1 > abs(end - 1)


def _as_g2(
    kinds: Sequence[str], points: np.ndarray, sigma: np.ndarray, notes: list[str]
) -> tuple[Float[np.ndarray, "bin n"], Float[np.ndarray, "bin n"]]:
    """Return g2 and its errors, in the order of delays; from curves of g1 as g2 - 1 = g1².

    The square of a value with the error σ is too large by σ² in the mean, which is subtracted, and has the
    variance 4 g1² σ² + 2 σ⁴, with g1 from the points beside: its own noise must not weight a point. This
    holds for negative values, too.
    """
    less, field, contrast = (
        np.array([[kind == name] for kind in kinds]) for name in ("g2-1", "g1", "contrast")
    )
    done_to = {
        "g2 - 1": (less, "1 was added"),
        "contrast": (
            contrast,
            "K², the variance of the intensity over the square of its mean, less that of counting (square "
            "K, its root, first); 1 was added",
        ),
        "g1": (field, "g2 - 1 is its square times the contrast"),
    }
    for what, (which, done) in done_to.items():
        if which.any():
            some = "all curves" if which.all() else counted(int(which.sum()), "curve")
            notes.append(f"{some} taken for {what}: {done}")
    padded = np.pad(points, ((0, 0), (2, 2)), constant_values=np.nan)
    neighbours = np.lib.stride_tricks.sliding_window_view(padded, 5, axis=1)[..., [0, 1, 3, 4]]
    g1 = np.ma.masked_invalid(neighbours).mean(-1).filled(0)
    spread = sigma * np.sqrt(4 * g1**2 + 2 * sigma**2)
    g2 = np.where(field, 1 + points**2 - sigma**2, points + (less | contrast))
    return g2, np.where(field, spread, sigma)


class _Places(NamedTuple):
    errors: str
    delays: str
    frames: tuple[str, ...]
    """The time between frames of the detector, and how many of these make one of the delays."""
    q_phi: Callable[..., tuple[np.ndarray | None, np.ndarray | None]]


APS_U, NEXUS = "/xpcs/multitau", "/entry/data"
FRAMES = (
    f"{aps.DETECTOR}/frame_time", f"{APS_U}/config/stride_frame", f"{APS_U}/config/avg_frame"
)  # fmt: skip
LEGACY_FRAMES = (aps.EXPOSURE, aps.STRIDE, aps.AVG)
NEXUS_Q_PHI = partial(nxxpcs.q_phi, masks="/entry/instrument/masks")
G2 = {
    f"{APS_U}/normalized_g2": _Places(
        f"{APS_U}/normalized_g2_err", f"{APS_U}/delay_list", FRAMES, aps.q_phi
    ),
    "/exchange/norm-0-g2": _Places(
        "/exchange/norm-0-stderr", "/exchange/tau", LEGACY_FRAMES, aps.q_phi_of_lists
    ),
    f"{NEXUS}/g2": _Places(f"{NEXUS}/g2_derr", f"{NEXUS}/delay_difference", FRAMES, NEXUS_Q_PHI),
}
"""Where result files have what belongs to g2, by the name of g2."""


def g2_in(file: h5py.File) -> str | None:
    return next((name for name in G2 if hdf5.dataset_at(file, name) is not None), None)


def open_g2(path: Path, options: IngestOptions, name: str) -> Source:
    notes: list[str] = []
    places = G2[name]
    with hdf5.open_hdf5(path) as file:
        delay = _delays(file, name, notes)
        g2 = _curves(file, name, len(delay))
        error = None
        if hdf5.dataset_at(file, places.errors) is not None:
            error = _curves(file, places.errors, len(delay))
            if error.shape != g2.shape:
                raise hdf5.wrong(
                    file, places.errors, f"has {len(error)} curves, and {name} {len(g2)}"
                )
        label = np.arange(1, len(g2) + 1)
        q, phi = places.q_phi(file, label=label, notes=notes)
    names, kinds = [f"curve {n} in {name}" for n in label], ["g2"] * len(g2)
    curves = Curves(delay, g2, error, q, phi, names=names, kinds=kinds)
    return source_of_curves(path, "g2-hdf5", options, curves, notes)


def _curves(file: h5py.File, name: str, delays: int) -> Float[np.ndarray, "bin n"]:
    values = hdf5.array(file, name).astype(float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or delays not in values.shape:
        raise hdf5.wrong(file, name, f"has shape {values.shape} for {delays} delays")
    return values.T if len(values) == delays else values


def _delays(file: h5py.File, name: str, notes: list[str]) -> Float[np.ndarray, " n"]:
    """Return delays in s; whole numbers are frames, the length of which is elsewhere in the file."""
    _, delays, (spacing, *counts), _ = G2[name]
    delay, unit = hdf5.numbers(file, delays), hdf5.unit(file, delays)
    in_unit = name.startswith(NEXUS) and unit not in (None, "", "frames", "frame")
    if in_unit or (delay != np.round(delay)).any():
        return hdf5.quantity(file, delays, "time", notes)
    if hdf5.dataset_at(file, spacing) is None:
        raise SourceError(
            f"{delays} of {hdf5.file_name(file)} is in frames, and {spacing} is missing: correct the file"
        )
    step = hdf5.seconds(file, spacing)
    for count in counts:
        if hdf5.dataset_at(file, count) is not None:
            step *= hdf5.positive(file, count, whole=True)
    notes.append(f"delays are those of {delays.rpartition('/')[2]}, frames of {step:g} s")
    return delay * step


NAME_THEM = (
    "name the columns in one line above the numbers, such as delay(s),g2(q=0.01),error(q=0.01), or with a "
    "column q, or by angles, as g2(45 deg), with --q to give the q of each, (4πn/λ) sin(θ/2) in 1/Å, "
    f"and give --column-is ({', '.join(KINDS)}) where other names do not say what they hold"
)
COMMENT = "#%! "
UNKNOWN = ("-", "--", "na", "none", "inf", "-inf")
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
_DELAY = re.compile(
    r"exposures?([^a-z].*)?|exposure[_ ]?times?.*|t[_ ]?exp([^a-z].*)?|"
    r"(taus?|τ|delays?|lags?|times?)([^a-z].*)?|(dt|t|t_el)([^-a-z\d].*)?|lag ?times?.*|delay_?(time|list).*"
)
_Q_OF_ROWS = re.compile(r"q(_val)?\s*([(\[/].*)?")
_ERROR = re.compile(
    r"(?<![a-z])(isf|f)?(err[a-z]*|std[a-z]*|sigma(?!.?aldrich)[a-z0-9]*|σ|unc|uncert[a-z]*|dev(?!\d)|sem"
    r"|(standard )?deviation)(?![a-z])|(?<![a-z])[dsδ]_?(g[_^({]*[12]|isf)"
)
_CONTRAST = re.compile(
    r"k ?(?:\^|\*\*)?2(?!\d)|k²"
    r"|(?:speckle[ _])?(?:contrast|visibility)(?:[^a-z²^*]|_q|$)(?!\^|\*)(?!.*(?:%|\bk\b))"
)
"""Not in per cent, nor K, its root, but its square."""
_NUMBER = r"(?:\d*\.|0,)?\d+(?:e[-+]?\d+)?"
_Q = re.compile(
    rf"(?:^|[^a-z])q[a-z]{{0,2}}(?:\s*[=:]\s*|[_ ]?(?=\d*\.\d))({_NUMBER})(?:[\s_(\[]*({PER_LENGTH}))?"
    r"|^(\d*\.\d+(?:e[-+]?\d+)?)$"
)
_UNIT = re.compile(
    rf"[(\[]\s*([^)\]]*?)\s*[)\]]|[_/, ]\s*({'|'.join(filter(None, SECONDS))}|frames?|{PER_LENGTH})$"
)


class TableColumn(NamedTuple):
    """A column and what its name says: a token of its own decides, not units or temperatures."""

    name: str
    values: Float[np.ndarray, " n"]
    words: str
    """The name in plain lower-case letters."""

    @property
    def role(self) -> str:
        """delay, q, error or value."""
        roles = {"delay": _DELAY.fullmatch, "q": _Q_OF_ROWS.fullmatch, "error": _ERROR.search}
        return next((role for role, matches in roles.items() if matches(self.words)), "value")

    @property
    def of_exposures(self) -> bool:
        return re.match("exposure|t[_ ]?exp", self.words) is not None

    @property
    def kind(self) -> str | None:
        """One of KINDS but f; None of a name that begins with a q, '' of one that says something else."""
        kinds = {_kind(match) for match in _QUANTITY.finditer(self.words)}
        if not kinds and _CONTRAST.match(self.words):
            return "contrast"
        if len(kinds) == 1:
            return kinds.pop()
        return "" if kinds or not _Q.match(self.words) else None

    @property
    def q(self) -> tuple[float, str | None] | None:
        """The q in the name, and its unit."""
        match = _Q.search(self.words)
        return match and (float((match[1] or match[3]).replace(",", ".")), match[2])

    @property
    def label(self) -> object:
        """The q, or else the last number but that of the quantity, as 3 in g2_err_003."""
        numbers = re.findall(r"\d+", re.sub(r"\(.*\)", "", _QUANTITY.sub("", self.words)))
        return self.q or (int(numbers[-1]) if numbers else None)

    @property
    def unit(self) -> str | None:
        """The unit in parentheses or at the end."""
        match = _UNIT.search(self.words)
        return (match and (match[1] or match[2])) or None

    def converted(self, what: str, path: Path, notes: list[str]) -> np.ndarray:
        return converted(what, self.values, self.unit, f"column {self.name} of {path.name}", notes)


def column_of(name: str, values: Float[np.ndarray, " n"]) -> TableColumn:
    # NFKC makes a 2 of ², which would join a number before it
    plain = unicodedata.normalize("NFKC", re.sub(r"(?<=[\d|)])²", "^2", name))
    return TableColumn(name, values, re.sub("[−–]", "-", plain).lower().strip())


def _kind(match: re.Match[str]) -> str:
    if match["function"] or (match["order"] == "2" and match["squared"]):
        return ""
    if match["order"] == "2":
        return "g2-1" if match["less"] else "g2"
    return "g2-1" if match["squared"] else "g1"


def open_text(path: Path, options: IngestOptions) -> Source:
    """Return the curves of a table; raise SourceError for a text that is none, or is ambiguous."""
    notes: list[str] = []
    for end in ("err", "_err"):
        if (errors := path.with_name(f"{path.stem}{end}{path.suffix}")).is_file():
            raise SourceError(
                f"the errors of {path.name} seem to be in {errors.name}, which is not read: put them beside "
                f"the curves, in columns such as err(q=0.01), or rename that file"
            )
    curves = _curves_of_table(path, options, notes)
    return source_of_curves(path, "g2-table", options, curves, notes)


def _head_and_rows(path: Path) -> tuple[str, list[str]]:
    content = path.read_bytes()
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # of older programs
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if (table := as_table(lines)) is not None and len(table[1]) >= MIN_POINTS:
        return table
    begin = next((n for n, line in enumerate(lines) if re.match(r"[-+]?\.?\d", line)), len(lines))
    if len(lines) - begin < MIN_POINTS:
        raise SourceError(
            f"{path} is neither HDF5 nor .npy nor .npz, nor a table of g2 (it begins with "
            f"{lines[0][:8] if lines else ''!r}): check the file"
        )
    return lines[begin - 1].strip(COMMENT) if begin else "", lines[begin:]


def _columns(path: Path) -> list[TableColumn]:
    import pandas  # lazy: 0.3 s that other files need not wait for

    head, rows = _head_and_rows(path)
    body, mark = "\n".join(rows), next((mark for mark in "\t;," if mark in rows[0]), None)
    names = head.split()
    if mark is not None:
        (by_mark,) = csv.reader([head], delimiter=mark, skipinitialspace=True)
        columns = rows[0].rstrip(mark).count(mark) + 1
        names = by_mark if len(by_mark) > 1 or len(names) != columns else names
    # where commas are those of decimals, columns stand between semicolons
    decimal = "," if mark == ";" and "." not in body else "."
    try:
        with warnings.catch_warnings(category=pandas.errors.ParserWarning, action="error"):
            table = pandas.read_csv(
                StringIO(body), sep=mark or r"\s+", header=None, names=range(len(names)), comment="#",
                index_col=False, skipinitialspace=True, na_values=UNKNOWN, decimal=decimal,
            )  # fmt: skip
    except (ValueError, pandas.errors.ParserWarning) as error:  # ParserError is a ValueError
        raise SourceError(
            f"{path.name} has {len(names)} names of columns, but other lines of numbers "
            f"({one_line(str(error))}): {NAME_THEM}"
        ) from None
    columns = zip(names, table.to_dict("series").values(), strict=True)
    return [*filter(None, (_column(path, name, series) for name, series in columns))]


def _column(path: Path, name: str, series: Any) -> TableColumn | None:
    if series.dtype.kind not in "fiu" or (name and series.isna().all()):
        raise SourceError(
            f"{path.name}: column {name!r} does not contain numbers alone: correct or remove it"
        )
    values = series.to_numpy(float)
    # without a name are numbers of rows, and nothing behind a last comma
    counts_rows = (np.isnan(values) | (values == np.arange(len(values)))).all()
    return column_of(name, values) if name or not counts_rows else None


def _columns_by_role(path: Path, options: IngestOptions) -> dict[str, list[TableColumn]]:
    """Return the columns by role, errors in the order of the curves that they are of."""
    columns = _columns(path)
    roles: dict[str, list[TableColumn]] = {"delay": [], "q": [], "value": [], "error": []}
    for column in columns:
        roles[column.role].append(column)
    if mistake := next(_mistakes(roles, options, [column.name for column in columns]), None):
        raise SourceError(f"{path.name}{mistake}")
    # each with the curve that it names, or else in the order in which they stand
    labels = [column.label for column in roles["value"]]
    labelled = {column.label: column for column in roles["error"]}
    if sorted(map(str, labelled)) == sorted(map(str, labels)):
        roles["error"] = [*map(labelled.__getitem__, labels)]
    return roles


def _mistakes(
    roles: dict[str, list[TableColumn]], options: IngestOptions, names: list[str]
) -> Iterator[str]:
    n_delays, n_q, n_curves, n_errors = map(len, roles.values())
    if n_delays != 1 or n_q > 1 or not n_curves:
        yield (
            f" has {n_delays} columns of delays, {n_q} of q and {n_curves} of g2 among "
            f"{', '.join(names)}: {NAME_THEM}"
        )
    strange = [column.name for column in roles["value"] if column.kind == ""]
    if strange and options.column_is is None:
        yield (
            f": column {strange[0]!r} is none of delay, exposure, q, g2, g2-1, g1, f (or ISF, which is g1), "
            f"contrast (K², not K), or an error of one, as err(q=0.01): remove it, or {NAME_THEM}"
        )
    if n_errors not in (0, n_curves):
        yield f" has {n_curves} columns of g2 and {n_errors} of errors: {NAME_THEM}"
    if n_q and n_curves > 1:
        yield f" has a column q and {n_curves} columns of g2: give one"


def _curves_of_table(path: Path, options: IngestOptions, notes: list[str]) -> Curves:
    roles = _columns_by_role(path, options)
    (delays,), curves = roles["delay"], roles["value"]
    frames = str(delays.unit).startswith("frame")
    delay = delays.values if frames else delays.converted("time", path, notes)
    names, kinds = [column.name for column in curves], [column.kind for column in curves]
    values = np.array([column.values for column in (*curves, *roles["error"])])
    if roles["q"]:
        q = roles["q"][0].converted("q", path, notes)
        q, delay, values = _by_q(path, q, delay, values)
        names, kinds = names * len(q), kinds * len(q)
    else:
        q = _q_of_names(path, curves, notes)
    exposures = delays.of_exposures
    for complaint in _about_kinds(names, kinds, q, options, exposures):
        raise SourceError(f"{path.name} has {complaint}")
    values, error = np.split(values, [len(kinds)])
    error = error if len(error) else None
    return Curves(
        delay, values, error, q, frames=frames, exposures=exposures, names=names, kinds=kinds
    )


def _about_kinds(
    names: list[str],
    kinds: list[str | None],
    q: np.ndarray | None,
    options: IngestOptions,
    exposures: bool,
) -> Iterator[str]:
    # g2 and g1 of one q are one measurement, which would count twice
    different_q = len({*(options.q or () if q is None else q)})
    if len({*kinds}) > 1 and options.column_is is None and different_q < len(kinds):
        yield f"{', '.join(names)} of one q: keep one of them"
    if exposures and any((options.column_is or kind) != "contrast" for kind in kinds):
        yield (
            f"exposures, and {', '.join(names)}: of exposures only the contrast of speckle is fitted; name "
            f"it contrast, or give --column-is contrast"
        )


def _q_of_names(path: Path, curves: list[TableColumn], notes: list[str]) -> np.ndarray | None:
    where, in_names = f"q in columns of {path.name}", [column.q for column in curves if column.q]
    if len(in_names) < len(curves):
        return None
    return np.concatenate(
        [converted("q", np.array([q]), unit, where, notes) for q, unit in in_names]
    )


def _by_q(
    path: Path, q: np.ndarray, delay: np.ndarray, values: Float[np.ndarray, "column row"]
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "curve n"]]:
    """Return each q, the delays and the curves of a table with a row for each point."""
    (each_q, curve), (delays, point) = (
        np.unique(numbers, return_inverse=True) for numbers in (q, delay)
    )
    if len({*zip(curve, point, strict=True)}) < len(point):
        raise SourceError(f"{path.name} has a delay twice at one q: give each table by itself")
    curves = np.full((len(values), len(each_q), len(delays)), np.nan)
    curves[:, curve, point] = values
    return each_q, delays, curves.reshape(-1, len(delays))
