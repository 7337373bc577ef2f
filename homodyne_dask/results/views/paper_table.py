"""The values of fits as a table for a paper, in LaTeX or Markdown: 8810 ± 380 is written 8810(380)."""

import re
from typing import NamedTuple

from homodyne_dask.errors import printable
from homodyne_dask.results.data import fit_rows
from homodyne_dask.results.data.derived_quantities import shown_names
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.text import in_brackets

_WITH_ERROR = re.compile(r"\(?(-?[\d.]+(?:e[+-]\d+)?) ± ([\d.]+)(?:\)e([+-]\d+))?")
_GREEK = (
    "alpha beta gamma delta epsilon theta kappa lambda mu nu phi sigma tau omega Gamma Phi Omega"
)
_SYMBOLS = {"frozen_fraction": "F", "rate": "Gamma"}
_SYMBOLS |= {"gamma_dot_t0": "gamma_dot0", "gamma_dot_t_offset": "gamma_dot_offset"}
_SCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SPECIAL = re.compile(r"[&%$#_{}]")


class PaperTable(NamedTuple):
    about: str
    """What was fitted, and whether the values may be quoted."""
    head: list[tuple[str, str]]
    """Of each column a name and a unit."""
    rows: list[list[str]]


def paper_table(values: FitValues | SeriesValues) -> PaperTable:
    """Return a row for each quantity of a fit, or for each fit of a series."""
    return _of_fit(values) if isinstance(values, FitValues) else _of_series(values)


def _of_fit(result: FitValues) -> PaperTable:
    quantities = fit_rows.quantities_of(result)
    parameters = result.parameters["param"].values.tolist()
    optima = {q.optimum for name, q in quantities.items() if name in parameters}
    names = [
        name
        for name in shown_names(quantities, quantities)
        if name in parameters or quantities[name].optimum not in optima
    ]
    fixed = result.parameters["param"].values[result.parameters["fixed"].values]
    rows = [
        [name, concise(f"{quantities[name]}{' fixed' * (name in fixed)}"), quantities[name].unit]
        for name in names
    ]
    about = f"{result.config['model']} fitted to {result.provenance.inputs['store']}"
    return PaperTable(f"{about}: {result.verdict}", [("", ""), ("value", ""), ("unit", "")], rows)


def _of_series(series: SeriesValues) -> PaperTable:
    entries, over = series.entries, series.over
    constant = fit_rows.constant_quantities(entries)
    names = shown_names(fit_rows.quantity_names(entries), fit_rows.quantities_in(entries))
    names = [name for name in names if name not in constant]
    places = [f"{entry.at[over]:.6g}" if over in entry.at else "" for entry in entries]
    # where rows of several rings, or repeats, have one place, their names tell them apart
    if over in ("scan", "label") or len({*places}) < len(places):
        first, places = ("", ""), [entry.name for entry in entries]
    else:
        first = over, series.unit_of(over)
    rows = [
        [place, *(concise(str(entry.quantities.get(n, fit_rows.UNKNOWN_QUANTITY))) for n in names)]
        for place, entry in zip(places, entries, strict=True)
    ]
    ended = [f"{entry.name}: {entry.outcome_words}" for entry in entries]
    ended += ["a value without an error has none that is known"]
    return PaperTable("; ".join(ended), [first, *((n, series.unit(n)) for n in names)], rows)


def concise(text: str) -> str:
    """Return '8810(380)' for '8810 ± 380' and '9.2(17)e-04' for '(9.2 ± 1.7)e-04'.

    The error has the unit of the last digit of the value (JCGM 100:2008, 7.2.2), which has as many decimals.
    """

    def joined(match: re.Match[str]) -> str:
        value, error, exponent = match.groups()
        _, point, decimals = error.partition(".")
        if "e" in value or len(value.partition(".")[2]) != len(decimals):
            value = f"{round(float(value), len(decimals)) + 0.0:.{len(decimals)}f}"
        digits = error.replace(".", "").lstrip("0") if point else error
        return f"{value}({digits})" + (f"e{exponent}" if exponent else "")

    return _WITH_ERROR.sub(joined, text)


def as_markdown(table: PaperTable) -> str:
    head = [in_brackets(name, unit) for name, unit in table.head]
    lines = [head, ["---"] * len(head), *table.rows]
    cells = [[printable(cell).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in cells), "", printable(table.about)])


def as_latex(table: PaperTable) -> str:
    """Return a tabular that needs no package, below a comment; of values without error three digits."""
    head = [
        _latex_name(name) + (f" [{_latex_unit(unit)}]" if unit else "") for name, unit in table.head
    ]
    of_fit = table.head[-1] == ("unit", "")
    rows = [
        [_latex_name(row[0]), _latex_value(row[1]), _latex_unit(row[2])]
        if of_fit
        else [_latex_number(row[0]), *map(_latex_value, row[1:])]
        for row in table.rows
    ]
    lines = [rf"{' & '.join(row)} \\" for row in (head, *rows)]
    comment = " ".join(printable(table.about).split())
    begin = rf"\begin{{tabular}}{{{'l' * len(head)}}}"
    body = [r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
    return "\n".join([f"% {comment}", begin, *body])


def _latex_name(name: str) -> str:
    quantity, of_part, part = name.partition(" of ")
    symbol_or_name = _SYMBOLS.get(quantity, quantity)
    first, *below = symbol_or_name.replace("gamma_dot", "gammadot").split("_")
    letters, digits = re.fullmatch(r"(.*?)(\d*)", first, re.DOTALL).groups()  # type: ignore[union-attr]
    symbol = rf"\{letters}" if letters in _GREEK.split() else letters
    symbol = r"\dot{\gamma}" if letters == "gammadot" else symbol
    if not (symbol.startswith("\\") or (len(symbol) == 1 and symbol.isalpha())):
        return _escaped(name.replace("_", " "))
    below = [digits] * bool(digits) + [rf"\mathrm{{{_escaped(word)}}}" for word in below]
    subscript = f"_{{{','.join(below)}}}" if below else ""
    return f"${symbol}{subscript}$" + f" ({_escaped(part)})" * bool(of_part)


def _latex_value(text: str) -> str:
    without_error = re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", text)  # nor words: fixed, at bound
    return _latex_number(f"{float(text):.3g}" if without_error else text)


def _latex_number(text: str) -> str:
    form = r"(?!.* and )(below |above )?(-?[\d.]+)(\([\d.]+\))?(?:e([+-]\d+))?(.*)"
    number = re.fullmatch(form, text)
    if number is None:
        return _escaped(text)
    limit, value, error, exponent, words = number.groups(default="")
    sign = {"below ": "<", "above ": ">"}.get(limit, "")
    power = rf"\times 10^{{{int(exponent)}}}" if exponent else ""
    return f"${sign}{value}{error}{power}${_escaped(words)}"


def _latex_unit(unit: str) -> str:
    powers = re.sub(
        "[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: f"$^{{{m[0].translate(_SCRIPTS)}}}$", _escaped(unit)
    )
    return powers.replace("Å", r"\AA{}").replace("µ", r"$\mu$").replace("°", r"$^\circ$")


def _escaped(text: str) -> str:
    plain = printable(text).replace("\\", r"\textbackslash ")
    return _SPECIAL.sub(lambda m: rf"\{m[0]}", plain)
