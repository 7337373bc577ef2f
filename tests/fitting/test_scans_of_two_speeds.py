"""Scans of different frames, times and bins as one fit, against dense least squares and counted photons."""

from collections import Counter

import numpy as np
import pytest
import scipy.stats
from distributed import Client, LocalCluster

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.fitting.series import scans_together
from homodyne_dask.store import scan
from tests.fitting.dense_power_laws import Pairs, decay, dense_fit
from tests.run_command import done, run
from tests.speckle_scans import Photons
from tests.synthetic import store as stored

SIGMA, TRUTH = 0.02, np.array([2e4, -0.4])
UNEVEN = np.concatenate([0.2 * np.arange(20), 4 + 0.5 * np.arange(20)])
SCANS = {
    "fast": (0.01 * np.arange(60), [0.0054] * 3, []),
    "slow": (0.2 * np.arange(40), [0.0054, 0.01], [7, 8]),
    "uneven": (UNEVEN, [0.004], []),
}
"""Times, q of each bin, and frames without data."""


def measured(name, D0=TRUTH[0], repeat=0):
    t, each, lost = SCANS[name]
    rng = np.random.default_rng(len(name) + 1 + 100 * repeat)
    f = np.stack([decay(D0, TRUTH[1], q, t) for q in each])
    c2 = (1 + 0.3 * f + rng.normal(0, SIGMA, f.shape)).astype(np.float32)
    c2[:, lost] = c2[:, :, lost] = np.nan
    return c2


def ingested(folder, name, file=None, D0=TRUTH[0], repeat=0, **held):
    t, q, _ = SCANS[name]
    known = {"q": q, "phi": np.linspace(-60, 60, len(q)), "time": t, "sigma": SIGMA} | held
    np.savez(folder / f"{file or name}.npz", c2=np.triu(measured(name, D0, repeat), 1), **known)
    return hd.ingest(folder / f"{file or name}.npz").store


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speeds")
    return [ingested(folder, name) for name in SCANS]


@pytest.fixture(scope="module")
def series(stores):
    return hd.fit(stores, "power_law")


def known_pairs():
    for name, (t, each, _) in SCANS.items():
        for q, c2 in zip(each, measured(name), strict=True):
            at = np.nonzero(np.isfinite(c2) & ~np.tri(len(t), dtype=bool))
            yield Pairs(q, t, 0, at, c2[at])


def test_scans_of_different_times_and_bins_are_one_dense_least_squares(series, stores):
    value, covariance, chisqr = dense_fit([*known_pairs()], TRUTH[:1], TRUTH[1], SIGMA)
    error = np.sqrt(np.diag(covariance))
    found = series.global_fit.parameters.sel(param=["D0", "alpha"])
    np.testing.assert_allclose(found["value"], value, rtol=1e-6)
    np.testing.assert_allclose(found["stderr_naive"], error, rtol=1e-5)
    assert series.global_fit.chisqr == pytest.approx(chisqr, rel=1e-6)
    assert np.isfinite(found["stderr"]).all()
    assert not any(result.misfit for result in series.results)
    assert not series.global_fit.findings
    other = hd.fit(stores[::-1], "power_law").global_fit.parameters.sel(param=["D0", "alpha"])
    for name in ("value", "stderr"):
        np.testing.assert_allclose(other[name], found[name], rtol=1e-6)


@pytest.mark.long
def test_the_cost_of_a_store_does_not_grow_with_their_number(tmp_path, monkeypatch):
    opened, searched = Counter(), []
    stores = [ingested(tmp_path, "uneven", f"u{n}", TRUTH[0] * 1.3**n, n) for n in range(10)]
    find, read = scans_together.find_initial_values, scan.open_dataset
    monkeypatch.setattr(
        scans_together, "find_initial_values", lambda *a: searched.append(a) or find(*a)
    )
    monkeypatch.setattr(scan, "open_dataset", lambda path: opened.update([str(path)]) or read(path))
    scan.open_selection.cache_clear()
    together = hd.fit(stores, "power_law", per_scan=["D0"]).global_fit
    assert len(searched) == 4
    assert set(opened.values()) == {2}, "by the request and by the passes, whatever their number"
    value, stderr, dof = together.parameters[["value", "stderr", "dof"]].to_array().values[:, :10]
    pulls = (value - TRUTH[0] * 1.3 ** np.arange(10)) / stderr
    assert (np.abs(pulls) < scipy.stats.t(dof).isf(1e-3)).all()


