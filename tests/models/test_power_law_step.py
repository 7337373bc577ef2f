"""Steps along a t^b + c bend with it: in the rate at three times they are straight."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.models.parameters import search
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.solver import levenberg_marquardt as lm
from tests.synthetic import asked, evaluator, measured, solve

LAW = PowerLaw((0, 1, 2), 2.0, 1.7)
TIMES = 2.0 * 1.7 ** np.arange(3)
NAMES = [p.name for p in LAMINAR_FLOW.parameters]


def rate(theta):
    a, b, c = theta
    return a * TIMES**b + c


def slope(theta, step):
    return rate(np.array(theta) + 1e-30j * np.array(step)).imag * 1e30


bounded = st.floats(-0.3, 0.3).filter(lambda x: abs(x) > 1e-3)


@given(
    b=st.floats(0.05, 2.0), sign=st.sampled_from([-1, 1]), of=st.tuples(bounded, bounded, bounded)
)
def test_the_rate_moves_in_a_straight_line_at_three_times(b, sign, of):
    theta = np.array([100.0, sign * b, 20.0])
    step = np.array(of) * [100.0, 1.0, 20.0]
    there = LAW.after(theta, step)
    assume(np.isfinite(there).all())
    assert rate(there) == pytest.approx(
        rate(theta) + slope(theta, step), rel=1e-8, abs=1e-9 * np.abs(there[[0, 2]]).max()
    )


def test_where_the_bend_leaves_the_bounds_the_offset_goes_where_the_step_says():
    chosen = search(hd.STATIC.parameters, bounds={"D_offset": (-20, 20)}, laws=(LAW,))
    theta, step = np.array([100.0, 0.5, 0.0]), np.array([60.0, -0.2, 15.0])
    assert LAW.after(theta, step)[2] < -20
    there = chosen.moved(theta, step)
    assert there[2] == 15.0
    straight = rate(theta) + slope(theta, step)
    assert rate(there)[[0, 2]] == pytest.approx(straight[[0, 2]], rel=1e-12)


@given(b=st.floats(-2.0, 2.0), of=st.tuples(bounded, bounded, bounded), plain=st.booleans())
def test_no_bend_takes_the_amplitude_far_away(b, of, plain):
    """Else a rate that rises with log t would be a t^b - a, b nearly 0 and a without end."""
    there = LAW.after(np.array([100.0, b, 20.0]), np.array(of) * [100.0, 1.0, 20.0], plain)
    assert np.isnan(there).all() or 25 < there[0] < 400


@pytest.mark.parametrize("bound", [1e4, -1e4])
def test_an_offset_that_the_step_takes_to_its_bound_stays_there(bound):
    chosen = search(hd.STATIC.parameters, laws=(LAW,))
    theta = np.array([1e5, -1.1, 0.99997 * bound])
    there = chosen.moved(theta, np.array([160.0, -0.011, bound - theta[2]]))
    assert there[2] == pytest.approx(bound, rel=1e-15)


def test_a_window_that_sees_little_of_the_power_law_is_fitted_in_few_passes():
    """Without the bend it takes four times as many, or walks back and forth until it is stopped."""
    truth = np.array([30000.0, -0.5, 500.0])
    scans = measured(truth, 80, np.zeros(4), time=50 + 0.3 * np.arange(80), sigma=0.004)
    states = solve(evaluator(scans), asked(scans), np.array([9000.0, -0.1, -2500.0]))
    plain = solve(evaluator(scans), search(scans.model.parameters), states[0].theta)
    assert states[-1].outcome is lm.Outcome.CONVERGED
    assert len(states) <= 12
    assert len(plain) > 3 * len(states)
    assert states[-1].reduced.chisqr <= plain[-1].reduced.chisqr + 1e-3


def decay(theta, t1, t2, bin):
    return theta[0] * (t2 - t1)


@pytest.mark.parametrize("law", [("a", "b"), ("a", "b", "x"), ("a", "b", "b")])
def test_a_power_law_of_other_parameters_is_a_mistake(law):
    parameters = [hd.Parameter(name, "", (0.0, 1.0)) for name in "abc"]
    with pytest.raises(OptionError, match=r"does not name three of its parameters a, b, c"):
        hd.separable(decay, parameters, power_laws=[law])


@pytest.mark.parametrize("names", [NAMES[:3], NAMES[3:6]])
def test_a_rate_whose_parameters_are_all_fixed_stays_as_it_is(names):
    theta = np.array([2500.0, -0.3, 100.0, 2e-4, 0.2, 1e-5, 5.0])
    fixed = {name: theta[NAMES.index(name)] for name in names}
    laws = LAMINAR_FLOW.laws_over(0.1 * np.arange(40))
    chosen = search(LAMINAR_FLOW.parameters, fixed=fixed, laws=laws)
    step = np.where(chosen.free, 1e-3 * theta, 0.0)
    there = chosen.moved(theta, step)
    assert np.isfinite(there).all()
    assert (there[~chosen.free] == theta[~chosen.free]).all()
