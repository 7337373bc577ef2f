"""Opposite sectors that see one speckle, and those that do not."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, SelectionError
from tests.synthetic import CREEP, measured, module_scan

START = {"fixed": {"alpha": -0.4, "D_offset": 1000.0}}
turn = module_scan(lambda: measured(CREEP, 60, np.arange(12) * 30.0, dt=0.2))
"""Twelve sectors over 360°."""


def test_twelve_sectors_over_a_turn_are_six_and_it_is_said(turn):
    result = hd.fit(turn, "static", **START)
    (few,) = result.findings.of("few-independent-bins")
    assert (few.numbers["independent"], few.numbers["bins"], few.advice) == (6, 12, "--friedel off")
    assert "6 of 12 bins" in result.report(all=True)
    half = hd.fit(turn.select(phi=(0, 150)), "static", **START)
    assert "Friedel" not in str(half)


def test_without_pairs_each_sector_is_independent(turn):
    result = hd.fit(turn, "static", friedel="off", **START)
    assert result.provenance.inputs["independent_bins"] == 12
    assert result.parameters.attrs["method"] == "cluster-robust"
    assert not result.findings.of("few-independent-bins")
    with pytest.raises(OptionError, match="friedel"):
        hd.fit(turn, "static", friedel="maybe", **START)


def test_a_comparison_takes_the_option(turn):
    two = turn.select(phi=[0, 180, 180])
    with pytest.raises(SelectionError, match="independent"):
        hd.compare_models(two, ["brownian", "power_law"])
