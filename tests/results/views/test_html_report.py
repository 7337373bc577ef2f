"""The report as HTML: what it says is pinned by text files, how it is built by its rules.

To accept new wording: HOMODYNE_DASK_ACCEPT=1 python -m pytest tests/results/views/test_html_report.py, then
read the difference.
"""

import re
import shutil
import struct
import zlib
from itertools import chain

import pytest

from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.results.views.html_report import Picture, report_fragment, report_page
from homodyne_dask.results.views.report_content import bin_rows, facts, parameter_rows
from tests.html_pages import NASTY, ParsedPage
from tests.results.made_results import changed, flow_result, many_bins_result, static_result


def png(width: int = 300, height: int = 150) -> bytes:
    """A white picture."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = (b"\0" + b"\xff" * width) * height
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def nasty():
    """A result all of whose words are markup."""
    base = flow_result()
    return changed(
        base,
        findings=Findings([finding("undetermined", [NASTY])]),
        inputs=base.provenance.inputs | {"store": NASTY, "source_file": NASTY, "notes": [NASTY]},
        version=NASTY,
        versions={"jax": NASTY},
    )


@pytest.mark.parametrize("make", [flow_result, static_result, many_bins_result, nasty])
def test_a_page_is_one_document_with_one_heading_and_links_that_lead_somewhere(make):
    found = ParsedPage(report_page(make(), [Picture("a <b>", NASTY, png())]))
    assert len(found.all("h1")) == 1
    assert found.all("html") == [{"lang": "en"}]
    assert [tag for tag, _ in found.tags[:2]] == ["html", "head"]
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [attributes["href"] for attributes in found.all("a")] == [f"#{name}" for name in ids]
    assert ids[0] == "verdict"


def test_a_page_needs_no_other_file():
    html = report_page(flow_result(), [Picture("title", "words", png())])
    found = ParsedPage(html)
    assert not found.all("script") + found.all("link") + found.all("iframe")
    assert [a["src"][:22] for a in found.all("img")] == ["data:image/png;base64,"]
    assert "http" not in html
    assert "url(" not in html


def test_every_picture_has_words_and_is_reached_by_keyboard_as_every_wide_table_is():
    found = ParsedPage(
        report_page(many_bins_result(), [Picture("title", f"words {n}", png()) for n in range(3)])
    )
    assert [attributes["alt"] for attributes in found.all("img")] == [
        "words 0",
        "words 1",
        "words 2",
    ]
    assert {(a["width"], a["height"]) for a in found.all("img")} == {("192", "96")}
    around = [attributes for attributes in found.all("div") if attributes.get("class") == "wide"]
    assert len(found.all("table")) == len(found.all("caption")) == 2
    assert len(around) == 2 + 3
    assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-label"] for a in around)
    assert all(attributes["scope"] in ("col", "row") for attributes in found.all("th"))


@pytest.mark.parametrize(
    "made", [lambda r: report_page(r, [Picture(NASTY, NASTY, png())]), report_fragment]
)
def test_no_value_becomes_markup(made):
    html = made(nasty())
    found = ParsedPage(html)
    assert not found.all("script")
    assert "alert" not in re.sub(r"&lt;script&gt;alert\(&#34;x&#34;\)&lt;/script&gt;", "", html)
    assert found.text.count(NASTY) >= 7


@pytest.mark.parametrize("make", [flow_result, static_result])
def test_a_page_says_all_that_the_text_says(make):
    text = ParsedPage(report_page(make(), [])).text
    rows, notes = parameter_rows(make())
    for said in chain(*rows, *bin_rows(make()), notes, *facts(make())):
        assert said in text


def test_jupyter_shows_the_same_tables():
    shown = ParsedPage(flow_result()._repr_html_())
    assert not shown.all("h1") + shown.all("html")
    for said in chain(*parameter_rows(flow_result())[0], *bin_rows(flow_result())):
        assert said in shown.text


CHROMIUM = shutil.which("chromium")


chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
