"""The table of a watched folder is made of what can be read."""

from dataclasses import replace
from pathlib import Path

import pytest

from homodyne_dask.apps.watch.scans_page import ScanTable
from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.results.data.fit_rows import fit_row
from tests.apps.watch.instant_fits import NAMES, table_rows
from tests.html_pages import ParsedPage
from tests.results.made_results import flow_result

HEAD = "t,J,J_low_68,J_high_68"
GOOD_RATES = f"{HEAD}\n0.1,1e4,9e3,2e4\n1,1e3,9e2,2e3\n10,1e2,,\n"
DAMAGED = {
    "empty": b"",
    "only its head": HEAD.encode(),
    "not UTF-8": b"\xff\xfe" + GOOD_RATES.encode(),
    "cut short": GOOD_RATES.encode()[:-20],
    "a short row": GOOD_RATES.replace(",9e2,2e3", "").encode(),
    "no times": GOOD_RATES.replace("t,", "x,").encode(),
    "no band": GOOD_RATES.replace("J_low_68", "x").encode(),
}


def written(folder: Path, names: tuple[str, ...]) -> ParsedPage:
    """The page of a folder with fits of these names."""
    table = ScanTable(NAMES)
    for n, name in enumerate(names):
        entry = fit_row(f"{name}.h5", folder / f"{name}_fit", flow_result())
        table.add(n + 1, Stamp(1, 10**18), entry)
    table.write(folder, ["done"])
    return ParsedPage((folder / "scans.html").read_text())


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in "AB":
        (tmp_path / f"{name}_fit").mkdir()
        (tmp_path / f"{name}_fit" / "rates.csv").write_text(GOOD_RATES)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_rates_are_a_sentence_in_the_row_of_their_scan(folder, damage):
    file = folder / "A_fit/rates.csv"
    file.write_bytes(DAMAGED[damage])
    page = written(folder, ("A", "B"))
    assert f"li: note: A.h5: {file} cannot be plotted (" in page.text
    assert len(page.all("img")) == 3
    rows = table_rows(folder)
    assert [row["outcome"] for row in rows] == ["CONVERGED"] * 2
    assert f"{file} cannot be plotted" in rows[0]["warnings"]
    assert not rows[1]["warnings"]


@pytest.mark.long
@pytest.mark.parametrize(
    "number", ["1e308", "-1e308", "inf", "-inf", "nan", "0", "-1", "1e-320", ""]
)
def test_rates_of_any_size_are_drawn(folder, number):
    damaged = GOOD_RATES.replace("1e3,", f"{number},").replace("9e2", number).replace("2e4", number)
    (folder / "A_fit/rates.csv").write_text(damaged)
    page = written(folder, ("B", "A"))
    assert len(page.all("img")) == 3
    assert "cannot be plotted" not in page.text


@pytest.mark.long
def test_parameters_of_any_size_are_drawn(folder):
    made = flow_result()
    for value in (1e308, -1e308, float("inf"), float("nan"), 1e-320):
        table = made.parameters.assign(value=made.parameters["value"] * 0 + value)
        entry = fit_row("A.h5", folder / "A_fit", replace(made, parameters=table))
        rows = ScanTable(NAMES)
        rows.add(1, Stamp(1, 10**18), entry)
        rows.write(folder, ["done"])
        assert len(ParsedPage((folder / "scans.html").read_text()).all("img")) == 3
