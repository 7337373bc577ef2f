"""Tables of one-time correlations, g2(delay) of one or several q, as text, in layouts of many programs.

The column that is called so holds the delays, in s unless its name says ms, µs or frames. Others are g2,
g2 - 1 or g1, and errors (`ingest/readers/g2_columns.py`); each belongs to the q in its name, to the q above
it in the first row, or to the one in a column q. What is not said there options say, or the table is refused.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.text import counted
from ingest.readers.g2_columns import DDM, Column, as_g2, checked_kinds
from ingest.readers.options import IngestOptions
from ingest.readers.source import Source, source_of
from ingest.readers.units import SECONDS, converted

SUFFIXES = (".csv", ".tsv", ".txt", ".dat")
"""Of text files beside which one with errors is looked for."""
COMMENT = "#%!;"
UNKNOWN = ("", "-", "--", "na", "n/a", "nan", "none", "inf", "-inf")
Q_OF_FILE = re.compile(r"(?:^|[^a-z])q[-_=]?(\d*\.\d+(?:e-?\d+)?)")
"""In a name of a file: its q in 1/Å."""
HIGHEST_Q, LOWEST_G2 = 0.7, 0.8
"""A first row of numbers below, the others mostly above, is q; g2 without correlation is 1."""
MIN_POINTS = 2
LEAST_SCATTER = 1e-9
"""Below which points have no noise."""
NAME_THEM = "name the columns in a first line, such as delay(s),g2(q=0.01),error(q=0.01)"


class Curves(NamedTuple):
    """What a file says of g2."""

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
    names: Sequence[str] = ()
    kinds: Sequence[str | None] = ()
    """What each curve is (`Column.kind`)."""


def errors_beside(path: Path) -> Path | None:
    """Return the file of errors of NAME_g2.csv, NAME_g2err.csv or NAME_g2_err.csv, or of NAME_g1.csv."""
    if not path.stem.lower().endswith(("g2", "g1")) or path.suffix.lower() not in SUFFIXES:
        return None
    files = (path.with_name(f"{path.stem}{end}{path.suffix}") for end in ("err", "_err"))
    return next(filter(Path.is_file, files), None)


def open_text(path: Path, options: IngestOptions) -> Source:
    """Return the curves of a table; raises SourceError for a text that is none, or is ambiguous."""
    notes: list[str] = []
    curves, file = _curves(path, options, notes), errors_beside(path)
    if file is not None:
        if curves.error is not None:
            raise SourceError(
                f"{path.name} has errors, and so has {file.name} beside it: rename one of the files"
            )
        errors = _curves(file, options, [], all_errors=True)
        points = [  # NaN where there is no q
            np.append(table.delay, np.broadcast_to(np.array(table.q, float), len(table.values)))
            for table in (errors, curves)
        ]
        same = errors.values.shape == curves.values.shape
        if not same or not np.allclose(*points, equal_nan=True):
            raise SourceError(
                f"{file.name} has not the delays and q of {path.name}: correct or rename it"
            )
        notes.append(f"errors are those in {file.name}")
        curves = curves._replace(error=errors.values)
    named = Q_OF_FILE.search(path.stem.lower())
    if named is not None and curves.q is None and options.q is None and len(curves.values) == 1:
        notes.append(f"q = {named[1]} 1/Å is that in the name of the file")
        curves = curves._replace(q=np.array([float(named[1])]))
    return source_of_curves(path, "g2-table", options, curves, notes)


def source_of_curves(
    path: Path, format: str, options: IngestOptions, curves: Curves, notes: list[str]
) -> Source:
    """Return curves as a source: pairs of a first frame with those that follow it by each delay."""
    _check_options(path, options, curves)
    delay, values, error = curves.delay * (options.frame_time or 1.0), curves.values, curves.error
    if options.sigma is not None:
        error = np.ones_like(values) * np.reshape(options.sigma, (-1, 1))
    usable = _usable(path, delay, values, np.ones_like(values) if error is None else error, notes)
    order = np.argsort(delay, kind="stable")
    order = order[usable.any(0)[order]]
    time = np.concatenate([[0.0], delay[order]])
    if (np.diff(time) <= 0).any():
        twice = time[int(np.argmin(np.diff(time)))]
        raise SourceError(f"{path.name} has the delay {twice:g} s twice: give each table by itself")
    points = np.where(usable, values, np.nan)[:, order]
    if error is None:
        sigma = np.full(points.shape, _scatter(np.log(time[1:]), points))
    else:
        sigma = np.where(usable, error, np.nan)[:, order]
    kinds = [options.column_is or kind for kind in curves.kinds]
    kinds = checked_kinds(path, curves.names, kinds, points, notes)
    g2, sigma = (
        np.pad(rows, ((0, 0), (1, 0)), constant_values=np.nan)
        for rows in as_g2(kinds, points, sigma, notes)
    )
    # of unknown points, where it is not used, any
    sigma = np.where(np.isnan(sigma), np.nanmedian(sigma, axis=1, keepdims=True), sigma)
    phi = np.full(len(g2), np.nan) if curves.phi is options.phi else curves.phi
    source = source_of(
        path, format, options, _no_matrix, (f"curve {n + 1}" for n in range(len(g2))), len(time),
        q=curves.q, phi=phi, time=time, baseline=1, notes=dict.fromkeys(notes), g2=g2,
        g2_sigma=np.where(sigma > 0, sigma, 1.0), g2_errors=error is not None,
    )  # fmt: skip
    return replace(source, frame_time=options.frame_time or source.frame_time)


def _usable(
    path: Path, delay: np.ndarray, values: np.ndarray, error: np.ndarray, notes: list[str]
) -> Bool[np.ndarray, "bin n"]:
    """Return which points are known and have an error; raises SourceError for a curve with too few."""
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


def _check_options(path: Path, options: IngestOptions, curves: Curves) -> None:
    """Raise OptionError for options that do not apply to these curves, and for what they need."""
    for name in ("time_offset", "half", "axes", "average", "trains"):
        if (given := getattr(options, name)) not in (None, 0.0):
            what = f"{name} = {given} applies to two-time matrices, not to g2"
            raise OptionError(f"{what}: leave it out")
    if curves.frames != (options.frame_time is not None):
        needed = f"frames: give --dt, the time between frames in {path.name}"
        raise OptionError(f"delays are in {needed if curves.frames else 's: leave out --dt'}")
    if options.sigma is not None and curves.error is not None:
        raise OptionError(f"sigma is given, but {path.name} has errors: leave it out")


def _scatter(x: Float[np.ndarray, " n"], y: Float[np.ndarray, "bin n"]) -> float:
    """Return the scatter of points around the lines between their neighbours; 0 where it is not seen.

    It weights all points alike: errors follow from the residuals of the fit.
    """
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    apart = y[:, 1:-1] - (1 - share) * y[:, :-2] - share * y[:, 2:]
    apart = np.abs(apart / np.sqrt(1 + share**2 + (1 - share) ** 2))[np.isfinite(apart)]
    scatter = 1.4826 * float(np.median(apart)) if apart.size else 0.0
    return scatter if scatter > LEAST_SCATTER else 0.0


def _no_matrix(path: Path, where: str) -> np.ndarray:
    raise SourceError(f"{path.name} has g2 in {where}, not matrices: ingest it again")


def _curves(
    path: Path, options: IngestOptions, notes: list[str], all_errors: bool = False
) -> Curves:
    """Return what a table says; all_errors: its columns are errors, which are returned as values."""
    names, table, q = _named(path, *_table(path), options, all_errors)
    columns = [Column(*column) for column in zip(names, table.T, strict=True)]
    if not columns[0].name and np.array_equal(columns[0].values, np.arange(len(table))):
        columns = columns[1:]  # a row number
    delays, rows_q = ([c for c in columns if c.role == role] for role in ("delay", "q"))
    if len(delays) != 1 or len(rows_q) > 1:
        raise SourceError(
            f"{path.name} has {len(delays)} columns of delays and {len(rows_q)} of q among "
            f"{', '.join(names)}: {NAME_THEM}"
        )
    delay, unit = delays[0].values, delays[0].unit or None
    frames = (unit or "").startswith("frame")
    if not frames:
        delay = converted("time", delay, unit, f"column {delays[0].name} of {path.name}", notes)
    known = all_errors or options.column_is is not None
    curves = [c for c in columns if c.role == "value" or (all_errors and c.role == "error")]
    errors = [] if all_errors else [c for c in columns if c.role == "error"]
    _check_names(path, [] if known else curves, curves)
    errors = _in_order(path, curves, errors)
    names, kinds = [c.name for c in curves], [c.kind for c in curves]
    values = np.array([c.values for c in (*curves, *errors)])
    if rows_q and len(curves) > 1:
        raise SourceError(f"{path.name} has a column q and {len(curves)} columns of g2: give one")
    if rows_q:
        where = f"column {rows_q[0].name} of {path.name}"
        q = converted("q", rows_q[0].values, rows_q[0].unit, where, notes)
        q, delay, values = _by_q(path, q, delay, values)
        names, kinds = names * len(q), kinds * len(q)
    elif q is not None:
        notes.append("q is that of the first row, taken to be in 1/Å")
    elif all(c.q for c in curves):
        where = f"q in columns of {path.name}"
        each = (converted("q", np.array(c.q[:1]), c.q[1], where, notes) for c in curves if c.q)
        q = np.concatenate([*each])
    different = {*(options.q or () if q is None else q)}
    if len({*kinds}) > 1 and not known and len(different) < len(kinds):
        raise SourceError(f"{path.name} has {', '.join(names)} of one q: keep one of them")
    values, error = values[: len(kinds)], values[len(kinds) :] if errors else None
    return Curves(delay, values, error, q, frames=frames, names=names, kinds=kinds)


def _check_names(path: Path, unsure: list[Column], curves: list[Column]) -> None:
    """Raise SourceError for a name that says something else than a correlation, or for no curve."""
    strange = next((column for column in unsure if column.kind == ""), None)
    if strange is not None and DDM.search(strange.plain):
        raise SourceError(
            f"{path.name}: {strange.name!r} is taken for D(q, τ) of differential dynamic microscopy, "
            f"A (1 - f) + B: compute f = 1 - (D - B)/A, and name it f"
        )
    if not curves or strange is not None:
        what = "no column is one" if strange is None else f"column {strange.name!r} is none"
        raise SourceError(
            f"{path.name}: {what} of delay, q, g2, g2-1, g1, f (or ISF, which is g1), or an error of one, "
            f"as in err(q=0.01): {NAME_THEM}, remove it, or say with --column-is what all others are"
        )


def _in_order(path: Path, curves: list[Column], errors: list[Column]) -> list[Column]:
    """Return the columns of errors in the order of their curves: by q or number, or as they are."""
    if errors and len(errors) != len(curves):
        raise SourceError(
            f"{path.name} has {len(curves)} columns of g2 and {len(errors)} of errors: {NAME_THEM}"
        )
    labelled = {column.label: column for column in errors}
    if len(labelled) == len(curves) and labelled.keys() == {column.label for column in curves}:
        return [labelled[column.label] for column in curves]
    return errors


def _by_q(
    path: Path, q: np.ndarray, delay: np.ndarray, values: Float[np.ndarray, "column row"]
) -> tuple[np.ndarray, np.ndarray, Float[np.ndarray, "curve n"]]:
    """Return q, delays and the curves of a table with a row for each, column by column."""
    (each_q, curve), (delays, point) = (
        np.unique(numbers, return_inverse=True) for numbers in (q, delay)
    )
    if len({*zip(curve, point, strict=True)}) < len(point):
        raise SourceError(f"{path.name} has a delay twice at one q: give each table by itself")
    curves = np.full((len(values), len(each_q), len(delays)), np.nan)
    curves[:, curve, point] = values
    return each_q, delays, curves.reshape(-1, len(delays))


def _named(
    path: Path, names: list[str], table: np.ndarray, options: IngestOptions, all_errors: bool
) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Return names of all columns, the table, and q of a first row; SourceError if it is ambiguous."""
    if names:
        return names, table, None
    corner, first, rest = table[0, 0], table[0, 1:], table[1:]
    number = len(first)
    names = ["delay", *(f"column {n + 2}" for n in range(number))]
    if (corner == 0 or np.isnan(corner)) and (first > 0).all() and len(rest) > 1:
        small = first.max() < HIGHEST_Q
        if np.isnan(corner) or all_errors or (small and np.nanmedian(rest[:, 1:]) > LOWEST_G2):
            return names, rest, first
        if options.q is None and small:
            raise SourceError(
                f"the first row of {path.name} may be q, or g2 at delay 0: {NAME_THEM}, or give --q"
            )
    given = len(options.q or ())
    if number == 2 and given == 1 and not all_errors:
        return [*names[:2], "error"], table, None
    if number == 1 or all_errors or given == number:
        return names, table, None
    raise SourceError(
        f"{path.name} has {number + 1} columns without names, of delay, g2 and perhaps errors: {NAME_THEM}, "
        f"or give --q, one for each curve"
    )


