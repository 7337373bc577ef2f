"""Numbers no fit should meet: each gives the right answer, or an ending that says what is wrong."""

import json
import re

import numpy as np
import pytest

import homodyne_dask as hd
from tests.synthetic import CREEP, angles, measured, store

D0 = 20_000.0
TRUTH = np.array([D0, 0.0, 0.0])
FIXED = {"alpha": 0.0, "D_offset": 0.0}
FREE = np.array([True, False, False])


def data(n=60, bins=3, theta=TRUTH, **options):
    return measured(theta, n, angles(bins), **options)


def with_pairs(value, share=0.02, **options):
    scans = data(**options)
    chosen = np.random.default_rng(1).random(scans.c2.shape) < share
    scans.c2[chosen & np.isfinite(scans.c2)] = value
    return scans


def with_one(value):
    scans = data()
    scans.c2[0, 10, 20] = value
    return scans


def constant(value):
    scans = data()
    scans.c2[np.isfinite(scans.c2)] = value
    return scans


def phis(*phi):
    return measured(TRUTH, 60, phi)


def uneven():
    steps = np.random.default_rng(2).uniform(0.1, 0.6, 59)
    return measured(TRUTH, time=np.concatenate([[0], np.cumsum(steps)]), phi=angles(3))


RIGHT = {
    "NaN": lambda: with_pairs(np.nan),
    "a bin of NaN but for a corner": lambda: with_pairs(np.nan, 0.97),
    "+Inf": lambda: with_pairs(np.inf),
    "-Inf": lambda: with_pairs(-np.inf),
    "zeros": lambda: with_pairs(0.0),
    "denormals": lambda: with_pairs(1e-40),
    "tiny numbers": lambda: with_pairs(1e-30),
    "outliers of 1e30": lambda: with_pairs(1e30),
    "an outlier of 1e30": lambda: with_one(1e30),
    "an outlier of -1e30": lambda: with_one(-1e30),
    "an outlier of 1e4": lambda: with_one(1e4),
    "one bin": lambda: data(bins=1),
    "200 bins": lambda: data(n=24, bins=200),
    "one angle twice": lambda: phis(0.0, 30.0, 30.0),
    "angles unsorted": lambda: phis(70.0, -30.0, 10.0),
    "the same angle a turn away": lambda: phis(10.0, 370.0, -350.0),
    "irregular times": uneven,
    **{f"{n} frames": lambda n=n: data(n=n, bins=8) for n in (5, 7, 10, 20, 33, 50)},
}
SAID = {
    "3 frames, with an error of ten thousand times D0": (
        lambda: data(n=3, bins=4),
        "do not determine D0: χ² hardly depends on it",
    ),
    "constant 1": (lambda: constant(1.0), "no decay|do not determine"),
    "constant 3": (lambda: constant(3.0), "no decay|do not determine"),
    "contrast 0": (lambda: data(contrast=0.0), "do not determine|hardly|bound|larger than|no decay seen"),
    "no decay in the window": (
        lambda: data(theta=[0.001, 0, 0]), "do not determine|bound|no decay|larger than"
    ),
    "gone before the first lag": (
        lambda: data(theta=[1e7, 0, 0]), "do not determine|bound|no decay|larger than"
    ),
    "all NaN": (lambda: constant(np.nan), "contains no data"),
    "all zeros": (lambda: constant(0.0), "contains no data"),
    "all infinite": (lambda: constant(np.inf), "contains no data"),
    "2 frames": (lambda: data(n=2), "2 frames"),
    "4 frames": (lambda: data(n=4), "the data do not determine D0"),
}  # fmt: skip


def fitted(scans, folder):
    scan = store(scans, folder)
    with np.errstate(all="ignore"):
        result = hd.fit(scan, hd.STATIC, fixed=FIXED)
    json.dumps(result.to_dict(), allow_nan=False)
    if result.errors.covariance_naive is None:
        assert not result.findings.of("larger-error")
    known = np.isfinite(result.parameters["value"].values)
    lost = {"undetermined", "larger-error", "limits-only", "no-decay"} & set(result.findings.codes)
    assert (known == (not lost) | ~FREE).all()
    return result


@pytest.mark.slow
def test_the_answer_of_2000_bins_is_right(tmp_path):
    is_right(data(n=24, bins=2000), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("word", RIGHT)
def test_the_answer_is_right(tmp_path, word):
    is_right(RIGHT[word](), tmp_path)


def is_right(scans, folder):
    result = fitted(scans, folder)
    assert result.outcome is hd.Outcome.CONVERGED
    table = result.parameters.sel(param="D0")
    if np.isnan(table["value"]):
        assert float(table["upper_limit"]) > D0
    else:
        assert abs(float(table["value"]) - D0) < 5 * float(table["stderr_naive"])


@pytest.mark.long
@pytest.mark.parametrize("word", SAID)
def test_the_ending_says_what_is_wrong(tmp_path, word):
    make, says = SAID[word]
    try:
        said = str(fitted(make(), tmp_path))
    except hd.HomodyneDaskError as e:
        said = str(e)
        assert "\n" not in said
    assert re.search(says, said)


@pytest.mark.long
def test_what_is_not_determined_is_said_once_however_many_directions_it_is(tmp_path):
    scan = store(measured(CREEP, 3, angles(4), dt=0.1, sigma=0.002), tmp_path)
    found = [(one.code, one.about) for one in hd.fit(scan, hd.STATIC).findings]
    assert [code for code, _ in found].count("undetermined") == 1
    assert len(set(found)) == len(found)
