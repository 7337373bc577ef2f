"""Tables for a paper: values as 8810(380), in LaTeX and Markdown."""

import pytest

from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.result_classes import FitSeries
from homodyne_dask.results.views.paper_table import PaperTable, as_latex, as_markdown, concise
from tests.results.made_results import flow_result


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("8810 ± 380", "8810(380)"),
        ("-1.374 ± 0.074", "-1.374(74)"),
        ("2.1 ± 1.1", "2.1(11)"),
        ("12 ± 12", "12(12)"),
        ("(9.2 ± 1.7)e-04", "9.2(17)e-04"),
        ("(-1.3 ± 0.4)e+08", "-1.3(4)e+08"),
        ("below 1760", "below 1760"),
        ("3 ± 1 at bound", "3(1) at bound"),
        ("-", "-"),
        ("-0.0004 ± 0.12", "0.00(12)"),
        ("0.3 ± 10", "0(10)"),
        ("4e-05 ± 0.0061", "0.0000(61)"),
        ("(5e-07 ± 3.0)e-04", "0.0(30)e-04"),
    ],
)
def test_an_error_stands_in_the_last_digits_of_its_value(text, short):
    assert concise(text) == short


def test_a_row_of_a_fit_is_a_quantity():
    result = flow_result()
    latex = result.to_latex()
    assert latex.startswith(f"% {result.config['model']} fitted to")
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert {row.count("&") for row in rows} == {2}
    assert rows[1] == r"$D_{0}$ & $68600(1500)$ & \AA{}$^{2}$/s \\"
    assert rows[4] == r"$\dot{\gamma}_{0}$ & $9.03(12)\times 10^{-4}$ & 1/s \\"
    assert "| D0 | 68600(1500) | Å²/s |" in result.to_markdown().splitlines()


@pytest.mark.parametrize(
    ("name", "latex"),
    [
        ("frozen_fraction", "$F$"),
        ("rate", r"$\Gamma$"),
        ("rate of slow_part", r"$\Gamma$ (slow\_part)"),
        ("gamma_dot_t_offset", r"$\dot{\gamma}_{\mathrm{offset}}$"),
        ("rate_2", "rate 2"),
        ("q_exponent", r"$q_{\mathrm{exponent}}$"),
        ("power_of_q", "power of q"),
        ("polydispersity", "polydispersity"),
    ],
)
def test_the_head_of_a_column_is_a_symbol_or_words(name, latex):
    head = PaperTable("", [("q", "1/Å"), (name, "1/s")], [["0.01", "1(1)"]])
    assert as_latex(head).splitlines()[3] == rf"$q$ [1/\AA{{}}] & {latex} [1/s] \\"


CELLS = {
    "434.883": "$435$",
    "434883": r"$4.35\times 10^{5}$",
    "-4.34883e-05": r"$-4.35\times 10^{-5}$",
    "434.883 fixed": "$434.883$ fixed",
    "434.883 at bound": "$434.883$ at bound",
    "below 2.82": "$<2.82$",
    "above 1.5e-05 and below 2": "above 1.5e-05 and below 2",
    "below 2.82 at bound": "$<2.82$ at bound",
    "434.883(12)": "$434.883(12)$",
    "-": "-",
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_for_print_has_the_digits_that_are_known(cell):
    head = [("T", "K"), ("rate", "1/s")]
    lines = as_latex(PaperTable("", head, [["298.154", cell]])).splitlines()
    assert lines[5] == rf"$298.154$ & {CELLS[cell]} \\"
    of_fit = PaperTable("", [("", ""), ("value", ""), ("unit", "")], [["rate", cell, "1/s"]])
    assert as_latex(of_fit).splitlines()[5] == rf"$\Gamma$ & {CELLS[cell]} & 1/s \\"


def test_a_row_of_a_series_is_a_fit():
    rows = [fit_row(f"{n}", None, flow_result(), "", {"q": 0.001 * n}) for n in (1, 2)]
    series = FitSeries("q", (*rows, fit_row("3", None, None, "no data", {"q": 0.003})))
    table = [line for line in series.to_markdown().splitlines() if line.startswith("|")]
    assert table[0].startswith("| q [1/Å] | D0 [Å²/s] | alpha |")
    assert table[2].startswith("| 0.001 | 68600(1500) | -1.3271(12) |")
    assert table[4].startswith("| 0.003 | - | - |")
    assert "3: failed" in series.to_latex().splitlines()[0]


def test_rows_at_one_place_are_told_apart_by_their_names():
    rows = [fit_row(f"q = 0.00{n}", None, flow_result(), "", {"phi": 60.0}) for n in (1, 2)]
    table = FitSeries("phi", tuple(rows)).to_markdown().splitlines()
    assert [line.split(" | ")[0] for line in table[2:4]] == ["| q = 0.001", "| q = 0.002"]


def test_names_and_words_of_files_cannot_break_a_table():
    table = PaperTable(
        "A\n\\input{x}", [("", ""), ("value", ""), ("unit", "")], [["a_b%|", "1(1)", "1/s"]]
    )
    assert as_latex(table).splitlines()[0] == r"% A \input{x}"
    assert r"$a_{\mathrm{b\%|}}$" in as_latex(table)
    in_per_cent = table._replace(rows=[["a", "1(1)", "%"]])
    assert r"$1(1)$ & \% \\" in as_latex(in_per_cent)
    row = as_markdown(table).splitlines()[2]
    assert row.count("|") - row.count(r"\|") == 4
