"""Tables of one-time correlations, g2(delay) of one or several q, as text, in layouts of many programs.

The column that is called so holds the delays, in s unless its name says ms, µs or frames. Others are g2,
g2 - 1 or g1, and errors (`ingest/readers/g2_columns.py`); each belongs to the q in its name, to the q above
it in the first row, or to the one in a column q. What is not said there options say, or the table is refused.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.text import counted
from ingest.readers.g2_columns import (
    ACCEPTED,
    DDM,
    DELAY,
    RING,
    Column,
    as_g2,
    known_kinds,
)
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
    beside = (path.with_name(f"{path.stem}{end}{path.suffix}") for end in ("err", "_err"))
    return next((one for one in beside if one.is_file()), None)


def with_errors(paths: Sequence[Path]) -> list[Path]:
    """Return files of g2 and those of their errors."""
    beside = dict.fromkeys(filter(None, map(errors_beside, paths)))
    return [*paths, *(path for path in beside if path not in paths)]


def without_errors(paths: Sequence[Path]) -> list[Path]:
    """Return files of g2 without those of their errors."""
    errors = set(map(errors_beside, paths))
    return [path for path in paths if path not in errors]


def open_text(path: Path, options: IngestOptions) -> Source:
    """Return the curves of a table; raises SourceError for a text that is none, or is ambiguous."""
    notes: list[str] = []
    curves, beside = _curves(path, options, notes), errors_beside(path)
    if beside is not None:
        if curves.error is not None:
            raise SourceError(
                f"{path.name} has errors, and so has {beside.name} beside it: rename one of the files"
            )
        error = _curves(beside, options, [], errors=True)
        same = error.values.shape == curves.values.shape and np.allclose(error.delay, curves.delay)
        both_q = (np.array(of.q, float) for of in (error, curves))  # NaN where there is none
        if not same or not np.allclose(*both_q, equal_nan=True):
            raise SourceError(
                f"{beside.name} has not the delays and q of {path.name}: correct or rename it"
            )
        notes.append(f"errors are those in {beside.name}")
        curves = curves._replace(error=error.values)
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
    known = _known(path, delay, values, error, notes)
    order = np.argsort(delay, kind="stable")
    order = order[known.any(0)[order]]
    time = np.concatenate([[0.0], delay[order]])
    if (np.diff(time) <= 0).any():
        twice = time[int(np.argmin(np.diff(time)))]
        raise SourceError(f"{path.name} has the delay {twice:g} s twice: give each table by itself")
    points = np.where(known, values, np.nan)[:, order]
    kinds = [options.column_is or kind for kind in curves.kinds]
    kinds = known_kinds(path, curves.names, kinds, points, notes)
    if error is None:
        sigma = np.full(points.shape, _scatter(np.log(time[1:]), points))
    else:
        sigma = np.where(known, error, np.nan)[:, order]
    g2, sigma = (
        np.pad(of, ((0, 0), (1, 0)), constant_values=np.nan)
        for of in as_g2(kinds, points, sigma, notes)
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


def _known(
    path: Path, delay: np.ndarray, g2: np.ndarray, error: np.ndarray | None, notes: list[str]
) -> Bool[np.ndarray, "bin n"]:
    """Return which points are known and have an error; raises SourceError for a curve with too few."""
    if not (delay >= 0).all():
        raise SourceError(f"delays of {path.name} must be numbers from 0 on: correct them")
    if (delay == 0).any():
        notes.append(
            "the point at delay 0, where each photon is correlated with itself, is left out"
        )
    known = np.isfinite(g2) & (delay > 0)
    without = known & ~(error > 0) if error is not None else np.zeros_like(known)
    if without.any():
        notes.append(f"{counted(int(without.sum()), 'point')} without an error above 0 left out")
    known &= ~without
    if (few := known.sum(1) < MIN_POINTS).any():
        raise SourceError(
            f"curve {int(np.argmax(few)) + 1} of {path.name} has fewer than {MIN_POINTS} points: remove it"
        )
    if missing := int((~known[:, known.any(0)]).sum()):
        notes.append(f"{counted(missing, 'point')} of {len(g2) * int(known.any(0).sum())} unknown")
    return known


def _check_options(path: Path, options: IngestOptions, curves: Curves) -> None:
    """Raise OptionError for options that do not apply to these curves, and for what they need."""
    for name in ("time_offset", "half", "axes", "average", "trains"):
        if (given := getattr(options, name)) not in (None, 0.0):
            what = f"{name} = {given} applies to two-time matrices, not to g2"
            raise OptionError(f"{what}: leave it out")
    if curves.frames and options.frame_time is None:
        frames = f"delays are in frames: give --dt, the time between frames in {path.name}"
        raise OptionError(frames)
    if options.frame_time is not None and not curves.frames:
        raise OptionError("delays are in s: leave out --dt")
    if options.sigma is not None and curves.error is not None:
        raise OptionError(f"sigma is given, but {path.name} has errors: leave it out")


def _scatter(x: Float[np.ndarray, " n"], y: Float[np.ndarray, "bin n"]) -> float:
    """Return the scatter of points around the lines between their neighbours; 0 where it is not seen.

    It weights all points alike: errors follow from the residuals of the fit.
    """
    if len(x) < 3:
        return 0.0
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    apart = y[:, 1:-1] - (1 - share) * y[:, :-2] - share * y[:, 2:]
    apart /= np.sqrt(1 + share**2 + (1 - share) ** 2)
    scatter = 1.4826 * float(
        np.median(np.abs(apart[np.isfinite(apart)])) if np.isfinite(apart).any() else 0
    )
    return scatter if scatter > LEAST_SCATTER else 0.0


def _no_matrix(path: Path, where: str) -> np.ndarray:
    raise SourceError(f"{path.name} has g2 in {where}, not matrices: ingest it again")


def _curves(path: Path, options: IngestOptions, notes: list[str], errors: bool = False) -> Curves:
    """Return what a table says; errors: all of it are errors, which are returned as values."""
    (names, table), q = _table(path), None
    if not names:
        names, table, q = _unnamed(path, table, options, errors)
    columns = [Column(*of) for of in zip(names, table.T, strict=True)]
    if not columns[0].name and np.array_equal(columns[0].values, np.arange(len(table))):
        columns = columns[1:]  # a row number
    delays = [one for one in columns if DELAY.fullmatch(one.plain)]
    delays = delays or [one for one in columns[:1] if not one.name]
    if len(delays) != 1:
        raise SourceError(
            f"{path.name} has {len(delays)} columns of delays among {', '.join(names)}: {NAME_THEM}"
        )
    others = [one for one in columns if one is not delays[0]]
    rings = [one for one in others if RING.fullmatch(one.plain)]
    delay, frames = _delays(path, delays[0], notes)
    known = errors or options.column_is is not None
    if rings:
        others, ring = [one for one in others if one is not rings[0]], rings[0]
        unit = None if re.fullmatch("val(ue)?s?|mean|cent(er|re)", ring.unit) else ring.unit or None
        of_q = converted("q", ring.values, unit, f"column {ring.name} of {path.name}", notes)
        return _of_long(path, delay, of_q, others, known)._replace(frames=frames)
    curves, error = _values_and_errors(path, others, errors, known)
    where = f"q in columns of {path.name}"
    if q is not None:
        notes.append("q is that of the first row, taken to be in 1/Å")
    elif all(one.q for one in curves):
        each = [(np.array(one.q[:1]), one.q[1]) for one in curves if one.q]
        q = np.concatenate([converted("q", value, unit, where, notes) for value, unit in each])
    kinds, of_q = [one.kind for one in curves], q if q is not None else options.q or ()
    if len({*kinds}) > 1 and not known and len({*of_q}) < len(kinds):
        raise SourceError(
            f"{path.name} has {', '.join(one.name for one in curves)} of one q: keep one of them"
        )
    values = np.array([one.values for one in curves])
    of_error = np.array([one.values for one in error]) if error else None
    names = [one.name for one in curves]
    return Curves(delay, values, of_error, q, frames=frames, names=names, kinds=kinds)


def _delays(path: Path, column: Column, notes: list[str]) -> tuple[Float[np.ndarray, " n"], bool]:
    """Return delays in s, or in frames."""
    unit = column.unit
    if unit.startswith("frame"):
        return column.values, True
    if not unit or (unit not in SECONDS and "(" not in column.name and "[" not in column.name):
        notes.append("delays have no unit: assumed to be in s")
        return column.values, False
    return converted("time", column.values, unit, f"delays of {path.name}", notes), False


def _values_and_errors(
    path: Path, columns: list[Column], errors: bool, known: bool
) -> tuple[list[Column], list[Column]]:
    """Return the columns of values, and that of the errors of each.

    errors: whether all are errors. known: whether names need not say what the columns are.
    """
    of_error = [one for one in columns if one.is_error and not errors]
    curves = [one for one in columns if errors or not one.is_error]
    strange = [] if known else [one for one in curves if one.kind == ""]
    if strange and DDM.search(strange[0].plain):
        raise SourceError(
            f"{path.name}: {strange[0].name!r} is taken for D(q, τ) of differential dynamic microscopy, "
            f"A (1 - f) + B: compute f = 1 - (D - B)/A, and name it f"
        )
    if not curves or strange:
        what = f"column {strange[0].name!r} is none" if strange else "no column is one"
        raise SourceError(
            f"{path.name}: {what} of delay, q, {ACCEPTED}: {NAME_THEM}, remove it, or say with --column-is "
            f"what all others are"
        )
    if not of_error:
        return curves, []
    for key in (lambda one: one.q, lambda one: one.number):
        keys = {key(one): one for one in of_error}
        if len(keys) == len(of_error) == len(curves) and {key(one) for one in curves} == {*keys}:
            return curves, [keys[key(one)] for one in curves]
    if len(of_error) != len(curves):
        raise SourceError(
            f"{path.name} has {len(curves)} columns of g2 and {len(of_error)} of errors: {NAME_THEM}"
        )
    return curves, of_error  # each beside its g2, or all behind all g2, in one order


def _of_long(
    path: Path, delay: np.ndarray, q: np.ndarray, columns: list[Column], known: bool
) -> Curves:
    """Return the curves of a table with a row for each q and delay."""
    curves, error = _values_and_errors(path, columns, False, known)
    if len(curves) > 1:
        raise SourceError(f"{path.name} has a column q and {len(curves)} columns of g2: give one")
    (all_q, bin), (delays, at) = (np.unique(of, return_inverse=True) for of in (q, delay))
    if len(np.unique(bin * len(delays) + at)) < len(at):
        raise SourceError(f"{path.name} has a delay twice at one q: give each table by itself")
    values = np.full((1 + len(error), len(all_q), len(delays)), np.nan)
    for of, column in zip(values, (*curves, *error), strict=True):
        of[bin, at] = column.values
    each = {"names": [curves[0].name] * len(all_q), "kinds": [curves[0].kind] * len(all_q)}
    return Curves(delays, values[0], values[1] if error else None, all_q, **each)


def _unnamed(
    path: Path, table: np.ndarray, options: IngestOptions, errors: bool
) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Return names of columns without any, the table, and q of its first row; SourceError if ambiguous."""
    first, rest = table[0, 1:], table[1:]
    corner = table[0, 0] == 0 or np.isnan(table[0, 0])
    names = ["delay", *(f"column {n}" for n in range(2, table.shape[1] + 1))]
    if corner and np.isfinite(first).all() and (first > 0).all() and len(rest) > 1:
        sure = np.isnan(table[0, 0]) or errors
        if sure or (first.max() < HIGHEST_Q and np.nanmedian(rest[:, 1:]) > LOWEST_G2):
            return names, rest, first
        if options.q is None and first.max() < HIGHEST_Q:
            raise SourceError(
                f"the first row of {path.name} may be q, or g2 at delay 0: {NAME_THEM}, or give --q"
            )
    given = 0 if options.q is None else len(options.q)
    number = table.shape[1] - 1
    if number == 1 or errors or given == number:
        return names, table, None
    if number == 2 and given == 1:
        return [*names[:2], "error"], table, None
    raise SourceError(
        f"{path.name} has {number + 1} columns without names, of delay, g2 and perhaps errors: {NAME_THEM}, "
        f"or give --q, one for each curve"
    )