@pytest.mark.slow
def test_workers_change_no_bit(series, stores):
    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as made,
        Client(made) as client,
    ):
        other = hd.fit(stores, "power_law", client=client).global_fit.parameters
    assert other.equals(series.global_fit.parameters)


@pytest.mark.long
def test_what_one_scan_alone_says_is_its_own_fit_to_first_order(series, stores):
    for number, store in enumerate(stores, 1):
        alone = hd.fit(store, "power_law").parameters.sel(param=["D0", "alpha"])
        near = series.global_fit.each.sel(scan=number, param=["D0", "alpha"])
        assert (np.abs(near["value"] - alone["value"]) < 0.5 * alone["stderr"]).all()
        np.testing.assert_allclose(near["stderr"], alone["stderr"], rtol=0.3)


@pytest.mark.long
def test_the_scan_that_disagrees_is_named(stores, tmp_path):
    other = ingested(tmp_path, "slow", D0=6e4)
    found = hd.fit([stores[0], other, stores[2]], "power_law")
    (said,) = found.global_fit.findings.of("scans-disagree")
    assert "D0" in said.about
    assert "without scan 2 they do" in str(said)
    assert found.results[1].misfit


@pytest.mark.long
def test_rates_may_differ_and_bins_of_one_store_alone_share_a_contrast(stores):
    found = hd.fit(stores, "power_law", per_scan="D0", scaling="shared")
    rates = found.global_fit.parameters.sel(param=[f"D0 of scan {n}" for n in (1, 2, 3)])
    assert (np.abs(rates["value"] - TRUTH[0]) < 4 * rates["stderr"]).all()
    contrast = [np.unique(one.scaling["contrast"].values.round(12)) for one in found.results]
    assert [len(of) for of in contrast] == [1, 1, 1]
    assert len(np.unique(contrast)) == 3


@pytest.mark.long
def test_the_command_writes_each_scan_and_the_series(stores, tmp_path):
    given = ["--together", "--model", "power_law", "--no-pictures", "-o", str(tmp_path / "out")]
    text = done("fit", *map(str, stores), *given)
    assert "one fit of all scans: D0 and alpha are shared" in text
    read = hd.load_series(tmp_path / "out")
    assert read.global_fit.each.equals(hd.fit(stores, "power_law").global_fit.each)
    assert {entry.folder.name for entry in read.entries} == {"scan_001", "scan_002", "scan_003"}
    wrong = run("fit", *map(str, stores), *given, "--over", "q")
    assert wrong.exit_code == 2
    assert "select rings with --q" in wrong.output


def test_stores_that_no_parameters_describe_together_are_refused(stores, tmp_path):
    unknown = ingested(tmp_path, "slow", q=[np.nan, np.nan])
    with pytest.raises(OptionError, match="q is known for some of the stores only"):
        hd.fit([stores[0], unknown], "brownian")
    with pytest.raises(OptionError, match="the splines of beating_spline"):
        hd.fit(stores, "beating_spline")


@pytest.mark.long
def test_stores_of_alike_scans_are_fitted_as_repeats_of_one_store(stores, tmp_path):
    other = ingested(tmp_path, "fast", "again", D0=3e4, repeat=1)
    files = [stores[0].parent / "fast.npz", tmp_path / "again.npz"]
    repeats = hd.ingest(files, tmp_path / "all.zarr").store
    given = {"per_scan": "D0", "loss": "soft_l1", "profile": ("alpha",)}
    apart = hd.fit([stores[0], other], "power_law", **given)
    one = hd.fit_each(repeats, "power_law", over="scan", **given)
    for key in ("value", "stderr"):
        found, wanted = (of.global_fit.parameters[key].values for of in (apart, one))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for found, wanted in zip(apart.results, one.results, strict=True):
        profiles = (of.errors.profiles["alpha"]["chisqr"].values for of in (found, wanted))
        np.testing.assert_allclose(*profiles, rtol=1e-9)


FOUND = {
    "shared, at a bound": ({"bounds": {"alpha": (-0.2, 1.0)}}, "at-bound", ["alpha"], "alpha=-2:1"),
    "of each scan, at a bound": (
        {"bounds": {"D0": (1.0, 1e4)}, "per_scan": "D0"},
        "at-bound",
        ["D0 of scan 1", "D0 of scan 2", "D0 of scan 3"],
        "--bounds D0=1:1e+06",
    ),
    "beside a bound": ({"bounds": {"alpha": (-0.405, 1.0)}}, "limits-only", ["alpha"], ""),
    "far from a prior": ({"prior": {"alpha": (0.5, 0.1)}}, "far-from-prior", ["alpha"], ""),
}
"""Options, and the finding that a fit of one store has, too: its code, what it is about, its advice."""


