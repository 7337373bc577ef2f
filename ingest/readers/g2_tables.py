"""Tables of one-time correlations, g2(delay) of one or several q, as text that pandas reads.

The names of columns, in one line above the numbers, say what they hold: delays, in s unless the name has
another unit, q, g2, g2 - 1 or g1, and errors. Each curve belongs to the q in its name, or to the one in a
column q. A name says what it is by a token of its own; units, runs and temperatures in it decide nothing.
"""

import csv
import re
import unicodedata
import warnings
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError, one_line
from ingest.readers.g2_curves import KINDS, MIN_POINTS, Curves, source_of_curves
from ingest.readers.options_and_units import PER_LENGTH, SECONDS, IngestOptions, converted
from ingest.readers.source import Source

NAME_THEM = (
    "name the columns in one line above the numbers, such as delay(s),g2(q=0.01),error(q=0.01), or with a "
    f"column q, and give --column-is ({', '.join(KINDS)}) where other names do not say what they hold"
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
    r"(taus?|τ|delays?|lags?|times?)([^a-z].*)?|(dt|t|t_el)([^-a-z\d].*)?|lag ?times?.*|delay_?(time|list).*"
)
_Q_OF_ROWS = re.compile(r"q(_val)?\s*([(\[/].*)?")
_ERROR = re.compile(
    r"(?<![a-z])(isf|f)?(err[a-z]*|std[a-z]*|sigma(?!.?aldrich)[a-z0-9]*|σ|unc|uncert[a-z]*|dev(?!\d)|sem"
    r"|(standard )?deviation)(?![a-z])|(?<![a-z])[dsδ]_?(g[_^({]*[12]|isf)"
)
_NUMBER = r"(?:\d*\.|0,)?\d+(?:e[-+]?\d+)?"
_Q = re.compile(
    rf"(?:^|[^a-z])q[a-z]{{0,2}}(?:\s*[=:]\s*|[_ ]?(?=\d*\.\d))({_NUMBER})(?:[\s_(\[]*({PER_LENGTH}))?"
    r"|^(\d*\.\d+(?:e[-+]?\d+)?)$"
)
_UNIT = re.compile(
    rf"[(\[]\s*([^)\]]*?)\s*[)\]]|[_/, ]\s*({'|'.join(filter(None, SECONDS))}|frames?|{PER_LENGTH})$"
)


class Column(NamedTuple):
    name: str
    values: Float[np.ndarray, " n"]
    role: str
    """delay, q, error or value."""
    kind: str | None
    """One of KINDS but f; None of a name that begins with a q, '' of one that says something else."""
    q: tuple[float, str | None] | None
    """And its unit."""
    label: object
    """The q, or else the last number but that of the quantity, as 3 in g2_err_003."""
    unit: str | None
    """In parentheses or at the end."""


def column_of(name: str, values: Float[np.ndarray, " n"]) -> Column:
    """Return a column and what its name says: a token of its own decides, not units or temperatures."""
    plain = unicodedata.normalize("NFKC", re.sub(r"(?<=[\d|)])²", "^2", name))
    plain = re.sub("[−–]", "-", plain).lower().strip()
    roles = {"delay": _DELAY.fullmatch, "q": _Q_OF_ROWS.fullmatch, "error": _ERROR.search}
    role = next((role for role, matches in roles.items() if matches(plain)), "value")
    kinds = {_kind(match) for match in _QUANTITY.finditer(plain)}
    kind = kinds.pop() if len(kinds) == 1 else "" if kinds or not _Q.match(plain) else None
    match, unit = _Q.search(plain), _UNIT.search(plain)
    q = match and (float((match[1] or match[3]).replace(",", ".")), match[2])
    numbers = re.findall(r"\d+", re.sub(r"\(.*\)", "", _QUANTITY.sub("", plain)))
    label = q or (int(numbers[-1]) if numbers else None)
    return Column(name, values, role, kind, q, label, (unit and (unit[1] or unit[2])) or None)


def _kind(match: re.Match[str]) -> str:
    if match["function"] or (match["order"] == "2" and match["squared"]):
        return ""
    if match["order"] == "2":
        return "g2-1" if match["less"] else "g2"
    return "g2-1" if match["squared"] else "g1"


def open_text(path: Path, options: IngestOptions) -> Source:
    """Return the curves of a table; raises SourceError for a text that is none, or is ambiguous."""
    notes: list[str] = []
    for end in ("err", "_err"):
        if (errors := path.with_name(f"{path.stem}{end}{path.suffix}")).is_file():
            raise SourceError(
                f"the errors of {path.name} seem to be in {errors.name}, which is not read: put them beside "
                f"the curves, in columns such as err(q=0.01), or rename that file"
            )
    return source_of_curves(path, "g2-table", options, _curves(path, options, notes), notes)


