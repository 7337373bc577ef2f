"""The user guide: its examples give what they show, its numbers are computed, its pages are printed."""

import doctest
import re

import click
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.apps.guide import user_guide as guide
from homodyne_dask.cli.program import main
from homodyne_dask.solver.cluster_robust import MIN_CLUSTERS
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduce import reduce
from tests.documents import PROMISED, ROOT, blocks
from tests.run_command import done, run
from tests.synthetic import evaluator, measured


@pytest.mark.parametrize("name", ["conventions"])
def test_the_examples_of_a_page_give_what_they_show(name):
    text = "\n".join(blocks("pycon", ROOT / "docs" / f"{name}.md"))
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.parametrize("name", guide.PAGES)
def test_a_page_is_printed_and_is_a_page(name):
    printed = done("explain", name)
    assert printed == (ROOT / "docs" / f"{name}.md").read_text()
    assert printed == guide.page(name) + "\n"
    lines = printed.splitlines()
    assert re.fullmatch(r"# \w+", lines[0])
    assert lines[2] == f"{guide.PAGES[name][0].upper()}{guide.PAGES[name][1:]}."
    assert max(len(line) for line in lines if not line.startswith("|")) <= 110


def test_without_a_page_the_pages_are_listed_with_a_line_each():
    printed = done("explain")
    for name, line in guide.PAGES.items():
        assert re.search(rf"^{name} +{re.escape(line)}$", printed, re.MULTILINE)
    assert printed.startswith(hd.guide.index())


def test_a_page_of_an_application_that_was_taken_out_is_not_listed(tmp_path):
    (tmp_path / "README.md").write_text("- [data](data.md): stores\n- [view](view.md): figures\n")
    (tmp_path / "data.md").write_text("# data\n")
    assert guide.pages_in(tmp_path) == {"data": "stores"}


def test_a_page_that_there_is_not_is_named():
    result = run("explain", "error")
    assert result.exit_code == 2
    assert "did you mean 'errors'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert hd.guide.page("errors") == guide.page("errors")


def numbers(name: str, pattern: str) -> list[float]:
    text = " ".join(guide.page(name).split())
    (found,) = re.findall(pattern, text)
    return [float(number) for number in np.atleast_1d(found)]


def test_the_page_names_the_fewest_clusters_of_robust_errors():
    said = (
        numbers("errors", r"`many_clusters` \| There are (\d+) clusters or more")
        + numbers("errors", r"`few_freedom` \| There are (\d+) clusters or more")
        + numbers("errors", r"With (\d+) or more clusters, stderr is the cluster-robust error")
    )
    assert said == [MIN_CLUSTERS] * 3


def test_errors_grow_with_what_is_left_free_as_the_page_says():
    said = numbers(
        "undetermined", r"alpha is ([\d.]+) times as large .* a correlation of (-[\d.]+)\."
    )
    theta = np.array([2500.0, -0.3, 100.0])
    scans = measured(theta, 300, np.zeros(1), noise=False)
    reduced = reduce(evaluator(scans, side=128)(theta), "individual")
    free, held = (
        uncertainty(
            hd.STATIC.names, joint_equations(reduced, np.array(moved)), np.zeros(1, int)
        ).naive
        for moved in ([True, True, True], [True, True, False])
    )
    assert said[0] == pytest.approx(np.sqrt(free[1, 1] / held[1, 1]), rel=0.01)
    assert said[1] == pytest.approx(free[1, 2] / np.sqrt(free[1, 1] * free[2, 2]), abs=1e-3)


def test_words_are_found_in_every_page_whatever_their_capitals():
    printed = done("explain", "--search", "Exclude FRAMES")
    assert printed == hd.guide.search("exclude frames") + "\n"
    assert "  - **Exclusion**: `--exclude-frames 2,5,51:61`" in printed
    pages = re.findall(r"^(\w+)$", printed, re.MULTILINE)
    assert "fits" in pages
    assert "posterior" not in pages


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("LaTeX table", "results"), ("publication figure", "results"), ("bad frames of one repeat", "data"),
        ("gel", "models"), ("bands", "rates"), ("memory", "fits"), ("memory", "performance"),
        ("cluster", "clusters"), ("units", "conventions"), ("JupyterHub", "view"), ("macOS", "installation"),
        ("shared machine", "security"), ("smoothed", "errors"), ("exit status", "results"),
        ("DLS", "g2"), ("PyPI", "installation"), ("pinned", "installation"), ("laptop", "installation"),
        ("array job", "clusters"), ("phi nan", "data"), ("± nan", "g2"), ("does my gel age", "models"),
    ],
)  # fmt: skip
def test_what_people_look_for_is_found_on_the_page_about_it(words, page):
    assert re.search(rf"^{page}$", hd.guide.search(words), re.MULTILINE)


@pytest.mark.parametrize("words", ["zebra", "", " ", "zebra frames"])
def test_words_that_no_page_has_are_refused(words):
    result = run("explain", "--search", words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "search for fewer words" in result.stderr


def test_the_commands_and_options_that_answer_questions_exist():
    rows = [line for line in guide.page("questions").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        for line in re.findall(r"`(\w[^`]*)`", row.split("|")[2]):
            command, *words = line.split()
            if command.startswith("hd."):
                assert hasattr(hd, command.removeprefix("hd."))
                continue
            if command in PROMISED - set(main.commands):
                continue  # of an application that was taken out
            known = main.get_command(click.Context(main), command)
            if isinstance(known, click.Group):
                known = known.get_command(click.Context(known), words.pop(0))
            options = {name for one in known.params for name in (*one.opts, *one.secondary_opts)}
            assert options.issuperset(word for word in words if word.startswith("-")), line
        for tutorial in re.findall(r"\| (\w+) \|$", row):
            assert (ROOT / "docs" / "tutorials" / f"{tutorial}.md").is_file()
