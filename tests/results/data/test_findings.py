"""Findings: the words of the catalogue, and findings as data.

To accept other words: HOMODYNE_DASK_ACCEPT=1 python -m pytest tests/results/data/test_findings.py, then read
the difference.
"""

import re
from pathlib import Path
from string import Formatter
from textwrap import TextWrapper

import numpy as np
import pytest

import homodyne_dask
from homodyne_dask.assessment.result_findings import _wider_bounds, findings_of_doubts
from homodyne_dask.errors import SourceError
from homodyne_dask.results.data.findings import (
    CATALOGUE,
    MISFIT,
    Finding,
    Findings,
    Severity,
    finding,
)
from homodyne_dask.solver.covariance import Doubt
from tests.documents import ROOT, kept_in

SENTENCES = Path(__file__).with_name("finding_sentences.txt")
SOURCE = Path(homodyne_dask.__file__).parent
NUMBERS = {
    "alone": False, "axis": "rings", "group": "ring", "ingest": "--an-option",
    "bins": 3, "bound": 2.0, "bounded": ["alpha"], "chunks": 1,
    "clusters": 8,
    "bounds": {"D0": [1e12, 1.0, 1e12]}, "conditional": ["D0"], "contrast": 0.01, "correlation": -0.9951,
    "counted": True, "datum": "pairs", "depends_on": "q", "deviating": 2, "deviations": [3.2], "errors": 0.02,
    "exchange": "D0_ref and D0_sample", "fast": 2, "frames": [30, 35], "freedom": 4.0, "high": 0.31,
    "highest": 31.4, "independent": 6, "lag": [0.1, 0.1], "largest": 6.1, "limit": 0.5,
    "limits": {"D0": [None, 12.0, "Å²/s"]}, "low": 0.2, "lowest": 0.31, "model": "brownian", "moment": 5.0,
    "movable": ["D0"], "natural": ["fraction"],
    "needed": 8, "few": 8, "ages": [[0.0, 0.9]], "formula": "a-command",
    "of_bins": 2.5, "of_scan": False, "option": "model", "p": 1e-5, "pairs": 48884, "percent": 7.0,
    "period": 4,
    "power": [1.52, 0.04], "precision": "mixed", "profile": "parabolic", "q": "0.01", "rate": -2.7e-4,
    "ratio": 1.2, "redchi": 39.0,
    "held": ["alpha", "D_offset"], "least": 0.005, "scan": 2, "rates": {"J": [20860.0, 640.0, "Å²/s"]},
    "rings": "3 rings, q 0.004 to 0.008 1/Å", "rises": False, "share": 0.08, "sigma_source": "counts",
    "size": -0.3, "spacing": 0.1, "speed": "v0 = 6000", "splines": 3, "stderr": 0.01, "tests": 544,
    "threshold": 4.3, "threshold_of_bins": 4.1, "total": 9, "turns": 0.93, "unit": "Å/s along q",
    "value": "creep", "where": "all bins", "why": "deviating",
}  # fmt: skip
"""Numbers by the names that templates use."""

PAGE = ROOT / "docs" / "findings.md"
HEAD = """# Findings

What a fit found out about itself: each code, what it means, and what to do.

`result.findings` is this list as data: `code`, what it is `about` (parameters, bins), `numbers`, the option
or command to type as `advice`, and `severity`; `str(finding)` is its sentence.
`result.findings.of("at-bound")` and `result.findings.at_least("warning")` select; `to_dataframe()` is a
table. summary.json has the same list. Test for codes, not for words.
"""
ABOUT = {
    Severity.ERROR: "the values are not to be used as they are",
    Severity.WARNING: "a value or an error is unknown, or doubtful",
    Severity.NOTE: "limits of what the values say",
    Severity.INFO: "to know",
}
"""What a severity means, on the page."""


