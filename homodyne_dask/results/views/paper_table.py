"""The values of fits as a table for a paper, in LaTeX or Markdown: 8810 ± 380 is written 8810(380)."""

import re
from typing import NamedTuple

from homodyne_dask.errors import printable
from homodyne_dask.results.data import fit_rows
from homodyne_dask.results.data.derived_quantities import (
    coefficients_of,
    derived_quantities,
    fitted_quantities,
    shown_names,
)
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.series import UNITS, SeriesValues
from homodyne_dask.text import in_brackets

_WITH_ERROR = re.compile(r"\(?(-?[\d.]+) ± ([\d.]+)\)?(?:e([+-]\d+))?")
_GREEK = (
    "alpha beta gamma delta epsilon theta kappa lambda mu nu phi sigma tau omega Gamma Phi Omega"
)
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
    derived, hidden = derived_quantities(result), coefficients_of(result)
    quantities = {name: q for name, q in fitted_quantities(result).items() if name not in hidden}
    values = {quantity.optimum for quantity in quantities.values()}
    further = [name for name in shown_names(derived) if derived[name].optimum not in values]
    quantities |= {name: derived[name] for name in further}
    fixed = result.parameters["param"].values[result.parameters["fixed"].values]
    rows = [[n, concise(f"{q}{' fixed' * (n in fixed)}"), q.unit] for n, q in quantities.items()]
    about = f"{result.config['model']} fitted to {result.provenance.inputs['store']}"
    return PaperTable(f"{about}: {result.verdict}", [("", ""), ("value", ""), ("unit", "")], rows)


def _of_series(series: SeriesValues) -> PaperTable:
    entries = series.entries
    constant = fit_rows.constant_quantities(entries)
    names = [n for n in shown_names(fit_rows.quantity_names(entries)) if n not in constant]
    unit = UNITS.get(series.over, "")
    rows = [
        [
            f"{entry.at[series.over]:.6g}" if series.over in entry.at else entry.name,
            *(concise(str(entry.quantities.get(n, fit_rows.UNKNOWN_QUANTITY))) for n in names),
        ]
        for entry in entries
    ]
    ended = [f"{entry.name}: {entry.outcome_words}" for entry in entries]
    ended += ["a value without an error has none that is known"]
    head = [(series.over, unit), *((name, series.unit(name)) for name in names)]
    return PaperTable("; ".join(ended), head, rows)


def concise(text: str) -> str:
    """Return '8810(380)' for '8810 ± 380' and '9.2(17)e-04' for '(9.2 ± 1.7)e-04'.

    The error has the unit of the last digit of the value (JCGM 100:2008, 7.2.2).
    """

    def joined(match: re.Match[str]) -> str:
        value, error, exponent = match.groups()
        digits = error.replace(".", "").lstrip("0") if "." in error else error
        return f"{value}({digits})" + (f"e{exponent}" if exponent else "")

    return _WITH_ERROR.sub(joined, text)


def as_markdown(table: PaperTable) -> str:
    head = [in_brackets(name, unit) for name, unit in table.head]
    lines = [head, ["---"] * len(head), *table.rows]
    cells = [[printable(cell).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in cells), "", printable(table.about)])


def as_latex(table: PaperTable) -> str:
    """Return a tabular that needs no package; what was fitted is a comment above it."""
    head = [
        _latex_name(name) + (f" [{_latex_unit(unit)}]" if unit else "") for name, unit in table.head
    ]
    of_fit = table.head[-1] == ("unit", "")
    rows = [
        [_latex_name(row[0]), _latex_value(row[1]), _latex_unit(row[2])]
        if of_fit
        else [_latex_value(cell) for cell in row]
        for row in table.rows
    ]
    lines = [rf"{' & '.join(row)} \\" for row in (head, *rows)]
    comment = " ".join(printable(table.about).split())
    begin = rf"\begin{{tabular}}{{{'l' * len(head)}}}"
    return "\n".join(
        [
            f"% {comment}",
            begin,
            r"\hline",
            lines[0],
            r"\hline",
            *lines[1:],
            r"\hline",
            r"\end{tabular}",
        ]
    )


def _latex_name(name: str) -> str:
    quantity, of_part, part = name.partition(" of ")
    first, *below = quantity.replace("gamma_dot", "gammadot").split("_")
    letters, digits = re.fullmatch(r"(.*?)(\d*)", first, re.DOTALL).groups()  # type: ignore[union-attr]
    symbol = rf"\{letters}" if letters in _GREEK.split() else letters
    symbol = r"\dot{\gamma}" if letters == "gammadot" else symbol
    if not (symbol.startswith("\\") or (len(symbol) == 1 and symbol.isalpha())):
        return _escaped(name)
    below = [digits] * bool(digits) + [rf"\mathrm{{{_escaped(word)}}}" for word in below]
    subscript = f"_{{{','.join(below)}}}" if below else ""
    return f"${symbol}{subscript}$" + f" ({_escaped(part)})" * bool(of_part)


def _latex_value(text: str) -> str:
    number = re.fullmatch(r"(-?[\d.]+)(\([\d.]+\))?(?:e([+-]\d+))?(.*)", text)
    if number is None:
        return _escaped(text)
    value, error, exponent, words = number.groups(default="")
    power = rf"\times 10^{{{int(exponent)}}}" if exponent else ""
    return f"${value}{error}{power}${_escaped(words)}"


def _latex_unit(unit: str) -> str:
    powers = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: f"$^{{{m[0].translate(_SCRIPTS)}}}$", unit)
    return powers.replace("Å", r"\AA{}").replace("µ", r"$\mu$").replace("°", r"$^\circ$")


def _escaped(text: str) -> str:
    plain = printable(text).replace("\\", r"\textbackslash ")
    return _SPECIAL.sub(lambda m: rf"\{m[0]}", plain)
