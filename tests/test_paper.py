"""paper/paper.md cites what paper.bib has, shows what figures.py made, and has the sections of JOSS."""

import re

from tests.documents import ROOT

FOLDER = ROOT / "paper"
PAPER = (FOLDER / "paper.md").read_text()
_, HEAD, TEXT = PAPER.split("---\n", 2)


def test_every_reference_is_cited_and_every_citation_is_there():
    listed = re.findall(r"^@\w+\{(\w+),", (FOLDER / "paper.bib").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(re.findall(r"@([A-Za-z]+\d{4})", TEXT)) == set(listed)


def test_figures_are_there_and_the_table_is_that_of_the_script():
    assert all((FOLDER / name).is_file() for name in re.findall(r"\]\(([^)]+)\)", TEXT))
    table = (FOLDER / "figures" / "example.md").read_text().split("\n\n")[0]
    assert table in TEXT
    pairs, passes = re.findall(r"^(\d+) pairs, (\d) passes", (FOLDER / "figures" / "example.md").read_text(),
                               re.MULTILINE)[0]  # fmt: skip
    assert f"{int(pairs):,} pairs" in TEXT
    assert passes == "5"
    assert "five passes" in TEXT