def _head_and_rows(path: Path) -> tuple[str, list[str]]:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # of older programs
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    begin = next((n for n, line in enumerate(lines) if re.match(r"[-+]?\.?\d", line)), len(lines))
    if len(lines) - begin < MIN_POINTS:
        raise SourceError(
            f"{path} is neither HDF5 nor .npy nor .npz, nor a table of g2 (it begins with "
            f"{lines[0][:8] if lines else ''!r}): check the file"
        )
    return lines[begin - 1].strip(COMMENT) if begin else "", lines[begin:]


def _columns(path: Path) -> list[Column]:
    import pandas  # 0.3 s that other files need not wait for

    head, rows = _head_and_rows(path)
    body, mark = "\n".join(rows), next((mark for mark in "\t;," if mark in rows[0]), None)
    names = head.split()
    if mark is not None:
        (names,) = csv.reader([head], delimiter=mark, skipinitialspace=True)
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
    columns = list[Column]()
    for name, values in zip(names, table.to_dict("series").values(), strict=True):
        if values.dtype.kind not in "fiu" or (name and values.isna().all()):
            raise SourceError(
                f"{path.name}: column {name!r} does not contain numbers alone: correct or remove it"
            )
        numbers = values.to_numpy(float)
        # without a name are numbers of rows, and nothing behind a last comma
        if name or not (np.isnan(numbers) | (numbers == np.arange(len(table)))).all():
            columns.append(column_of(name, numbers))
    return columns


def _by_role(path: Path, options: IngestOptions) -> dict[str, list[Column]]:
    """Return the columns by role, errors in the order of the curves that they are of."""
    columns = _columns(path)
    roles: dict[str, list[Column]] = {"delay": [], "q": [], "value": [], "error": []}
    for column in columns:
        roles[column.role].append(column)
    delays, rows_q, curves, n_errors = map(len, roles.values())
    if delays != 1 or rows_q > 1 or not curves:
        raise SourceError(
            f"{path.name} has {delays} columns of delays, {rows_q} of q and {curves} of g2 among "
            f"{', '.join(column.name for column in columns)}: {NAME_THEM}"
        )
    strange = [column.name for column in roles["value"] if column.kind == ""]
    if strange and options.column_is is None:
        raise SourceError(
            f"{path.name}: column {strange[0]!r} is none of delay, q, g2, g2-1, g1, f (or ISF, which is g1), "
            f"or an error of one, as err(q=0.01): remove it, or {NAME_THEM}"
        )
    if n_errors not in (0, curves):
        raise SourceError(
            f"{path.name} has {curves} columns of g2 and {n_errors} of errors: {NAME_THEM}"
        )
    if rows_q and curves > 1:
        raise SourceError(f"{path.name} has a column q and {curves} columns of g2: give one")
    # each with the curve that it names, or else in the order in which they stand
    labels = [column.label for column in roles["value"]]
    labelled = {column.label: column for column in roles["error"]}
    if sorted(map(str, labelled)) == sorted(map(str, labels)):
        roles["error"] = [*map(labelled.__getitem__, labels)]
    return roles


def _curves(path: Path, options: IngestOptions, notes: list[str]) -> Curves:
    roles = _by_role(path, options)
    (of_delays,), curves, q = roles["delay"], roles["value"], None
    delay, frames = of_delays.values, (of_delays.unit or "").startswith("frame")
    if not frames:
        where = f"column {of_delays.name} of {path.name}"
        delay = converted("time", delay, of_delays.unit, where, notes)
    names, kinds = [column.name for column in curves], [column.kind for column in curves]
    values = np.array([column.values for column in (*curves, *roles["error"])])
    for column in roles["q"]:
        where = f"column {column.name} of {path.name}"
        q = converted("q", column.values, column.unit, where, notes)
        q, delay, values = _by_q(path, q, delay, values)
        names, kinds = names * len(q), kinds * len(q)
    if q is None:
        q = _q_of_names(path, curves, notes)
    different = len({*(options.q or () if q is None else q)})
    if len({*kinds}) > 1 and options.column_is is None and different < len(kinds):
        raise SourceError(f"{path.name} has {', '.join(names)} of one q: keep one of them")
    values, error = np.split(values, [len(kinds)])
    error = error if len(error) else None
    return Curves(delay, values, error, q, frames=frames, names=names, kinds=kinds)


def _q_of_names(path: Path, curves: list[Column], notes: list[str]) -> np.ndarray | None:
    where, each = f"q in columns of {path.name}", [column.q for column in curves if column.q]
    if len(each) < len(curves):
        return None
    return np.concatenate([converted("q", np.array([q]), unit, where, notes) for q, unit in each])


def _by_q(
    path: Path, q: np.ndarray, delay: np.ndarray, values: Float[np.ndarray, "column row"]
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "curve n"]]:
    (each_q, curve), (delays, point) = (
        np.unique(numbers, return_inverse=True) for numbers in (q, delay)
    )
    if len({*zip(curve, point, strict=True)}) < len(point):
        raise SourceError(f"{path.name} has a delay twice at one q: give each table by itself")
    curves = np.full((len(values), len(each_q), len(delays)), np.nan)
    curves[:, curve, point] = values
    return each_q, delays, curves.reshape(-1, len(delays))
