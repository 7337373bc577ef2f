"""Causes that are named where other things look like them: profile of the flow, first lag, beam, flow."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment.flow_profile import AT_WALL
from homodyne_dask.assessment.frame_tests import beam_noise
from tests.verification.cases import Setup
from tests.verification.measure import store_of
from tests.verification.rows import AGEING, CREEPING, FLOW, LINEAR, PARABOLIC
from tests.verification.speckle import Detector

PROFILES = Setup(LINEAR, "couette", sectors=9, **FLOW)
THREE = Setup(AGEING, "power_law", sectors=3)
SLOW = replace(LINEAR, gamma_dot_t0=5e-5)


def fitted(setup, folder, seed=0) -> tuple[hd.Scan, hd.FitResult]:
    scan = store_of(setup.scan(np.random.default_rng(seed)), setup, folder)
    return scan, hd.fit(scan, setup.model, **setup.options)


@pytest.mark.parametrize(
    ("motion", "model", "other", "ratio"),
    [
        pytest.param(PARABOLIC, "couette", "poiseuille", AT_WALL, marks=pytest.mark.long),
        pytest.param(LINEAR, "poiseuille", "couette", 1 / AT_WALL, marks=pytest.mark.long),
    ],
)
def test_the_other_profile_is_named_and_the_model_that_has_it(
    motion, model, other, ratio, tmp_path
):
    setup = replace(PROFILES, motion=motion, model=model)
    scan, result = fitted(setup, tmp_path)
    (profile,) = result.findings.of("other-profile")
    command = f'homodyne-dask fit {scan.path} --model {other} --gap "200 um"'
    assert profile.advice == command
    assert profile.numbers["ratio"] == pytest.approx(ratio)
    again = hd.fit(scan, other, **setup.options)
    assert not again.findings.of("other-profile", "profile-unknown")
    rates = (r.params["gamma_dot_t0"].value for r in (again, result))
    assert next(rates) / next(rates) == pytest.approx(ratio, rel=0.1)


def test_a_profile_that_the_data_do_not_tell_is_noted_once(tmp_path):
    _, result = fitted(replace(PROFILES, motion=SLOW), tmp_path)
    (unknown,) = result.findings.of("profile-unknown")
    assert not result.misfit
    assert unknown.severity == "note"
    assert unknown.numbers["model"] == "poiseuille"
    assert "3.9 times as large" in str(unknown)


@pytest.mark.parametrize(
    ("name", "other"),
    [("couette", "poiseuille"), ("laminar_flow", "poiseuille_flow"),
     ("laminar_flow_free_J", "poiseuille_flow_free_J")],
)  # fmt: skip
def test_models_of_the_two_profiles_are_pairs(name, other):
    model = hd.MODELS[name]
    assert model.with_other_profile == hd.MODELS[other]
    assert model.with_other_profile.with_other_profile == model


@pytest.mark.long
def test_afterglow_is_named_and_gone_without_the_first_lag(tmp_path):
    scan, result = fitted(replace(THREE, detector=Detector(afterglow=0.07)), tmp_path)
    (first,) = result.findings.of("first-lag")
    assert first.numbers["size"] > 0
    assert first.advice == f"homodyne-dask fit {scan.path} --model power_law --min-lag 2"
    assert not hd.fit(scan, "power_law", min_lag=2).misfit


@pytest.mark.long
@pytest.mark.parametrize("bins", [2, 7])
def test_noise_of_the_beam_is_named_and_not_single_frames(bins, tmp_path):
    detector = Detector(beam=0.08, divided=False)
    scan, result = fitted(replace(THREE, detector=detector, sectors=bins), tmp_path)
    (noise,) = result.findings.of("beam-noise")
    assert noise.numbers["size"] == pytest.approx(0.08, rel=0.3)
    assert not result.findings.of("frames-differ")
    # bins of one speckle, which have their noise in common, tell nothing of the beam
    assert beam_noise(scan, np.zeros(bins, int)) is None


@pytest.mark.parametrize(("stop", "level"), [(43, 1.4), (52, 1.12)])
def test_a_few_bright_frames_are_no_noise_of_the_beam(stop, level, tmp_path):
    frames = np.arange(100)
    light = np.where((frames >= 40) & (frames < stop), level, 1.0)
    detector = Detector(light=light, divided=False)
    scan, result = fitted(replace(THREE, detector=detector, sectors=7), tmp_path)
    assert result.findings.of("frames-differ")
    assert beam_noise(scan, np.arange(7)) is None


def test_flow_is_named_before_bounds_that_it_reaches(tmp_path):
    motion = replace(CREEPING, D0=3e4, alpha=-0.9, D_offset=2e4)
    _, result = fitted(Setup(motion, "static", sectors=8), tmp_path)
    assert result.parameters["at_bound"].any()
    assert result.findings.at_least("warning").codes == ("model-misfit", "one-direction")
