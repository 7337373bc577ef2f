"""A document with every block as text, as a page and in a notebook, and the rules of showing it."""

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from homodyne_dask.document.blocks import (
    Document,
    Facts,
    Figures,
    Link,
    Picture,
    Printed,
    Section,
    Sentences,
    Table,
    Verdict,
    as_fragment,
    as_page,
    as_text,
)
from tests.html_pages import NASTY, ParsedPage


def png() -> bytes:
    with io.BytesIO() as file:
        Image.new("L", (300, 150), 255).save(file, format="png")
        return file.getvalue()


def document(word: str = "word") -> Document:
    """Every block, with a word of the caller in each."""
    outcome = Verdict(False, f"{word} ended", [("warning", f"{word} is near a bound")])
    rows = [["name", "unit", "value"], [Link(word, "a/b.html"), "s", "1.5"], ["other", "", "12"]]
    wide = [["case", *(f"column {n}" for n in range(20))], ["first", *["1"] * 20]]
    return Document(
        f"Title of {word}",
        [
            Section("Outcome", [outcome]),
            Section(
                "Values", [Table(f"Caption of {word}", rows, 2), Sentences([f"note on {word}"])]
            ),
            Section("Nothing", [Table("empty", [["head"]]), Sentences([]), Facts([])]),
            Section("Figures", [Figures([Picture("figure", word, png())], f"below {word}")]),
            Section("More words", [Sentences([word, "use `command`"])], detail=True),
            Section("Wide", [Table("Wide table", wide)], detail=True),
            Section("Facts", [Facts([("name", word), ("longer name", "x " * 60)])], detail=True),
        ],
        "the rest: `show --all`",
    )


SHORT, DETAILS = (
    Path(__file__).with_name(f"{name}.txt").read_text() for name in ("short", "details")
)


class Shown(Printed):
    def _document(self) -> Document:
        return document()


def test_the_short_text_leaves_out_details_and_says_how_to_see_them():
    assert as_text(document()) + "\n" == SHORT + "\nthe rest: `show --all`\n"
    assert as_text(document(), all=True) + "\n" == SHORT + DETAILS
    assert str(Shown()) == as_text(document())
    assert Shown()._repr_html_() == as_fragment(document())


def test_a_page_is_whole_needs_no_other_file_and_folds_details():
    html = as_page(document())
    page = ParsedPage(html)
    assert page.all("html") == [{"lang": "en"}]
    assert [tag for tag, _ in page.tags[:2]] == ["html", "head"]
    assert len(page.all("h1")) == 1
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert ids == ["outcome", "values", "figures", "more-words", "wide", "facts"]
    assert [a["href"] for a in page.all("a")] == [*(f"#{name}" for name in ids), "a/b.html"]
    assert len(page.all("details")) == 3
    assert "<summary><h2>More words</h2></summary>" in html
    assert not page.all("script") + page.all("link") + page.all("iframe")
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in html
    assert [meta for meta in page.all("meta") if meta.get("http-equiv")] == []
    (reload,) = (m for m in ParsedPage(as_page(document(), 5)).all("meta") if "http-equiv" in m)
    assert reload == {"http-equiv": "refresh", "content": "5"}


def test_pictures_have_words_and_are_reached_by_keyboard_as_wide_tables_are():
    page = ParsedPage(as_page(document()))
    (image,) = page.all("img")
    assert (image["alt"], image["width"], image["height"]) == ("word", "144", "72")
    assert str(image["src"]).startswith("data:image/png;base64,")
    around = [attributes for attributes in page.all("div") if attributes.get("class") == "wide"]
    assert len(around) == len(page.all("table")) + 1 == len(page.all("caption")) + 1 == 3
    assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-label"] for a in around)
    assert all(attributes["scope"] in ("col", "row") for attributes in page.all("th"))
    assert sum(a.get("class") == "number" for a in page.all("td")) == 2 + 20


@pytest.mark.parametrize("show", [as_page, as_fragment])
def test_html_has_all_words_of_the_text_and_no_value_becomes_markup(show):
    page = ParsedPage(show(document()))
    for words in re.findall(r"\w+", as_text(document(), all=True)):
        assert words in page.text
    hostile = show(document(NASTY))
    assert not ParsedPage(hostile).all("script")
    assert "alert" not in hostile.replace("&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;", "")
    more = {as_page: 2, as_fragment: 1}[show]  # the note on the figures; the title twice
    in_text = as_text(document(NASTY), all=True).count(NASTY)
    assert ParsedPage(hostile).text.count(NASTY) == in_text + more
    assert "<code>command</code>" in hostile
