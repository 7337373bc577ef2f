"""docs/findings.md from the catalogue of findings."""

from textwrap import TextWrapper

from homodyne_dask.results.data.finding_catalogue import CATALOGUE, MISFIT, Severity
from tests.documents import ROOT

PAGE = ROOT / "docs" / "findings.md"
HEAD = """# Findings

What a fit found out about itself: each code, what it means, and what to do.

`result.findings` lists what is to be known before the numbers are used, as data: a `code` from this page,
what it is `about` (parameters, labels of bins), `numbers` by name, the option or command to type as `advice`,
and a `severity`. `str(finding)` is its sentence, as in the report. `result.findings.of("at-bound")` are those
with a code, `result.findings.at_least("warning")` those of a severity or a higher one, and
`result.findings.to_dataframe()` is a table. `summary.json` has the same list, and files of other formats have
it as JSON. Codes do not change with the words of a sentence: test for codes.
"""
ABOUT = {
    Severity.ERROR: "part of the outcome: the values are not to be used as they are",
    Severity.WARNING: "a value or an error is unknown, or doubtful",
    Severity.NOTE: "limits of what the values say",
    Severity.INFO: "to know",
}


def page() -> str:
    """Return the text of the page."""
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