def _table(path: Path) -> tuple[list[str], Float[np.ndarray, "row column"]]:
    """Return the names of the columns, empty without any, and the numbers; NaN in a column of text."""
    lines = [line.strip(" \r\n\ufeff") for line in _text(path).splitlines()]
    lines = [line for line in lines if line]
    plain = [line for line in lines if line[0] not in COMMENT]
    separator = _separator(plain[len(plain) // 2]) if plain else None
    fields = [_fields(line, separator) for line in plain]
    comma = separator != "," and _decimal_comma(path, [field for row in fields for field in row])
    numbers = [[_number(field, comma) for field in row] for row in fields]
    last = numbers[-1] if numbers else []
    texts = {n for n, number in enumerate(last) if number is None or np.isnan(number)}
    begin = next((n for n, row in enumerate(numbers) if _is_data(row, texts)), len(plain))
    if len(plain) - begin < 2:
        raise SourceError(
            f"{path} is neither HDF5 nor .npy nor .npz, nor a table of g2 (it begins with "
            f"{lines[0][:8] if lines else ''!r}): check the file"
        )
    fields, numbers, width = fields[begin:], numbers[begin:], len(numbers[begin])
    for row, line in zip(numbers, plain[begin:], strict=True):
        if len(row) != width or not _is_data(row, texts):
            raise SourceError(
                f"{path.name}: {line[:40]!r} is not {width} numbers: correct this line"
            )
    names = _names(lines[: lines.index(plain[begin])], separator, width)
    for n in texts:
        words = {row[n] for row in fields if row[n].lower() not in UNKNOWN}
        if len(words) > 1 and None in [row[n] for row in numbers]:
            raise SourceError(
                f"{path.name}: {names[n] if names else f'column {n + 1}'} has {len(words)} texts, as of "
                f"several scans: make a file of each"
            )
    table = np.array(numbers, float)
    used = ~np.isnan(table).all(0)
    return [name for name, keep in zip(names, used, strict=False) if keep], table[:, used]


def _is_data(row: list[float | None], texts: set[int]) -> bool:
    """Return whether a row has numbers, and words in columns of texts alone."""
    words = {n for n, number in enumerate(row) if number is None}
    return max(len(words), 1) < len(row) and words <= texts


def _names(above: list[str], separator: str | None, width: int) -> list[str]:
    """Return the names of columns, with units of a second line, in the lines above the numbers."""
    rows = [_fields(line, separator) for line in above[::-1]]
    rows += [re.split(r"\s{2,}|\t|,", line) for line in above[::-1]]
    rows += [line.strip(f" {COMMENT}").split() for line in above[::-1]]
    heads = [[field.strip(f" {COMMENT}\"'") for field in row] for row in rows if len(row) == width]
    units = [field.strip("()[]") for field in heads[0]] if heads else []
    if len(heads) > 1 and all(unit.lower() in (*SECONDS, "-", "1", "a.u.") for unit in units):
        return [f"{name} ({unit})" for name, unit in zip(heads[1], units, strict=True)]
    return heads[0] if heads else []


def _text(path: Path) -> str:
    """Return a text in UTF-16 with its mark, in UTF-8, or else in the 8 bits of older programs."""
    content = path.read_bytes()
    try:
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _separator(line: str) -> str | None:
    """Return what separates the numbers of a line: tab, semicolon, comma, or None for spaces."""
    marks = "\t;" if re.search(r"[\d.]\s+[-+.\d]", line) else "\t;,"
    return next((mark for mark in marks if mark in line), None)


def _fields(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return line.split()
    (fields,) = csv.reader([line], delimiter=separator, skipinitialspace=True)
    return [field.strip() for field in fields]


def _number(field: str, comma: bool = False) -> float | None:
    """Return a number, NaN for what stands for none, None for another word; comma: it is decimal."""
    if field.lower() in UNKNOWN:
        return np.nan
    try:
        return float(field.replace(",", "." if comma else "").replace("_", "x"))
    except ValueError:
        return None


def _decimal_comma(path: Path, fields: Sequence[str]) -> bool:
    """Return whether a comma is decimal, not one of thousands; raises SourceError if both may be."""
    numbers = [field for field in fields if re.fullmatch(r"[-+]?[\d,.]+([eE][-+]?\d+)?", field)]
    commas, point = [field for field in numbers if "," in field], "." in "".join(numbers)
    thousands = all(re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", field) for field in commas)
    if commas and point != thousands:
        raise SourceError(
            f"{path.name}: {commas[0]} may have a decimal comma or thousands: write it with a point, or "
            f"without the comma"
        )
    return bool(commas) and not point
