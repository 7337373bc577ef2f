"""Models of c2 that beats: fits from nothing to counted photons of a sample that moves on a reference."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import SelectionError
from homodyne_dask.kernels import separable_backend
from homodyne_dask.kernels.autodiff import separable_point
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.solver.speckle import regular
from tests.beating_scans import ANGLES, DT, TWO, Q, photographed
from tests.synthetic import measured, module_scan, started_as_given, store

BEATING = hd.MODELS["beating"]


def free(model, truth):
    """The values of the parameters that the model fits, inside their bounds."""
    fitted = [p for p in model.parameters if p.constant is None]
    return {p.name: float(np.clip(truth[p.name], *p.bounds)) for p in fitted}


TRUTH = {
    "D0_ref": 0.0, "alpha_ref": 0.0, "D0_sample": 8000.0, "alpha_sample": -0.2, "v0": 1800.0, "v_beta": 0.1,
    "fraction": 0.4, "fraction_growth": 0.0, "phi0": -47.0,
}  # fmt: skip
"""Up to 0.35 turns per frame."""
flowing = module_scan(lambda: photographed(TRUTH, 1, 64, ANGLES[::2]))


@pytest.mark.long
def test_a_fit_from_nothing_finds_the_velocity_and_the_fraction(flowing):
    notes = []
    result = hd.fit(
        flowing,
        "beating",
        friedel="off",
        callbacks=[lambda e: notes.append(getattr(e, "note", ""))],
    )
    assert result.converged
    with started_as_given():
        at_truth = hd.fit(flowing, "beating", friedel="off", initial=free(BEATING, TRUTH))
    assert result.chisqr < at_truth.chisqr + 0.1
    value = {name: result.params[name].value for name in BEATING.names}
    assert value["v0"] == pytest.approx(TRUTH["v0"], rel=0.02)
    assert value["phi0"] == pytest.approx(TRUTH["phi0"], abs=2)
    assert value["fraction"] == pytest.approx(TRUTH["fraction"], abs=0.1)
    assert any("above 3142 Å/s along q at q = 0.01 1/Å, appear slower" in note for note in notes)
    assert not result.findings.of("exchangeable")


@pytest.mark.long
def test_a_fit_weighted_by_the_noise_finds_them_from_nothing_too(flowing):
    result = hd.fit(flowing, "beating", friedel="off", weighting="speckle")
    assert result.converged
    for name, within in (("v0", 30.0), ("phi0", 2.0), ("fraction", 0.1)):
        assert result.params[name].value == pytest.approx(TRUTH[name], abs=within)


def test_an_aliased_speed_is_said_before_the_fit_and_after_it(flowing):
    notes = []
    far = free(BEATING, TRUTH) | {"v0": 6000.0, "v_beta": 0.0}
    with started_as_given():
        result = hd.fit(
            flowing, "beating", initial=far, max_passes=1,
            callbacks=[lambda e: notes.append(getattr(e, "note", ""))],
        )  # fmt: skip
    assert any(
        "v0 = 6000 moves the fringes of 2 of 3 bins by up to 0.93 periods" in n for n in notes
    )
    (aliased,) = result.findings.of("fringes-aliased")
    assert (aliased.numbers["fast"], aliased.numbers["bins"]) == (2, 3)


def test_a_damped_cosine_is_a_quick_look_at_the_fringes_of_one_bin(flowing):
    result = hd.fit(flowing.select(phi=(-5, 5)), "damped_cosine")
    t = flowing.time[1:]
    turns = Q * TRUTH["v0"] * np.cos(np.deg2rad(TRUTH["phi0"])) * t ** TRUTH["v_beta"] / (2 * np.pi)
    assert result.converged
    assert turns.min() < result.params["frequency"].value < turns.max()


def test_the_parameters_of_xpcsjax_give_the_same_c2():
    truth = TRUTH | {"D0_ref": 500.0, "alpha_ref": 0.3}
    theirs = hd.MODELS["two_component_xpcsjax"]
    values = dict.fromkeys(theirs.names, 0.0) | {
        k: v for k, v in truth.items() if k in theirs.names
    }
    values |= {"f0": truth["fraction"], "phi0_het": -truth["phi0"]}
    time = DT * np.arange(30)
    for phi in (0.0, 70.0):
        ours, other = (
            hd.predict(model, given, time, q=Q, phi=phi, contrast=0.3, offset=1.0)
            for model, given in ((TWO, truth), (theirs, values))
        )
        assert np.abs(ours - other).max() < 1e-9


@pytest.mark.long
def test_exchanged_components_give_the_same_c2_and_that_is_said(tmp_path):
    truth = TRUTH | {"D0_ref": 500.0, "alpha_ref": 0.3, "fraction_growth": 0.1}
    exchanged = truth | {
        "D0_ref": truth["D0_sample"], "alpha_ref": truth["alpha_sample"], "D0_sample": 500.0,
        "alpha_sample": 0.3, "fraction": 1 - truth["fraction"], "fraction_growth": -0.1,
    }  # fmt: skip
    time = DT * np.arange(30)
    one, other = (
        hd.predict(TWO, given, time, q=Q, phi=20.0, contrast=0.3, offset=1.0)
        for given in (truth, exchanged)
    )
    assert np.abs(one - other).max() < 1e-12
    scan = store(photographed(truth, 0, 40, [0.0, 90.0]), tmp_path)
    assert hd.fit(scan, TWO, initial=truth, max_passes=1).findings.of("exchangeable")
    fixed = hd.fit(scan, TWO, initial={k: v for k, v in truth.items() if k != "D0_ref"},
                   fixed={"D0_ref": 500.0}, max_passes=1)  # fmt: skip
    assert not fixed.findings.of("exchangeable")


def test_fringes_need_the_angles_of_the_bins(tmp_path):
    unknown = measured([1e4, 0, 0], phi=(np.nan,), gap=None)
    with pytest.raises(SelectionError, match="φ"):
        hd.fit(store(unknown, tmp_path), "beating")


def test_a_whole_turn_over_the_frames_of_a_level_is_not_taken_for_none():
    fringes = hd.MODELS["damped_cosine"]
    for frequency, fine_enough in ((1 / (3 * DT), False), (0.01 / DT, True)):
        at = separable_point(Problem(fringes), np.array([1e-3, frequency]), DT * np.arange(200))
        found = separable_backend.adequate(at, np.array([Q]), np.zeros(1), (0, 200), 4)
        assert found is fine_enough


def test_noise_of_what_is_no_correlation_of_fields_is_made_positive():
    covariance = np.array([[1.0, 1.2], [1.2, 1.0]])
    assert np.linalg.eigvalsh(regular(covariance))[0] > 0
    fine = np.diag([1.0, 2.0])
    assert regular(fine) == pytest.approx(fine, abs=1e-6)
