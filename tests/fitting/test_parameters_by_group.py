"""Parameters that differ between rings, angles or labels beside shared ones, against dense least squares."""

import numpy as np
import pytest
import scipy.optimize

import homodyne_dask as hd
from homodyne_dask.solver.cluster_robust import cr3
from tests import reference
from tests.run_command import done

N, DT, SIGMA, ALPHA = 40, 0.1, 0.02, -0.4
RINGS, ANGLES, RATES = (0.004, 0.0054, 0.007), (-60.0, 30.0), (2e4, 3e4, 1.5e4)
Q, PHI = np.repeat(RINGS, 2), np.tile(ANGLES, 3)
GROUPS = {"ring": [0, 0, 1, 1, 2, 2], "angle": [0, 1, 0, 1, 0, 1], "label": [*range(6)]}
"""The group of each bin."""
FIRST, SECOND = np.triu_indices(N, 1)


def decay(q, D0, alpha):
    time = DT * np.arange(N)
    C = reference.integral(D0 * np.maximum(time, DT / 2) ** alpha, time)
    return np.exp(-(q**2) * np.abs(C[:, None] - C))[FIRST, SECOND]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Three rings of two angles, each ring with a rate of its own."""
    folder, rng = tmp_path_factory.mktemp("groups"), np.random.default_rng(1)
    c2 = np.ones((6, N, N), np.float32)
    for b, q in enumerate(Q):
        c2[b, FIRST, SECOND] += 0.3 * decay(q, RATES[b // 2], ALPHA) + rng.normal(
            0, SIGMA, len(FIRST)
        )
        c2[b, SECOND, FIRST] = c2[b, FIRST, SECOND]
    np.savez(folder / "c2.npz", c2=c2)
    known = {"q": Q, "phi": PHI, "dt": DT, "sigma": SIGMA}
    hd.ingest(folder / "c2.npz", folder / "rings.zarr", **known)
    return folder / "rings.zarr", c2[:, FIRST, SECOND].astype(float)


def dense_fit(data, group):
    """Values and naive errors of (D0 of each group, alpha), every pair a row, nothing eliminated."""
    n = max(group) + 1

    def residual(x):
        rates, alpha, (contrast, offset) = np.exp(x[:n]), x[n], x[n + 1 :].reshape(2, 6)
        f = np.array([decay(q, rates[g], alpha) for q, g in zip(Q, group, strict=True)])
        return ((data - offset[:, None] - contrast[:, None] * f) / SIGMA).ravel()

    start = np.concatenate([np.full(n, np.log(2e4)), [ALPHA], np.full(6, 0.3), np.ones(6)])
    found = scipy.optimize.least_squares(residual, start, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    scale = np.append(np.exp(found.x[:n]), 1.0)  # from logarithms of rates
    errors = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))[: n + 1]
    return np.append(scale[:n], found.x[n]), errors * scale


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_a_fit_with_a_rate_for_each_group_is_that_of_dense_least_squares(store, group):
    path, data = store
    series = hd.fit_each(path, "power_law", per={group: "D0"})
    value, error = dense_fit(data, GROUPS[group])
    found = series.global_fit.parameters.isel(param=slice(0, len(value)))
    assert found["param"].values[-1] == "alpha"
    assert np.abs((found["value"] - value) / error).max() < 1e-3
    np.testing.assert_allclose(found["value"], value, rtol=1e-5)
    np.testing.assert_allclose(found["stderr_naive"], error, rtol=1e-4)
    assert np.isfinite(found["stderr"]).all()
    assert len(series.results) == max(GROUPS[group]) + 1


@pytest.mark.long
def test_outliers_of_a_loss_and_profiles_are_those_of_each_ring_by_itself(store):
    """Where all parameters differ; only the size of the noise is that of all."""
    options = {"loss": "huber", "profile": ["D0"]}
    own = hd.fit_each(store[0], "power_law", per={"ring": ["D0", "alpha"]}, **options)
    alone = hd.fit_each(store[0], "power_law", over="q", **options)
    for one, other in zip(own.results, alone.results, strict=True):
        error = other.parameters["stderr_naive"].values[:2]
        away = (one.parameters["value"] - other.parameters["value"]).values[:2] / error
        assert np.abs(away).max() < 2e-3
        np.testing.assert_allclose(one.parameters["stderr_naive"].values[:2], error, rtol=0.05)
        assert (
            one.errors.profiles["D0"].sizes["point"]
            == other.errors.profiles["D0"].sizes["point"]
            == 5
        )


@pytest.mark.long
def test_contrasts_that_differ_by_ring_or_angle_are_a_scaling_mode(store):
    ring = hd.fit(store[0], "power_law", scaling="rings").scaling["contrast"].values
    assert (ring[::2] == ring[1::2]).all()
    assert len({*ring}) == 3
    angle = hd.fit(store[0], "power_law", scaling="angles").scaling["contrast"].values
    assert (angle[:2] == angle[2:4]).all()
    assert angle[0] != angle[1]
    one = hd.open_dataset(store[0]).select(q=RINGS[0])
    each = [hd.fit(one, "power_law", scaling=mode).chisqr for mode in ("angles", "individual")]
    assert each[0] == each[1]
    both = hd.fit_each(store[0], "power_law", per={"ring": ["D0", "contrast"]})
    assert np.ptp(both.results[0].scaling["contrast"].values) == 0


@pytest.mark.long
def test_the_command_takes_groups_and_parameters(store, tmp_path):
    options = ["--model", "power_law", "--output", str(tmp_path / "out"), "--no-pictures"]
    text = done("fit", str(store[0]), *options, "--per", "ring", "D0", "--per", "ring", "alpha")
    assert "one fit of all values of q: D0 and alpha for each q" in text
    assert (tmp_path / "out" / "q_0.004" / "summary.json").exists()


def test_cluster_robust_errors_of_groups_are_those_of_full_matrices():
    """Five groups of 2 own parameters and 2 shared ones; a sixth cluster sees two of the groups."""
    rng = np.random.default_rng(0)
    own = [[2 * g, 2 * g + 1, 10, 11] for g in range(5)]
    kinds = [*(own[n // 3] + [12, 12] for n in range(15)), [0, 1, 2, 3, 10, 11]]
    blocks, full = np.zeros((16, 6, 6)), np.zeros((16, 12, 12))
    scores = np.zeros((16, 12))
    for k, place in enumerate(kinds):
        some = np.array(place) < 12
        X = rng.normal(size=(20, 6)) * some
        blocks[k] = X.T @ X
        at = np.array(place)[some]
        full[k][np.ix_(at, at)] = blocks[k][np.ix_(some, some)]
        scores[k, at] = X[:, some].T @ rng.normal(size=20)
    inverse = np.linalg.inv(full.sum(0))
    for found, wanted in zip(
        cr3(inverse, scores, blocks, place=np.array(kinds)), cr3(inverse, scores, full), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
