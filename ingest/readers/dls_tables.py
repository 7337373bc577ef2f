"""Files of light scattering, ALV's .ASC and exports of Zetasizers, as tables with names of columns."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

ALV = re.compile(r'"?ALV-[0-9A-Z]')
CORRELATION, DEVIATION = "Correlation", "StandardDeviation"
OPTICS = {"wavelength": r"wavelength", "index": r"refractive index", "angle": r"angle"}
"""What q follows from, and the beginning of its line: in nm, and in degrees."""
BY_RECORD = re.compile(
    r"(.*delay times?.*|.*correlation (?:data|coefficient).*)\[(\d+)\](.*)", re.I
)
COEFFICIENT = re.compile(r"correlation (?:coefficient|data)", re.I)
Table = tuple[str, list[str]]


def as_table(lines: Sequence[str]) -> Table | None:
    """Return the names of columns and the rows of a file that is known here, None of another one."""
    if lines and ALV.match(lines[0]):
        return _of_alv(lines)
    head = next((line for line in lines if COEFFICIENT.search(line)), None)
    if head is None or "delay" not in head.lower():
        return None
    rows = [*lines[lines.index(head) + 1 :]]
    mark = next(mark for mark in "\t;," if mark in head) if set(head) & set("\t;,") else "\t"
    if any(BY_RECORD.fullmatch(name.strip('" ')) for name in head.split(mark)):
        return _of_records(head.split(mark), [row.split(mark) for row in rows])
    return COEFFICIENT.sub("g2-1", head), rows


def _of_alv(lines: Sequence[str]) -> Table | None:
    """Return delay [ms], g2 - 1 of each detector or run, and errors where the file has those of one curve."""
    blocks = {title: np.array(rows) for title, rows in _blocks(lines) if rows}
    title = next((title for title in blocks if title.startswith(CORRELATION)), None)
    if title is None:
        return None
    delay, *curves = blocks[title].T
    if "averag" in title.lower() and len(curves) > 2:
        del curves[0]  # the mean of the others
    curves = [curve for curve in curves if curve.any()]  # a detector that is off gives 0
    if not curves:
        return None
    q = _q(lines)
    names = [f"g2-1 {n} {q}" for n in range(1, len(curves) + 1)]
    deviation = blocks.get(DEVIATION, np.empty((0, 0)))
    if len(curves) == 1 and len(deviation) == len(delay) and np.allclose(deviation[:, 0], delay):
        names, curves = [*names, "error"], [*curves, deviation[:, 1]]
    rows = np.column_stack([delay, *curves])
    return "\t".join(["delay (ms)", *names]), ["\t".join(map(repr, row.tolist())) for row in rows]


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, list[list[float]]]]:
    title, rows = "", list[list[float]]()
    for line in lines:
        try:
            numbers = [*map(float, line.replace(",", ".").split())]
        except ValueError:
            yield title, rows
            title, rows = line.strip('" '), []
            continue
        if not rows or len(numbers) == len(rows[0]):
            rows.append(numbers)
    yield title, rows


def _q(lines: Sequence[str]) -> str:
    """Return q = 4π n sin(θ/2)/λ as the words of a name, '' where the file does not say it."""
    values = {}
    for what, begin in OPTICS.items():
        pattern = re.compile(rf'"?{begin}[^:]*:\s*"?\s*([\d.,]+)', re.I)
        if (match := next(filter(None, map(pattern.match, lines)), None)) is not None:
            values[what] = float(match[1].replace(",", "."))
    if len(values) < len(OPTICS) or not all(values.values()):
        return ""
    half = np.radians(values["angle"] / 2)
    return f"(q={4 * np.pi * values['index'] * np.sin(half) / (10 * values['wavelength']):.8f} 1/A)"


def _of_records(names: list[str], records: list[list[str]]) -> Table | None:
    """Return a table in which each record, a row of the export, is a column."""
    delays, values = dict[int, int](), dict[int, int]()
    unit = ""
    for place, name in enumerate(names):
        if match := BY_RECORD.fullmatch(name.strip('" ')):
            is_delay = "delay" in match[1].lower()
            (delays if is_delay else values)[int(match[2])] = place
            unit = unit or match[3].strip() * is_delay
    numbers = sorted(delays.keys() & values.keys())
    records = [
        record for record in records if len(record) > max([*delays.values(), *values.values()])
    ]
    if not numbers or not records:
        return None
    head = ";".join([f"delay {unit}", *(f"g2-1 {n}" for n in range(1, len(records) + 1))])
    first = records[0]
    if any(record[delays[n]] != first[delays[n]] for record in records for n in numbers):
        return None
    rows = [";".join([first[delays[n]], *(r[values[n]] for r in records)]) for n in numbers]
    return head, [row for row in rows if re.match(r"[-+]?[\d.]", row)]
