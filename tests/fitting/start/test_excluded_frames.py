"""Fits of a few pairs end at the minimum of dense least squares, or at least not above initial values."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.series import scans_together
from homodyne_dask.fitting.start import initial_values
from homodyne_dask.fitting.start.averages import Minimum
from tests.fitting.dense_power_laws import Pairs, dense_fit
from tests.synthetic import fit_here, measured, store

TRUTH = {"D0": 1e4, "alpha": -0.1}
DECAYED = np.array([1e12, 2.0, 0.0])
"""From where no step leads to the minimum: f is 0 of all pairs."""


def noisy(folder, seed, uneven=False, excluded=10):
    """A scan of 27 frames without some, and χ² of its minimum."""
    rng = np.random.default_rng(seed)
    time = np.cumsum(rng.uniform(0.05, 0.6, 27)) if uneven else np.arange(27) / 3
    made = measured(
        [1e4, -0.1, 0.0], time=time - time[0], phi=(0, 0), q=np.array([0.0054, 0.0081]), contrast=0.1,
        sigma=0.06, seed=seed,
    )  # fmt: skip
    use = np.ones(27, bool)
    use[rng.choice(27, excluded, replace=False)] = False
    scan, at = store(made, folder), np.nonzero(np.triu(np.outer(use, use), 1))
    bins = [Pairs(q, made.time, 0, at, c2[at]) for q, c2 in zip(made.q, made.c2, strict=True)]
    lowest = dense_fit(bins, [TRUTH["D0"]], TRUTH["alpha"], 0.06)[2]
    return scan.select(exclude={"frames": ~use}) if excluded else scan, lowest


@pytest.mark.parametrize(
    ("seed", "uneven"),
    [(33, False), (24, True), *(pytest.param(*of, marks=pytest.mark.long) for of in
     [(6, True), (9, True), (23, True), (32, False), (34, False)])],
)  # fmt: skip
@pytest.mark.parametrize("initial", [{}, TRUTH], ids=["searched", "given"])
def test_a_fit_without_some_frames_ends_at_the_minimum(seed, uneven, initial, tmp_path):
    scan, lowest = noisy(tmp_path, seed, uneven)
    assert hd.fit(scan, "power_law", initial=initial).chisqr == pytest.approx(lowest, abs=1e-3)


@pytest.fixture
def started_far(monkeypatch):
    """Searches find a point from where no step leads to the minimum, where values are given or not."""

    def far(request, data=None):
        theta = np.where(request.search.free, DECAYED, request.search.start)
        return [Minimum(theta, 1.0, 1)]

    monkeypatch.setattr(initial_values, "find_initial_values", far)
    monkeypatch.setattr(scans_together, "find_initial_values", far)


KINDS = [
    ("plain", {}),
    ("one contrast", {"scaling": "shared"}),
    ("a loss", {"loss": "huber"}),
    ("float32", {"precision": "mixed"}),
    ("speckle", {"weighting": "speckle"}),
    ("a prior", {"prior": {"alpha": (0.0, 0.3)}}),
    ("a fixed exponent", {"fixed": {"alpha": -0.1}, "initial": {"D0": 1e4}}),
    ("few passes", {"max_passes": 2}),
]


QUICK = ("plain", "a loss", "few passes")


@pytest.mark.parametrize(
    ("word", "options"),
    [pytest.param(*of, marks=[] if of[0] in QUICK else pytest.mark.long, id=of[0]) for of in KINDS],
)
def test_no_fit_ends_above_initial_values_whatever_it_started_from(
    word, options, started_far, tmp_path
):
    scan, _ = noisy(tmp_path, 1, excluded=0)
    given = {"initial": TRUTH} | options
    found = fit_here(scan, "power_law", **given)
    same = {key: of for key, of in options.items() if key in ("scaling", "loss", "precision")}
    at_given = fit_here(scan, "power_law", fixed=TRUTH, **same)
    assert found is not None
    assert at_given is not None
    assert found.converged or "max_passes" in options
    if word != "speckle":  # whose weights are those of another point
        prior = 1 / 9 if "prior" in options else 0.0
        assert found.chisqr < at_given.chisqr + prior + 1e-6
    away = np.log(found.parameters["optimum"].values[0] / TRUTH["D0"])
    assert abs(away) < 1


def test_a_fit_that_goes_on_from_initial_values_resumes_to_the_same_bits(started_far, tmp_path):
    scan, _ = noisy(tmp_path, 1, excluded=0)
    whole = fit_here(scan, "power_law", initial=TRUTH)
    assert whole is not None
    for stop in range(1, whole.passes):
        file = tmp_path / f"{stop}.json"
        assert fit_here(scan, "power_law", file, stop_after=stop, initial=TRUTH) is None
        resumed = fit_here(scan, "power_law", file, resume=True, initial=TRUTH)
        assert resumed is not None
        assert (resumed.chisqr, resumed.passes) == (whole.chisqr, whole.passes)


@pytest.mark.long
def test_bins_fitted_together_do_not_end_above_initial_values(started_far, tmp_path):
    scan, _ = noisy(tmp_path, 1, excluded=0)
    found = hd.fit_each(scan, "power_law", per={"label": "D0"}, initial=TRUTH).global_fit
    assert found is not None
    assert found.chisqr < hd.fit(scan, "power_law", fixed=TRUTH).chisqr
