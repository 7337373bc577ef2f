"""Score tests of named alternatives: what is wrong with a model is found, and what to try is said."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment.alternatives import shares_with
from homodyne_dask.assessment.frame_tests import odd_frame, whole_range
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.results.data.fit_result import Alternative, ModelCheck
from homodyne_dask.solver.cluster_robust import LEVEL_OF_ALTERNATIVES
from tests.speckle_scans import RING, STILL, Photons, seen_twice
from tests.synthetic import angles, fit_here, measured, store

RINGS = replace(RING, q=(0.007, 0.01, 0.014))
ANGLES = replace(RING, q=(0.01,) * 6, phi=(-80.0, -50.0, -20.0, 10.0, 40.0, 70.0))
WEAK_SHEAR = np.array([9e3, -0.3, 300.0, 8e-5, 0.0, 0.0, 5.0])
WRONG = {
    "stretched": (replace(RINGS, stretching=0.7), hd.POWER_LAW, "stretching"),
    "flow": (replace(ANGLES, theta=WEAK_SHEAR), hd.STATIC, "shear"),
    "power of q": (replace(RINGS, q_power=1.5, frames=200), hd.POWER_LAW, "power_of_q"),
    "one hot angle": (replace(ANGLES, hotter=0.4, frames=150), hd.POWER_LAW, "bin"),
    "one frame": (replace(ANGLES, flash=0.035), hd.STATIC, "frame"),
}
"""Deviations that means over cells do not show, each with what explains it."""


def checked(folder, photons: Photons, model, seed=0, **options) -> ModelCheck:
    check = fit_here(store(photons.scan(seed), folder), model, **options).diagnosis.check
    assert check is not None
    return check


THREE = replace(RING, q=(0.01,) * 3, phi=(0.0, 60.0, 120.0), pixels=600)
AGEING = replace(THREE, theta=np.array([2e4, -0.3, 1000.0]))
SLOWER = replace(THREE, J=lambda x: 2e4 * np.exp(-1.5 * x))
OTHERWISE = {
    "rate falls": (SLOWER, hd.BROWNIAN, "rate"),
    "rate of one ring rises": (
        replace(RING, pixels=600, J=lambda x: 5e3 * np.exp(1.5 * x)), hd.BROWNIAN, "rate"
    ),
    "rate steps": (replace(THREE, J=lambda x: np.where(x > 0.5, 2e4, 1e4)), hd.BROWNIAN, "rate"),
    "vibration": (replace(THREE, vibration=0.3), hd.BROWNIAN, "lag"),
    "most is lost": (replace(AGEING, lost=0.7), hd.POWER_LAW, "jump"),
    "beam fades": (replace(AGEING, fading=0.2), hd.POWER_LAW, "baseline"),
    "own average": (replace(AGEING, own_average=True), hd.POWER_LAW, "own_average"),
}  # fmt: skip


@pytest.mark.long
def test_the_fit_that_is_advised_is_one_that_the_program_makes(tmp_path):
    scan = store(SLOWER.scan(1), tmp_path)
    (advised,) = fit_here(scan, hd.BROWNIAN).findings.of("rate-changes")
    assert advised.advice == f"homodyne-dask fit {scan.path} --model brownian --rates spline"
    prepare(scan, hd.BROWNIAN, rates="spline")
    assert f"`homodyne-dask fit {scan.path} --model power_law` that it is a power of age" in str(
        advised
    )
    scan = store(replace(RING, vibration=0.3).scan(0), tmp_path, "one")
    (lag,) = fit_here(scan, hd.BROWNIAN).findings.of("misfit-pattern")
    assert lag.advice == f"homodyne-dask fit {scan.path} --model auto"


@pytest.mark.long
@pytest.mark.parametrize("word", WRONG | OTHERWISE)
def test_a_wrong_shape_is_misfit_and_named(word, tmp_path):
    photons, model, name = (WRONG | OTHERWISE)[word]
    check = checked(tmp_path, photons, model)
    assert check.misfit
    assert check.alternative is not None
    assert check.alternative.name == name
    assert check.alternative.p_value < LEVEL_OF_ALTERNATIVES
    assert word != "stretched" or check.alternative.size == pytest.approx(-0.3, abs=0.2)


@pytest.mark.long
def test_what_the_model_has_among_its_parameters_is_no_alternative(tmp_path):
    right = hd.MODELS["stretched_q"]
    check = checked(tmp_path, WRONG["stretched"][0], right)
    assert not check.misfit, check


@pytest.mark.long
def test_the_exponent_that_is_advised_where_rates_age_is_of_a_model_that_ages(tmp_path):
    scan = store(replace(THREE, stretching=0.7).scan(0), tmp_path)
    (exponent,) = fit_here(scan, hd.POWER_LAW).findings.of("other-exponent")
    assert exponent.advice == f"homodyne-dask fit {scan.path} --model stretched_ageing"


@pytest.mark.long
def test_the_fit_that_is_advised_has_the_frozen_part_and_its_prior_of_the_offset(tmp_path):
    gel = Photons((2e4, -0.6, 0), 100, pixels=3000, frozen=0.5)
    scan = store(gel.scan(3), tmp_path)
    result = hd.fit(scan, "frozen + brownian", offset="prior=1:0.001")
    (advised,) = result.findings.of("rate-changes")
    fit = f"homodyne-dask fit {scan.path} --model 'frozen + power_law' --offset prior=1:0.001"
    assert advised.numbers["formula"] == fit
    assert not hd.fit(scan, "frozen + power_law", offset="prior=1:0.001").misfit


def test_a_frame_is_compared_with_those_beside_it_where_these_are_known(tmp_path):
    scan = store(replace(RING, flash=0.2).scan(0), tmp_path)
    odd = odd_frame(scan)
    assert odd is not None
    assert odd.frame == 50
    assert odd.excess == pytest.approx(0.2, abs=0.05)
    neighbour = odd_frame(scan.select(exclude={"frames": (51, 52)}))
    assert neighbour is not None  # 50 is one of four that 48 is compared with
    assert (neighbour.frame, neighbour.excess) == (48, pytest.approx(-0.2 / 4, abs=0.03))
    assert odd_frame(scan.select(frames=(40, 60))) is None
    uneven = replace(scan, time=scan.time**1.01)
    assert odd_frame(uneven) is None


@pytest.mark.parametrize("alpha", [-1.3, -1.6, -1.9])
def test_no_frame_is_odd_where_rates_fall_by_decades_at_first(alpha, tmp_path):
    falling = measured([20000, alpha, 1000.0], 150, angles(6), dt=0.1, sigma=0.01)
    odd = odd_frame(store(falling, tmp_path))
    assert odd is not None
    assert odd.p * odd.tests > 0.05
    falling.c2[:, 5] += 0.01
    falling.c2[:, :, 5] += 0.01
    odd = odd_frame(store(falling, tmp_path, "odd"))
    assert odd is not None
    assert (odd.frame, odd.excess) == (5, pytest.approx(0.01, abs=0.004))


@pytest.mark.parametrize("place", [(40, 42), (30, 49), (5, 5)])
def test_all_frames_that_differ_are_named_wherever_they_were_found(place, tmp_path):
    photons = measured([20000, -1.3, 1000.0], 150, angles(6), dt=0.1, sigma=0.01)
    light = np.ones(150)
    light[place[0] : place[1] + 1] = 1.01
    photons.c2[:] *= np.outer(light, light)
    scan = store(photons, tmp_path)
    near = Alternative("frames", (place[0] - 3, place[0] + 2), 0.1, 0.1, 1e-5)
    named = whole_range(scan, near, contrast=0.3)
    assert named.place == place
    assert named.size == pytest.approx(0.01 * 1.1 / 0.3, rel=0.3)
    # a bin that lacks some of these frames does not cut them in two
    photons.c2[1, place[0] : place[0] + 2] = photons.c2[1, :, place[0] : place[0] + 2] = np.nan
    assert whole_range(store(photons, tmp_path, "some"), near, contrast=0.3).place == place
    jump = near._replace(name="jump")
    assert whole_range(scan, jump, contrast=0.3) is jump


PRODUCT = hd.separable(
    lambda theta, t1, t2, bin: jnp.exp(-theta[0] * theta[1] * (t2 - t1)),
    [hd.Parameter("a", "1/s", (0.05, 50.0)), hd.Parameter("b", "", (0.05, 50.0))],
    name="product",
)
"""A decay of which no data tell its two parameters apart."""


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(("stretching", "alternative"), [(1.0, None), (0.6, "stretching")])
def test_a_model_is_checked_where_the_data_do_not_determine_all_parameters(
    stretching, alternative, tmp_path
):
    photons = replace(RING, q=(0.01,) * 3, phi=(0.0, 40.0, 80.0), stretching=stretching)
    result = hd.fit(store(photons.scan(1), tmp_path), PRODUCT)
    check = result.diagnosis.check
    assert result.outcome is hd.Outcome.SINGULAR
    assert check is not None
    assert (check.alternative and check.alternative.name) == alternative
    assert check.misfit == (alternative is not None)
    assert not np.isfinite(result.parameters["stderr"].values).any()
    assert "product fitted to" in str(result)


@pytest.mark.long
def test_opposite_bins_of_one_speckle_tell_as_much_as_one_of_them(tmp_path):
    scans = replace(RINGS, frames=80).scan(0)
    of_one_scan, of_both = (
        fit_here(store(made, tmp_path), hd.BROWNIAN).diagnosis.power_of_q
        for made in (scans, seen_twice(scans))
    )
    assert of_one_scan is not None
    assert of_both is not None
    assert of_both.stderr == pytest.approx(of_one_scan.stderr, rel=0.1)
    assert of_both.p == pytest.approx(of_one_scan.p, abs=0.1)


@pytest.mark.long
def test_a_smoothness_that_is_given_too_large_is_misfit_and_named(tmp_path):
    photons = Photons(
        STILL, frames=150, q=(0.0054,) * 4, phi=(-80.0, -40.0, 0.0, 40.0), spacing=0.53,
        J=lambda x: 1500 * (1 + 4 * np.exp(-x / 0.15)),
    )  # fmt: skip
    scan = store(photons.scan(1), tmp_path)
    for options, name in (({}, None), ({"smoothness": {"J": 1e9}}, "smoothness")):
        check = fit_here(scan, hd.STATIC, rates="spline", **options).diagnosis.check
        assert check is not None
        assert (check.alternative and check.alternative.name) == name


def test_shares_of_pairs_with_some_frames_are_counted():
    cells = np.array([(0, 8, 1, 3), (0, 8, 3, 9), (0, 5, 1, 4), (5, 8, 2, 6)])
    counted = [
        np.mean([4 <= t < 7 or 4 <= t + lag < 7 for t in range(*ages) for lag in range(*lags)])
        for ages, lags in zip(cells[:, :2], cells[:, 2:], strict=True)
    ]
    np.testing.assert_allclose(shares_with(cells, 4, 7), counted, rtol=1e-14)


@pytest.mark.long
def test_without_the_odd_frame_the_model_describes_the_data(tmp_path):
    scan = store(WRONG["one frame"][0].scan(0), tmp_path)
    check = fit_here(scan.select(exclude={"frames": (50, 51)}), hd.STATIC).diagnosis.check
    assert check is not None
    assert not check.misfit, check