def _table(path: Path) -> tuple[list[str], Float[np.ndarray, "row column"]]:
    """Return the names of the columns, empty without any, and the numbers."""
    lines = [line.strip(" \r\n\ufeff") for line in _text(path).splitlines()]
    lines = [line for line in lines if line]
    plain = [line for line in lines if line[0] not in COMMENT]
    separator = _separator(plain[len(plain) // 2]) if plain else None
    fields = [_fields(line, separator) for line in plain]
    comma = _decimal_comma(path, (f for of in fields for f in of)) if separator != "," else False
    numbers = [[_number(field, comma) for field in of] for of in fields]
    _forget_texts(path, fields, numbers)
    begin = next((n for n, of in enumerate(numbers) if len(of) > 1 and None not in of), len(plain))
    data = numbers[begin:]
    if len(data) < 2:
        raise SourceError(
            f"{path} is neither HDF5 nor .npy nor .npz, nor a table of g2 (it begins with "
            f"{lines[0][:8] if lines else ''!r}): check the file"
        )
    width = len(data[0])
    for of, line in zip(data, plain[begin:], strict=True):
        if len(of) != width or None in of:
            raise SourceError(
                f"{path.name}: {line[:40]!r} is not {width} numbers: correct this line"
            )
    table = np.array(data, float)
    above = lines[: lines.index(plain[begin])][::-1]
    heads = [_fields(line, separator) for line in above]
    heads += [re.split(r"\s{2,}|\t|,", line) for line in above]
    words = [line.strip(f" {COMMENT}").split() for line in above]
    heads += [of for of in words if of and DELAY.fullmatch(of[0].lower())]
    heads = [[field.strip(f" {COMMENT}\"'") for field in of] for of in heads if len(of) == width]
    names = heads[0] if heads else []
    units = [field.strip("()[]") for field in names]
    if len(heads) > 1 and all(unit.lower() in (*SECONDS, "-", "1", "a.u.") for unit in units):
        names = [f"{name} ({unit})" for name, unit in zip(heads[1], units, strict=True)]
    used = ~np.isnan(table).all(0)
    return [name for name, keep in zip(names, used, strict=False) if keep], table[:, used]


def _forget_texts(path: Path, fields: list[list[str]], numbers: list[list[float | None]]) -> None:
    """Make a column of text, such as the name of the file, one of unknown numbers.

    Raises SourceError if it has several texts, as those of several scans.
    """
    heads = [n for n, of in enumerate(numbers) if 2 * of.count(None) > len(of)]
    begin = heads[-1] + 1 if heads else 0
    for column in range(min(map(len, numbers[begin:]), default=0)):
        values = [of[column] for of in numbers[begin:]]
        if any(value is not None and not np.isnan(value) for value in values):
            continue
        texts = {
            of[column] for of, value in zip(fields[begin:], values, strict=True) if value is None
        }
        if len(texts) > 1:
            name = fields[begin - 1][column] if begin else f"column {column + 1}"
            raise SourceError(
                f"{path.name}: {name} has {len(texts)} texts, as of several scans: make a file of each"
            )
        for of in numbers[begin:]:
            of[column] = np.nan


def _text(path: Path) -> str:
    """Return a text in UTF-16 with its mark, in UTF-8, or else in the 8 bits of older programs."""
    content = path.read_bytes()
    try:
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _separator(line: str) -> str | None:
    """Return what separates the numbers of a line: tab, semicolon, comma, or None for spaces."""
    by_comma = _fields(line, ",")
    comma = len(by_comma) > 1 and None not in map(_number, by_comma)
    return next((one for one in "\t;" if one in line), "," if comma else None)


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


def _decimal_comma(path: Path, fields: Iterable[str]) -> bool:
    """Return whether a comma is decimal, not one of thousands; raises SourceError if both may be."""
    having = [field for field in fields if re.fullmatch(r"[-+]?[\d,.]+([eE][-+]?\d+)?", field)]
    commas, point = [field for field in having if "," in field], "." in "".join(having)
    thousands = [re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", field) for field in commas]
    if not commas or (point and all(thousands)):
        return False
    if point or all(thousands):
        raise SourceError(
            f"{path.name}: {commas[0]} may have a decimal comma or thousands: write it with a point, or "
            f"without the comma"
        )
    return True
