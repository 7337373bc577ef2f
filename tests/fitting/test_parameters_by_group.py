"""Parameters that differ between rings, angles or labels beside shared ones, against dense least squares."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.solver.cluster_robust import cr3
from tests.fitting.dense_power_laws import Pairs, decay, dense_fit
from tests.run_command import done

N, DT, SIGMA, ALPHA = 40, 0.1, 0.02, -0.4
RINGS, ANGLES, RATES = (0.004, 0.0054, 0.007), (-60.0, 30.0), (2e4, 3e4, 1.5e4)
Q, PHI = np.repeat(RINGS, 2), np.tile(ANGLES, 3)
GROUPS = {"ring": [0, 0, 1, 1, 2, 2], "angle": [0, 1, 0, 1, 0, 1], "label": [*range(6)]}
"""The group of each bin."""
TIME, PAIRS = DT * np.arange(N), np.triu_indices(N, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("groups"), np.random.default_rng(1)
    c2 = np.ones((6, N, N), np.float32)
    for b, q in enumerate(Q):
        f = decay(RATES[b // 2], ALPHA, q, TIME)[PAIRS]
        c2[b][PAIRS] += 0.3 * f + rng.normal(0, SIGMA, len(f))
        c2[b] += np.triu(c2[b] - 1, 1).T
    np.savez(folder / "c2.npz", c2=c2)
    known = {"q": Q, "phi": PHI, "dt": DT, "sigma": SIGMA}
    hd.ingest(folder / "c2.npz", folder / "rings.zarr", **known)
    return folder / "rings.zarr", [one[PAIRS] for one in c2]


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_a_fit_with_a_rate_for_each_group_is_that_of_dense_least_squares(store, group):
    path, data = store
    series = hd.fit_each(path, "power_law", per={group: "D0"})
    bins = [Pairs(q, TIME, g, PAIRS, y) for q, g, y in zip(Q, GROUPS[group], data, strict=True)]
    value, covariance, _ = dense_fit(bins, [2e4] * (max(GROUPS[group]) + 1), ALPHA, SIGMA)
    error = np.sqrt(np.diag(covariance))
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
        profiles = (of.errors.profiles["D0"] for of in (one, other))
        assert [of.sizes["point"] for of in profiles] == [5, 5]


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
def test_rings_that_disagree_are_called_rings_with_a_command_for_them(store):
    series = hd.fit_each(store[0], "power_law", per={"ring": "alpha"})
    (differ,) = series.global_fit.findings.of("scans-disagree")
    assert not series.over_q
    assert "the rings do not agree in D0" in str(differ)
    assert differ.advice == "--per ring D0"
    assert "scan" not in str(differ)


@pytest.mark.parametrize("own", [["D0"], ["D0", "alpha"]])
def test_rates_of_rings_that_share_a_parameter_are_not_called_alone_and_have_its_panel_nowhere(
    store, own
):
    series = hd.fit_each(store[0], "power_law", per={"ring": own})
    shared, text = "alpha" not in own, " ".join(str(series).split())
    assert ("rates of rings share alpha of this fit" in text) == shared
    assert ("each ring is fitted alone" in text) != shared
    assert ("alpha" in series.plot().tables) != shared
    assert "Gamma" in series.plot().tables


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
