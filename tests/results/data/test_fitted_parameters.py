"""The parameters one by one and as a table of pandas, c2 at given times, intervals at any level."""

import numpy as np
import pytest
from scipy.stats import t as student

import homodyne_dask as hd
from homodyne_dask.document.blocks import as_text
from homodyne_dask.errors import HomodyneDaskError, OptionError, SelectionError
from homodyne_dask.results.views.report_content import intervals_of
from tests.results import made_results as made
from tests.synthetic import FLOW, angles, measured, module_scan

scan = module_scan(lambda: measured(FLOW, 20, angles(3)))


def test_params_are_the_parameters_one_by_one():
    result = made.changed(
        made.flow_result(), config=made.flow_result().config | {"bounds": {"alpha": [-3.0, 0.5]}}
    )
    D0, alpha, fixed = (result.params[name] for name in ("D0", "alpha", "gamma_dot_t_offset"))
    assert (D0.value, D0.stderr, D0.stderr_naive, D0.dof) == (68612.3, 1532.0, 912.0, 8.0)
    assert (D0.method, fixed.method) == ("cluster-robust", "")
    assert made.by_speckle(result).params["D0"].method == "speckle"
    assert (D0.unit, D0.vary, D0.at_bound) == ("Å²/s", True, False)
    assert (D0.min, D0.max) == hd.LAMINAR_FLOW.parameters[0].bounds
    assert (alpha.min, alpha.max) == (-3.0, 0.5)
    assert (fixed.vary, fixed.stderr, fixed.dof) == (False, None, None)
    assert list(result.params) == list(hd.LAMINAR_FLOW.names)
    values = [one.value for one in result.params.values()]
    assert values == result.parameters["value"].values.tolist()
    assert len(result.params) == 7
    assert "D0" in result.params
    assert "D" not in result.params


@pytest.mark.parametrize("name", ["DO", 3, None])
def test_an_unknown_parameter_is_named_and_a_mapping_s_get_finds_none(name):
    with pytest.raises(KeyError) as caught:
        made.flow_result().params[name]
    assert isinstance(caught.value, HomodyneDaskError)
    assert str(caught.value).startswith(f"the fit has no parameter {name!r}; ")
    assert made.flow_result().params.get(name) is None


def test_bounds_that_are_not_known_are_none():
    unknown_q = made.static_result().params
    assert (unknown_q["D0"].unit, unknown_q["D0"].min, unknown_q["D0"].max) == ("1/s", None, None)
    assert unknown_q["alpha"].min == hd.STATIC.parameters[1].bounds[0]
    given = made.changed(
        made.static_result(), config=made.static_result().config | {"bounds": {"D0": (0.0, 2.0)}}
    )
    assert (given.params["D0"].min, given.params["D0"].max) == (0.0, 2.0)
    lost = made.changed(
        made.flow_result(),
        config=made.flow_result().config | {"model": "mine", "model_digest": "00"},
    )
    assert {(one.min, one.max) for one in lost.params.values()} == {(None, None)}


def test_bounds_of_a_rate_of_free_form_are_those_of_its_coefficients():
    base, names = made.static_result(), [f"J_{n + 1}" for n in range(4)]
    config = {"model": "static_free", "splines": {"J": {"size": 4, "first": 0.0, "last": 1.0}}}
    table = base.parameters.isel(param=[0] * 4).assign_coords(param=names)
    table["unit"] = ("param", ["Å²/s"] * 4)
    given = base.config | config | {"bounds": {"J": (1.0, 1e5)}}
    params = made.changed(base, parameters=table, config=given).params
    assert {(one.min, one.max) for one in params.values()} == {(1.0, 1e5)}


def test_a_summary_is_a_frame_with_a_row_for_each_parameter():
    frame = made.flow_result().summary()
    assert frame.index.name == "parameter"
    assert list(frame.index) == list(hd.LAMINAR_FLOW.names)
    assert frame.loc["D0", "stderr"] == 1532.0
    assert frame.loc["D0", "unit"] == "Å²/s"
    assert frame.loc["D0", "method"] == "cluster-robust"
    assert np.isnan(frame.loc["gamma_dot_t_offset", "dof"])
    numbers = ["value", "stderr", "stderr_naive", "dof", "min", "max"]
    assert {str(frame[name].dtype) for name in numbers} == {"float64"}
    assert frame["vary"].tolist() == [True] * 5 + [False, True]


def test_c2_at_times_is_that_of_the_model_at_all_pairs(scan):
    result, time = made.flow_result_of(scan), scan.time
    wanted = result.model().values
    np.testing.assert_allclose(result.eval(time[:, None], time), wanted, rtol=1e-14)
    label = int(scan.label[1])
    one = result.eval(time[3], time[4:], label=label)
    np.testing.assert_allclose(one, wanted[1, 3, 4:], rtol=1e-14)
    assert result.eval(time[3], time[4], label).shape == ()
    np.testing.assert_array_equal(result.eval(time[4:], time[3], label, scan), one)
    between = result.eval(time[3], (time[4] + time[5]) / 2, label)
    assert wanted[1, 3, 5] < between < wanted[1, 3, 4]


def test_c2_at_an_angle_is_that_of_its_bins_with_a_band_by_the_errors(scan):
    result, time = made.flow_result_of(scan), scan.time
    phi, label = float(scan.phi[1]), int(scan.label[1])
    c2, low, high = result.eval(time[3], time[4:9], phi=phi, band=95)
    np.testing.assert_array_equal(c2[0], result.eval(time[3], time[4:9], label))
    assert c2.shape == low.shape == high.shape == (1, 5)
    np.testing.assert_allclose(high - c2, c2 - low, rtol=1e-6)
    assert (high > c2).all()
    narrow = result.eval(time[3], time[4:9], phi=phi, band=68.27)
    wider = (high - low) / (narrow[2] - narrow[1])
    fewest = float(np.nanmin(result.parameters["dof"]))
    np.testing.assert_allclose(
        wider, student.ppf(0.975, fewest) / student.ppf(0.84135, fewest), rtol=1e-3
    )


MISTAKES = [
    ("outside", {"t1": 1e9}, OptionError, r"t1 = 1e\+09 s is outside the scan, 0 to 6\.33333 s"),
    ("nothing", {"t2": np.nan}, OptionError, "t2 = nan s is outside"),
    ("text", {"t2": "a"}, OptionError, "t2 = 'a': give times in seconds"),
    ("shapes", {"t1": [0, 1], "t2": [0, 1, 2]}, OptionError, r"t1 \(2,\) and t2 \(3,\)"),
    ("label", {"label": 77}, SelectionError, "no fitted bin has the label 77; choose from "),
    ("no errors", {"band": 95}, OptionError, "lacks standard errors of some parameters"),
]


@pytest.mark.parametrize(
    ("word", "given", "error", "says"), MISTAKES, ids=[w for w, *_ in MISTAKES]
)
def test_mistakes_in_eval_are_named(scan, word, given, error, says):
    result = made.flow_result_of(scan)
    with pytest.raises(error, match=says):
        (made.changed(result, covariance=None) if word == "no errors" else result).eval(
            **{"t1": 0.0, "t2": 1.0} | given
        )


@pytest.mark.parametrize("percent", [0, 100, -5, float("nan")])
def test_a_percentage_that_makes_no_interval_is_refused(percent):
    assert np.isnan(made.static_result().ci()["low"]).all()
    row = as_text(intervals_of(made.static_result(), 95)).splitlines()[2]
    assert row.split()[:3] == ["D0", "-", "-"]
    with pytest.raises(OptionError, match="give a number between"):
        made.flow_result().ci(percent)