def page() -> str:
    wrapper = TextWrapper(
        110, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    misfit = ", ".join(f"`{code}`" for code in CATALOGUE if code in MISFIT)
    lines = [HEAD, *wrapper.wrap(f"`result.misfit` is whether one of these was found: {misfit}.")]
    for severity, about in ABOUT.items():
        lines += ["", f"## {severity.value.capitalize()}: {about}", ""]
        for code, entry in CATALOGUE.items():
            if entry.severity is severity:
                text = f"- `{code}`: {entry.meaning}. {entry.remedy[0].upper()}{entry.remedy[1:]}."
                lines += wrapper.wrap(text)
    return "\n".join(lines) + "\n"


def example(code: str, about: list[str], advice: str = "--an-option") -> Finding:
    names = {field for _, field, _, _ in Formatter().parse(CATALOGUE[code].template) if field}
    numbers = NUMBERS | {"age": 9.95 if code == "constant-rate" else [1.0, 2.5]}
    return finding(code, about, advice, **{name: numbers[name] for name in names & numbers.keys()})


def test_the_sentences_are_those_of_the_snapshot():
    text = "".join(f"{code}: {example(code, ['D0'])}\n" for code in CATALOGUE)
    assert text == kept_in(SENTENCES, text)


@pytest.mark.parametrize("code", CATALOGUE)
def test_an_entry_is_whole_whatever_it_is_about(code):
    entry = CATALOGUE[code]
    assert entry.meaning
    assert entry.remedy
    for count in (1, 2, 40):
        assert not re.search("[{}]|  ", str(example(code, [f"p{n}" for n in range(count)])))


def test_numbers_that_are_not_finite_have_a_sentence():
    """As of a model with bounds=(0, inf), which JSON has as None."""
    bounds = {"a": [0.0, 0.0, np.inf], "b": [5.0, -np.inf, 5.0]}
    bound = finding("at-bound", ["a", "b"], "--an-option", bounds=bounds, conditional=())
    assert "a = 0 (allowed 0 to inf) and b = 5 (allowed -inf to 5)" in str(bound)
    natural = finding(
        "at-bound", ["x"], "--fixed x=1", bounds={"x": [1.0, 0.0, 1.0]}, natural=["x"]
    )
    assert str(natural).endswith(
        "is at its bound; this is the natural bound of x: quote the limit, or fix it: try `--fixed x=1`"
    )
    assert "3.2 and unknown" in str(finding("far-from-prior", "ab", deviations=[3.2, np.inf]))
    assert "about unknown over the record" in str(finding("contrast-drift", size=np.nan))


def test_an_offset_at_a_negative_bound_is_fixed_and_what_is_not_determined_is_said_once():
    doubts = (Doubt("strongly-correlated", ("D0", "alpha"), {"correlation": -0.999}),)
    assert not [*findings_of_doubts(doubts, [finding("undetermined", ("D0", "alpha"))])]
    assert [one.code for one in findings_of_doubts(doubts)] == ["strongly-correlated"]
    assert _wider_bounds("D_offset", [-1e4, -1e4, 1e6], False, True) == "--fixed D_offset=0"
    assert _wider_bounds("fraction", [1.0, 0.0, 1.0], False, True) == "--fixed fraction=1"
    assert _wider_bounds("alpha", [-2.0, -2.0, 2.0], False) == "--bounds alpha=-4:2"


def test_the_codes_of_the_source_are_those_of_the_catalogue():
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    made = set(
        re.findall(r"""(?:finding|Doubt|some|_advised)\((?:end, )?\s*"([a-z0-9-]+)\"""", source)
    )
    assert made <= CATALOGUE.keys()
    assert all(f'"{code}"' in source for code in CATALOGUE)


def test_the_page_is_the_one_that_the_catalogue_gives():
    assert {CATALOGUE[code].severity for code in MISFIT} == {Severity.ERROR}
    assert page() == kept_in(PAGE, page())


def test_findings_are_chosen_by_code_and_severity_and_survive_json():
    found = Findings(
        [example("model-misfit", []), example("at-bound", ["D0"]), example("determined", [])]
    )
    assert found.codes == ("model-misfit", "at-bound", "determined")
    assert found.of("at-bound", "no-decay") == found[1:2]
    for number, severity in ((3, "info"), (2, "warning"), (1, "error")):
        assert found.at_least(severity).codes == found.codes[:number]
    assert Findings.from_plain([one.to_dict() for one in found]) == found
    table = found.to_dataframe()
    assert table["code"].tolist() == list(found.codes)
    assert table["sentence"].tolist() == [str(one) for one in found]
    assert len(Findings().to_dataframe()) == 0
    later = example("at-bound", ["D0"]).to_dict() | {"code": "of-a-later-version"}
    with pytest.raises(SourceError, match=r"'of-a-later-version' is no finding"):
        Findings.from_plain([later])
