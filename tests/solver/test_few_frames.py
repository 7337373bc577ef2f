"""Fits of three to six frames: hardly more data than parameters, and often fewer."""

import warnings
from itertools import product

import numpy as np
import pytest

from homodyne_dask.models.parameters import search
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import scaling_of
from homodyne_dask.solver.state import Outcome
from tests.synthetic import FLOW, angles, asked, evaluator, measured, solve

TRUTHS = {
    "static": [60000.0, -1.0, 500.0],
    "creep": [20000.0, -0.3, 500.0],
    "slow": [600.0, -0.3, 5.0],
    "flow": FLOW,
}
MODES = [("individual", 2), ("individual", 9), ("shared", 4), ("shared", 9), ("fourier1", 5)]
CASES = list(product(("static", "creep", "flow"), (3, 4, 5, 6), MODES, (True, False)))


def fitted(number, truth, frames, mode, bins, noise):
    """All states of a fit from beside the truth."""
    theta = np.array(TRUTHS[truth])
    scans = measured(theta, frames, angles(bins), sigma=0.01, noise=noise, seed=number)
    return solve(
        evaluator(scans, side=8, padded=9), asked(scans), theta * 1.1, scaling_of(mode, scans.phi)
    )


def mistakes(number, truth, frames, mode_and_bins, noise):
    """What a fit of few frames must not do."""
    mode, bins = mode_and_bins
    states = fitted(number, truth, frames, mode, bins, noise)
    last = states[-1]
    found = [state.outcome.name for state in states if (state.reduced.chisqr_per_bin < 0).any()]
    if last.outcome not in (Outcome.CONVERGED, Outcome.SINGULAR):
        found.append(last.outcome.name)
    everything = np.ones(len(last.theta), bool)
    names = tuple("abcdefg"[: len(everything)])
    errors = uncertainty(names, last.reduced, everything, np.arange(bins))
    if len(everything) + last.reduced.linear > last.reduced.ndata:
        if errors.naive is not None:
            found.append("errors of more parameters than data")
        if last.outcome is Outcome.CONVERGED:
            found.append("converged with more parameters than data")
    return found


@pytest.mark.parametrize("which", range(0, 120, 17))
def test_a_fit_of_few_frames_ends_and_claims_no_more_than_its_data_hold(which):
    assert len(CASES) == 120
    assert mistakes(which, *CASES[which]) == []


@pytest.mark.slow
def test_so_do_all_of_them():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {case: wrong for n, case in enumerate(CASES) if (wrong := mistakes(n, *case))}
    assert found == {}


RANKS = [
    (truth, frames, mode, bins)
    for truth, (frames, bins), mode in product(
        TRUTHS, ((3, 1), (3, 2), (3, 9), (4, 1)), ("individual", "shared")
    )
    if not (truth != "flow" and frames == 4 and mode == "shared")
]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize(("truth", "frames", "mode", "bins"), RANKS)
def test_rounding_is_taken_for_no_direction_that_the_data_determine(
    truth, frames, mode, bins, precision
):
    """Bins without shear have one f: n(n - 1)/2 values, of which contrast and offset take two."""
    theta, pairs = np.array(TRUTHS[truth]), frames * (frames - 1) // 2
    scans = measured(theta, frames, angles(bins), sigma=0.01, seed=frames)
    problem = scans.problem(precision=precision)
    reduced = reduce(
        evaluator(scans, problem, side=8, padded=9)(theta * 1.003),
        scaling_of(mode, scans.phi),
        problem.sum_rounding,
    )
    known = pairs - 2 if truth != "flow" else bins * pairs - 2 * (bins if mode[0] == "i" else 1)
    names = search(scans.model.parameters).names
    errors = uncertainty(names, reduced, np.ones(len(theta), bool), np.arange(bins))
    if known < len(theta):
        assert errors.naive is None
        assert len(errors.doubts) >= len(theta) - known
