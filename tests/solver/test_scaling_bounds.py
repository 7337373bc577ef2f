"""Bounds and priors of contrast and offset, against scipy with bounds and with one row more each."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models import STATIC
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import scaling_of, scaling_prior
from homodyne_dask.solver.state import Outcome
from tests import reference
from tests.solver.dense_problem import TIGHT_TOLERANCE, series
from tests.synthetic import (
    CREEP,
    angles,
    evaluator,
    fit_here,
    measured,
    solve,
    solve_robust,
    store,
    with_outliers,
)

CHOSEN = search(STATIC.parameters, bounds={"D_offset": (-1e6, 1e6)})
BOUNDS = {"contrast": {"bounds": (0.21, 0.28)}, "offset": {"bounds": (0.995, 1.015)}}
PRIORS = {"contrast": {"prior": (0.23, 1e-3)}, "offset": {"prior": (1.005, 1e-4)}}
BOTH = {name: BOUNDS[name] | PRIORS[name] for name in BOUNDS}


@pytest.fixture(scope="module")
def scans():
    """Contrasts and offsets of which some are beyond BOUNDS and all are off PRIORS."""
    return measured(
        CREEP, 40, angles(4), contrast=[0.2, 0.25, 0.3, 0.22], offset=[1, 1.01, 1.02, 0.99],
        sigma=0.003,
    )  # fmt: skip


def restrained(scans, mode, given):
    return scaling_of(mode, scans.phi, prior=scaling_prior(**given))


def scipys(scans, mode, loss, given):
    limits, prior = None, []
    if "bounds" in given["contrast"]:
        both = [given[name]["bounds"] for name in ("offset", "contrast")]
        limits = np.array(both).T - [1, 0]
    if "prior" in given["contrast"]:
        parts = (*given["offset"]["prior"], 1.0), (*given["contrast"]["prior"], 0.0)
        prior = [
            (b, part, mean - shift, sd)
            for b in range(len(scans.q) if mode == "individual" else 1)
            for part, (mean, sd, shift) in enumerate(parts)
        ]
    beta = np.tile([0.005, 0.24], (len(scans.q), 1))
    columns = series(scans.phi, mode)
    return reference.robust_fit(
        CREEP, scans.dense(), columns, beta, loss, 1.345, limits=limits, prior=prior
    )


@pytest.mark.long
@pytest.mark.parametrize("loss", ["linear", "huber"])
@pytest.mark.parametrize("given", [BOUNDS, PRIORS, BOTH], ids=["bounds", "priors", "both"])
@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_the_optimum_is_scipys(scans, mode, given, loss):
    if mode == "shared":  # of all bins alike, and again beyond the bounds
        scans = measured(CREEP, 40, angles(4), contrast=0.3, offset=0.99, sigma=0.003)
    scans = with_outliers(scans) if loss == "huber" else scans
    scaling = restrained(scans, mode, given)
    if loss == "linear":
        last = solve(evaluator(scans), CHOSEN, CREEP * 1.02, scaling, TIGHT_TOLERANCE)[-1]
    else:
        evaluate = evaluator(scans, scans.problem(loss=loss, loss_scale=1.345))
        last = solve_robust(evaluate, CHOSEN, CREEP * 1.02, scaling, TIGHT_TOLERANCE)[-1]
    theta, offset, contrast, cost = scipys(scans, mode, loss, given)
    assert last.outcome is Outcome.CONVERGED
    assert last.reduced.chisqr / 2 == pytest.approx(cost, rel=1e-9)
    away = last.theta - theta
    assert np.sqrt(away @ last.reduced.hessian @ away) < 1e-4
    np.testing.assert_allclose(last.reduced.offset, offset, atol=1e-8)
    np.testing.assert_allclose(last.reduced.contrast, contrast, atol=1e-7)
    assert last.reduced.at_bound.any() == ("bounds" in given["contrast"])


@pytest.mark.parametrize(
    "given",
    [
        {"contrast": {"bounds": (0.05, 0.1)}, "offset": {"bounds": (1.2, 1.3)}},
        {"contrast": {"prior": (0.05, 1e-8)}, "offset": {"prior": (1.2, 1e-8)}},
    ],
    ids=["bounds", "priors"],
)
@pytest.mark.parametrize("mode", ["individual", "shared"])
def test_what_is_pressed_or_known_for_certain_is_as_good_as_fixed(scans, mode, given):
    gram = evaluator(scans)(CREEP)
    found = reduce(gram, restrained(scans, mode, given))
    fixed = reduce(gram, scaling_of("fixed", scans.phi, contrast=0.05, offset=1.2))
    np.testing.assert_allclose(found.contrast, 0.05, rtol=1e-6)
    np.testing.assert_allclose(found.offset, 1.2, rtol=1e-6)
    assert found.chisqr == pytest.approx(fixed.chisqr, rel=1e-5)
    np.testing.assert_allclose(found.hessian, fixed.hessian, rtol=1e-4)
    errors = [
        uncertainty(STATIC.names, each, np.ones(3, bool), np.arange(4)) for each in (found, fixed)
    ]
    np.testing.assert_allclose(errors[0].naive, errors[1].naive, rtol=1e-3)
    if "bounds" in given["contrast"]:
        assert found.linear == 0
        assert np.isnan(errors[0].scaling_naive).all()
    else:
        assert (errors[0].scaling_naive < 1.1e-8).all()
    blocks = [joint_equations(of, np.ones(3, bool)).blocks.sum(0)[:3, :3] for of in (found, fixed)]
    np.testing.assert_allclose(*blocks, rtol=1e-4)


def test_a_bin_without_decay_has_the_contrast_that_is_known_beforehand(scans):
    fast = measured(CREEP, 40, angles(2), q=[0.0054, 5.0], contrast=0.25, sigma=0.003)
    found = reduce(evaluator(fast)(CREEP), restrained(fast, "individual", PRIORS))
    assert found.contrast[1] == pytest.approx(0.23)
    assert not found.undetermined.any()
    assert found.finite


def test_a_fit_says_what_stands_at_a_bound(scans, tmp_path):
    scan = store(scans, tmp_path)
    result = fit_here(
        scan, hd.STATIC, contrast={"bounds": (0.21, 0.28)}, initial={"D_offset": 1000.0}
    )
    (bound,) = result.findings.of("scaling-at-bound")
    assert (bound.about, bound.numbers) == (("contrast",), {"bins": 2, "total": 4})
    held = np.isnan(result.scaling["contrast_stderr_naive"].values)
    assert held.tolist() == [True, False, True, False]
    assert result.diagnosis.scalings is None
    result.to_json(tmp_path / "result.json")


REFUSED = [
    ("a series", {"scaling": "fourier1", "contrast": {"prior": (0.2, 0.1)}}, "do not apply to"),
    ("fixed", {"scaling": "fixed", "offset": {"bounds": (0.9, 1.1)}}, "to scaling 'fixed'"),
    ("empty bounds", {"contrast": {"bounds": (0.3, 0.2)}}, "0.3 is not below 0.2"),
    ("no deviation", {"contrast": {"prior": (0.3, 0.0)}}, "positive standard deviation"),
    ("one number", {"offset": {"prior": 1.0}}, "offset = {'prior': 1.0} cannot be used"),
]


@pytest.mark.parametrize(("word", "given", "says"), REFUSED, ids=[w for w, *_ in REFUSED])
def test_what_makes_no_sense_is_refused(scans, tmp_path, word, given, says):
    with pytest.raises(OptionError, match=says):
        hd.fit(store(scans, tmp_path), hd.STATIC, **given)
