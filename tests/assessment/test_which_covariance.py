"""Which covariance counts: each case of the table, in its order, and the table in the guide."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.assessment.which_covariance import CASES, Candidates, NoiseErrors, counted
from homodyne_dask.solver.covariance import Uncertainty

P, BINS = 3, 4
GUIDE = Path(__file__).parents[2] / "docs" / "errors.md"


def by_bins(naive=True, clusters=True, few=(), withheld=()):
    """Covariances of three parameters: naive 1, from 8 clusters 4, of 9 degrees of freedom or 2."""
    few, withheld = (np.isin(np.arange(P), some) for some in (few, withheld))
    scaling = np.full((BINS, 2), 0.1)
    return Uncertainty(
        naive=np.eye(P) if naive else None,
        robust=4 * np.eye(P) if clusters else None,
        dof=np.where(few, 2.0, 9.0) if clusters else np.full(P, np.nan),
        withheld=withheld,
        doubts=(),
        scaling_naive=scaling,
        scaling_robust=2 * scaling,
        eigenvalues=np.ones(P),
        directions=np.eye(P),
        few=few if clusters else None,
    )


def noise(objection=None, scaling=0.3):
    of_scaling = None if scaling is None else np.full((BINS, 2), scaling)
    return NoiseErrors(9 * np.eye(P), np.full(P, 20.0), of_scaling, objection)


FEW, MANY = by_bins(clusters=False), by_bins()
ROWS = {
    "no decay, whatever is known": (Candidates(MANY, noise(), decay=False), "no_decay", None),
    "together with others": (Candidates(FEW, noise(), by_bins(few=(1,))), "global_fit", 4.0),
    "not determined": (
        Candidates(by_bins(naive=False, clusters=False), noise()),
        "undetermined",
        None,
    ),
    "many clusters beside noise": (Candidates(MANY, noise()), "many_clusters", 4.0),
    "a valley, many clusters": (Candidates(MANY, noise(), valley=True), "many_clusters", 4.0),
    "neighbours": (Candidates(MANY, noise()._replace(neighbours=True)), "neighbours", 9.0),
    "neighbours, an objection": (
        Candidates(MANY, noise("c2 was smoothed")._replace(neighbours=True)),
        "many_clusters",
        4.0,
    ),
    "neighbours, a valley": (
        Candidates(FEW, noise()._replace(neighbours=True), valley=True),
        "valley",
        None,
    ),
    "a valley, few clusters": (Candidates(FEW, noise(), valley=True), "valley", None),
    "a valley, few for a parameter": (
        Candidates(by_bins(few=(1,)), noise(), valley=True),
        "speckle",
        9.0,
    ),
    "a valley, no noise": (Candidates(by_bins(few=(0,)), valley=True), "few_freedom", np.nan),
    "few clusters": (Candidates(FEW, noise()), "speckle", 9.0),
    "few for a parameter": (Candidates(by_bins(few=(1,)), noise()), "speckle", 9.0),
    "few for a rate": (Candidates(MANY, noise(), others_enough=lambda: False), "speckle", 9.0),
    "few for a parameter, no noise": (Candidates(by_bins(few=(0,))), "few_freedom", np.nan),
    "few for a rate, no noise": (Candidates(MANY, others_enough=lambda: False), "few_freedom", 4.0),
    "few for all, no noise": (Candidates(by_bins(few=(0, 1, 2))), "few_freedom", None),
    "an objection": (Candidates(FEW, noise("c2 was smoothed")), "noise_unknown", None),
    "an objection, many": (Candidates(MANY, noise("c2 was smoothed")), "many_clusters", 4.0),
    "too few cells": (Candidates(FEW), "noise_unknown", None),
}


@pytest.mark.parametrize("words", ROWS)
def test_the_first_case_that_holds_counts(words):
    candidates, case, variance = ROWS[words]
    code, errors = counted(candidates)
    assert code == case
    robust = errors.robust
    if variance is None:
        assert robust is None
    else:
        assert robust is not None
        np.testing.assert_equal(robust[0, 0], variance)


def test_a_parameter_that_follows_anothers_bound_has_no_error_of_speckle():
    _, errors = counted(Candidates(by_bins(clusters=False, withheld=(2,)), noise()))
    np.testing.assert_equal(np.diag(errors.robust), [9, 9, np.nan])
    np.testing.assert_equal(errors.dof, [20, 20, np.nan])


def test_an_error_of_unknown_freedom_is_none():
    of_noise = noise()._replace(dof=np.array([np.nan, 20.0, 20.0]))
    _, errors = counted(Candidates(by_bins(clusters=False), of_noise))
    np.testing.assert_equal(np.diag(errors.robust), [np.nan, 9, 9])


def test_there_is_no_covariance_where_all_parameters_follow_a_bound():
    follow = replace(MANY, robust=np.full((P, P), np.nan))
    for speckle in (None, noise()):
        assert counted(Candidates(follow, speckle))[1].robust is None


def test_errors_of_offset_and_contrast_are_of_the_same_method():
    for scaling, expected in ((0.3, 0.3), (None, 0.1)):  # of weights, those for independent noise
        _, errors = counted(Candidates(FEW, noise(scaling=scaling)))
        assert (errors.scaling_robust == expected).all()
    assert (counted(Candidates(MANY, noise()))[1].scaling_robust == 0.2).all()
    _, unseen = counted(Candidates(MANY, decay=False))
    np.testing.assert_equal(unseen.scaling_robust, [[0.2, np.nan]] * BINS)


def test_the_guide_has_the_same_table():
    rows = [f"| `{row.code}` | {row.when} | {row.counts} |" for row in CASES]
    table = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert table == rows
