"""The user guide: its examples run, its numbers are computed, its pages are printed."""

import doctest
import re
from importlib import import_module

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask import guide
from homodyne_dask.parameters import search
from homodyne_dask.scaling import reduce
from homodyne_dask.uncertainty import uncertainty
from tests.synthetic import FLOW, angles, evaluator, measured, solve
from tests.test_cli import done, run


@pytest.mark.parametrize("name", guide.PAGES)
def test_the_examples_of_a_page_give_what_they_show(name):
    assert doctest.testmod(import_module(f"homodyne_dask.guide.{name}")).failed == 0


@pytest.mark.parametrize("name", guide.PAGES)
def test_a_page_is_printed_and_is_a_page(name):
    printed = done("explain", name)
    assert printed == guide.page(name) + "\n"
    assert len(printed.splitlines()) < 70
    assert max(map(len, printed.splitlines())) <= 110
    assert f"    {name} " in done("explain")


def test_a_page_that_there_is_not_is_named():
    result = run("explain", "error")
    assert result.exit_code == 2
    assert "did you mean 'errors'" in result.stderr
    assert hd.guide.page("errors") == guide.page("errors")


def numbers(name: str, pattern: str) -> list[float]:
    """The numbers in a sentence of a page."""
    text = " ".join(guide.page(name).split())
    (found,) = re.findall(pattern, text)
    return [float(number) for number in np.atleast_1d(found)]


def test_a_shared_contrast_biases_as_the_page_says():
    said = numbers(
        "scaling",
        r"reduced χ² of ([\d.]+) and `shared` at ([\d.]+), its D0 off by ([\d.]+) standard errors",
    )
    phi = angles(12)
    scans = measured(FLOW, 40, phi, contrast=0.15 + 0.03 * np.cos(2 * np.deg2rad(phi)), sigma=0.02)
    chosen, evaluate, found = search(hd.LAMINAR_FLOW.parameters), evaluator(scans), []
    for mode in ("individual", "shared"):
        last = solve(evaluate, chosen, FLOW, mode)[-1]
        found.append(last.reduced.variance(7))
    errors = uncertainty(hd.LAMINAR_FLOW.names, last.reduced, chosen.free, np.arange(12))
    found.append(abs(last.theta[0] - FLOW[0]) / np.sqrt(errors.naive[0, 0]))
    assert said == pytest.approx(found, rel=0.01), found


def test_errors_grow_with_what_is_left_free_as_the_page_says():
    said = numbers("undetermined", r"D0 is (\d+) times larger .* that of alpha (\d+) times")
    theta = np.array([2500.0, -0.3, 100.0])
    scans = measured(theta, 300, np.zeros(1), noise=False)
    reduced = reduce(evaluator(scans, side=128)(theta), "individual")
    free, held = (
        uncertainty(hd.STATIC.names, reduced, np.array(moved), np.zeros(1)).naive
        for moved in ([True, True, True], [True, True, False])
    )
    found = np.sqrt(np.diag(free) / np.diag(held))[:2]
    assert said == pytest.approx(found, rel=0.1), found
