"""The options of a fit: each defined once, found everywhere, used or refused."""

import numpy as np
import pytest
import yaml

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.request.options import FitOptions
from tests.synthetic import CREEP, FLOW, angles, measured, module_scan

OPTIONS = FitOptions.options()
scan = module_scan(lambda: measured(FLOW[:3], 30, angles(4)))


def test_an_option_that_there_is_not_is_refused_with_the_nearest(scan):
    with pytest.raises(TypeError, match=r"argument 'los'; did you mean 'loss'\?"):
        hd.fit(scan, hd.STATIC, los="huber")


def test_the_record_has_every_option_and_names_those_changed(scan):
    config = prepare(scan, hd.STATIC, max_passes=7, bounds={"D0": (1.0, 1e12)}).config
    assert set(OPTIONS) < set(config)
    assert config["changed"] == ["bounds", "max_passes"]
    assert prepare(scan, hd.STATIC).config["changed"] == []


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.choices])
def test_a_value_that_is_not_one_of_the_choices_is_refused(scan, name):
    with pytest.raises(HomodyneDaskError, match=rf"{name} 'xyzzy' is unknown; choose from "):
        prepare(scan, hd.STATIC, **{name: "xyzzy"})


@pytest.mark.long
def test_values_of_numpy_are_those_of_python_and_a_checkpoint_holds_them(scan, tmp_path):
    """What JSON cannot hold would end the fit after its first pass."""
    of_numpy = {
        "contrast": {"prior": np.array([0.25, 0.125], np.float32), "bounds": np.array([0, 1])},
        "min_lag": np.int64(2),
        "starts": np.int64(2),
        "max_passes": np.int64(50),
        "fixed": {"alpha": np.float32(-0.5)},
        "prior": {"D0": np.array([2500, 300], np.float32)},
    }
    of_python = {
        "contrast": {"prior": (0.25, 0.125), "bounds": (0.0, 1.0)}, "min_lag": 2, "starts": 2,
        "max_passes": 50, "fixed": {"alpha": -0.5}, "prior": {"D0": (2500, 300)},
    }  # fmt: skip
    result = hd.fit(scan, hd.STATIC, checkpoint=tmp_path / "fit.ckpt", **of_numpy)
    same = hd.fit(scan, hd.STATIC, **of_python)
    assert result.chisqr == same.chisqr
    result.to_json(tmp_path / "result.json")
    assert hd.load_result(tmp_path / "result.json").config["starts"] == 2


READ = [
    ("profile", "D0", ("D0",)),
    ("bounds", {"D0": (0, np.inf)}, {"D0": (0.0, np.inf)}),
    ("contrast", {"bounds": (0, np.inf)}, {"bounds": (0.0, np.inf)}),
    ("prior", {"D0": ("normal", 2, 3)}, {"D0": ("normal", 2, 3)}),
    ("max_passes", "1e2", 100),  # YAML reads it as text
    ("max_passes", "1_0", None),
    ("bounds", (1, 2), None),
    ("bounds", "D0=1", None),
]


@pytest.mark.parametrize(("name", "given", "value"), READ)
def test_an_option_is_read_as_it_is_written_or_refused(name, given, value):
    if value is not None:
        assert getattr(FitOptions(**{name: given}), name) == value
        return
    with pytest.raises(OptionError, match=f"{name}.* cannot be used: give"):
        FitOptions(**{name: given})


START = {"fixed": {"alpha": -0.4, "D_offset": 1000.0}}
turn = module_scan(lambda: measured(CREEP, 60, np.arange(12) * 30.0, dt=0.2))
"""Twelve sectors over 360°."""


@pytest.mark.long
def test_twelve_sectors_over_a_turn_are_six_and_it_is_said(turn):
    result = hd.fit(turn, "static", **START)
    (few,) = result.findings.of("few-independent-bins")
    assert (few.numbers["independent"], few.numbers["bins"], few.advice) == (6, 12, "--friedel off")
    assert "6 of 12 bins" in result.report(all=True)
    half = hd.fit(turn.select(phi=(0, 150)), "static", **START)
    assert "Friedel" not in str(half)


@pytest.mark.long
def test_without_pairs_each_sector_is_independent(turn):
    result = hd.fit(turn, "static", friedel="off", **START)
    assert result.provenance.inputs["independent_bins"] == 12
    assert result.parameters.attrs["method"] == "cluster-robust"
    assert not result.findings.of("few-independent-bins")
    with pytest.raises(OptionError, match="friedel"):
        hd.fit(turn, "static", friedel="maybe", **START)


@pytest.mark.long
def test_a_comparison_takes_the_option(turn):
    two = turn.select(phi=[0, 180, 180])
    both = hd.compare_models(two, ["brownian", "power_law"])
    apart = hd.compare_models(two, ["brownian", "power_law"], friedel="off")
    assert (both.bins, apart.bins) == (1, len(two.bins))


def test_every_option_reaches_the_request(scan, monkeypatch):
    seen = {}

    def prepared(data, model, **given):
        seen.update(given)
        raise HomodyneDaskError("enough")

    monkeypatch.setattr("homodyne_dask.fitting.fit.prepare", prepared)
    given = {name: yaml.safe_load(option.example) for name, option in OPTIONS.items()}
    with pytest.raises(HomodyneDaskError, match="enough"):
        hd.fit(scan, hd.STATIC, **given)
    assert seen == given