@pytest.mark.parametrize("word", FOUND)
def test_what_is_found_of_a_parameter_of_one_store_is_found_of_that_of_several(stores, word):
    given, code, about, advice = FOUND[word]
    (said,) = hd.fit(stores, "power_law", **given).global_fit.findings.of(code)
    assert list(said.about) == about
    assert advice in said.advice


def test_noise_in_several_stores_is_no_decay(tmp_path):
    stores = []
    for seed in range(3):
        c2 = 1 + np.random.default_rng(seed).normal(0, SIGMA, (2, 40, 40))
        given = {"q": [0.0054] * 2, "phi": [0.0, 90.0], "dt": 0.1, "sigma": SIGMA}
        np.savez(tmp_path / f"{seed}.npz", c2=np.triu(c2, 1), **given)
        stores.append(hd.ingest(tmp_path / f"{seed}.npz").store)
    found = hd.fit(stores, "brownian")
    assert "no-decay" in found.global_fit.findings.codes
    assert found.global_fit.outcome is hd.Outcome.NO_DECAY
    assert not found.converged
    assert np.isnan(found.global_fit.parameters["value"].sel(param="D0"))
    with_one = hd.fit([*stores[:2], ingested(tmp_path, "fast")], "brownian")
    assert with_one.global_fit.outcome is hd.Outcome.CONVERGED


def test_ingest_says_how_scans_of_different_frames_are_fitted(stores, tmp_path):
    files = [store.parent / f"{name}.npz" for store, name in zip(stores, SCANS, strict=True)]
    with pytest.raises(SourceError, match="fit both stores with together"):
        hd.ingest(files, tmp_path / "all.zarr")


@pytest.mark.long
def test_the_error_of_photons_at_two_speeds_is_that_of_the_scatter(tmp_path):
    cameras = (
        {"spacing": 0.001, "frames": 200, "mean": 0.3, "pixels": 1500},
        {"spacing": 0.05, "pixels": 300},
    )
    found = []
    for seed in range(6):
        stores = []
        for n, camera in enumerate(cameras):
            photons = Photons(np.array([1e5, 0.0, 0.0]), q=(0.01, 0.015), **camera)
            stores.append(stored(photons.scan(1000 * seed + n), tmp_path, f"{n}{seed}"))
        tables = [hd.fit(stores, "brownian").global_fit.parameters]
        tables += [hd.fit(store, "brownian").parameters for store in stores]
        found.append([[float(table[key][0]) for key in ("value", "stderr")] for table in tables])
    values, errors = np.moveaxis(found, 2, 0)
    pulls = (values[:, 0] - 1e5) / errors[:, 0]
    assert abs(pulls.mean()) < 3 / np.sqrt(6)
    assert 0.4 < pulls.std(ddof=1) < 1.7
    both, *each = np.median(errors, axis=0)
    assert both < min(each)


def test_what_scans_determine_together_has_a_value_in_each(tmp_path):
    """A rate and its power of q, of two stores with one ring each: neither determines both."""
    t, stores = 0.05 * np.arange(60), []
    for name, q in {"low": [0.0054], "higher": [0.01]}.items():
        f = decay(2e4, 0.0, q[0], t)
        c2 = 1 + 0.3 * f + np.random.default_rng(len(name) + 40).normal(0, SIGMA, f.shape)
        c2 = np.triu(c2, 1).astype(np.float32)[None]
        np.savez(tmp_path / f"{name}.npz", c2=c2, q=q, phi=[0.0], time=t, sigma=SIGMA)
        stores.append(hd.ingest(tmp_path / f"{name}.npz").store)
    series = hd.fit(stores, "stretched_q")
    joint = series.global_fit.parameters
    assert joint["value"].sel(param="q_exponent") == pytest.approx(2, abs=0.4)
    for entry in series.entries:
        assert "larger-error" not in [each.code for each in entry.result.findings]
        for name in ("rate", "q_exponent"):
            assert entry.result.params[name].value == pytest.approx(
                float(joint["value"].sel(param=name))
            )
