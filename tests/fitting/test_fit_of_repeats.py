"""Fits of a store of repeats, all scans in one or each by itself, and of each angle by itself."""

from types import SimpleNamespace

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.assessment.frame_tests import scan_of_frames
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.results.data.fit_view import FitView, fitted_scan
from homodyne_dask.results.views.style import bin_name
from tests.applications import application
from tests.ingest_files import DT
from tests.run_command import done

Q, D0, N, SIGMA = 0.0054, 2e4, 50, 0.02
PHI = [-60.0, 0.0, 60.0]
SCANS = 6


def scan_file(path, seed, rate=D0, contrast=0.3, frames=N, bright=(), dead=()):
    rng, t = np.random.default_rng(seed), DT * np.arange(frames)
    lag = np.abs(np.subtract.outer(t, t))
    f = np.exp(-(Q**2) * rate * lag)
    f[bright, :] += 0.1
    f[:, bright] += 0.1
    c2 = np.stack([np.triu(1 + contrast * f + rng.normal(0, SIGMA, f.shape), 1) for _ in PHI])
    c2[:, dead, :] = c2[:, :, dead] = np.nan
    np.savez(path, c2=c2, q=Q, phi=PHI, dt=DT, sigma=SIGMA)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeats")
    files = [scan_file(folder / f"R{k}.npz", k, contrast=0.3 - 0.02 * k) for k in range(SCANS)]
    return ingest.ingest(files, folder / "all.zarr").store


@pytest.fixture(scope="module")
def result(store):
    return hd.fit(store, "brownian")


@pytest.mark.long
def test_scans_share_dynamics_and_have_contrasts_of_their_own(result):
    assert result.converged
    value, stderr = (float(result.parameters[name].sel(param="D0")) for name in ("value", "stderr"))
    assert abs(value - D0) < 4 * stderr
    assert stderr < 0.02 * D0
    assert float(result.parameters["dof"].sel(param="D0")) > 10  # of 18 clusters, not of 3
    contrast = result.scaling["contrast"].values.reshape(SCANS, 3)
    np.testing.assert_allclose(contrast.mean(1), 0.3 - 0.02 * np.arange(SCANS), atol=0.01)
    assert result.scaling["scan"].values.tolist() == np.repeat(range(1, SCANS + 1), 3).tolist()


def test_a_scan_selected_from_a_store_of_repeats_is_fitted_with_the_bits_of_its_own_store(
    store, tmp_path
):
    alone = ingest.ingest(
        scan_file(tmp_path / "R2.npz", 2, contrast=0.26), tmp_path / "R2.zarr"
    ).store
    one = hd.fit(hd.open_dataset(store).select(scan=3), "brownian")
    other = hd.fit(alone, "brownian")
    for name in ("value", "stderr"):
        np.testing.assert_array_equal(one.parameters[name], other.parameters[name])


def test_a_bin_may_share_contrast_and_offset_over_scans(store):
    shared = hd.fit(store, "brownian", scaling="scans")
    contrast = shared.scaling["contrast"].values.reshape(SCANS, 3)
    np.testing.assert_array_equal(contrast, contrast[[0] * SCANS])
    assert len(np.unique(contrast)) == 3
    one = hd.open_dataset(store).select(scan=1)
    with pytest.raises(OptionError, match="no selected bin is in two scans"):
        hd.fit(one, "brownian", scaling="scans")


@pytest.mark.long
def test_each_scan_is_fitted_by_itself_and_their_agreement_is_tested(store, tmp_path):
    series = hd.fit_each(store, "brownian", over="scan")
    assert series.table["scan"].values.tolist() == [*range(1, SCANS + 1)]
    assert series.agreement["D0"].p > 0.001
    files = [scan_file(tmp_path / f"B{k}.npz", 20 + k, D0 * (2 if k == 4 else 1)) for k in range(6)]
    odd = ingest.ingest(files, tmp_path / "odd.zarr").store
    assert hd.fit_each(odd, "brownian", over="scan").agreement["D0"].p < 1e-3
    assert "scan 5 (B4.npz)" in hd.fit(odd, "brownian").report(all=True)
    with pytest.raises(SelectionError, match="has only one selected scan"):
        hd.fit_each(hd.open_dataset(odd).select(scan=2), "brownian", over="scan")


def test_a_result_knows_its_scans_again(result, store, tmp_path):
    chosen = hd.fit(hd.open_dataset(store).select(scan=[2, 5], phi=(-10, 70)), "brownian")
    chosen.to_json(tmp_path / "summary.json")
    read = hd.load_result(tmp_path / "summary.json")
    assert fitted_scan(read).bins == (4, 5, 13, 14)
    assert [shown.bin for shown in FitView(read, fitted_scan(read)).maps] == [0, 1, 2, 3]
    assert read.scaling["scan"].values.tolist() == [2, 2, 5, 5]
    assert read.diagnosis.influence["change_of_scan"].shape == (2, 3)
    whole = hd.open_dataset(store)
    with pytest.raises(SelectionError, match="give the selection that was fitted"):
        FitView(read, whole.select(scan=[1, 5], phi=(-10, 70)))
    application("nexus")
    chosen.to_nexus(tmp_path / "result.nx.h5")


def test_a_page_shows_the_bins_of_the_scan_that_was_chosen(store):
    whole = hd.open_dataset(store)
    some = whole.select(scan=[2, 5], phi=(-10, 70))
    page = application("view.view_page").ViewPage([some])
    assert [name for _, name in page.bins.options] == [bin_name(some, n) for n in range(4)]
    assert bin_name(some, 3).endswith("bin 3, scan 5")


FRAMES, SPACING = 60, 0.1
LAG = SPACING * np.abs(np.subtract.outer(np.arange(FRAMES), np.arange(FRAMES)))
ANGLES = np.array([0.0, 30.0, 60.0, 90.0])
FREQUENCY = 2 * np.cos(np.deg2rad(ANGLES - 10))


def stored_fringes(path, q=0.01, phi=ANGLES):
    rng = np.random.default_rng(3)
    f = np.exp(-0.5 * LAG) * np.cos(2 * np.pi * FREQUENCY[:, None, None] * LAG)
    c2 = np.triu(1 + 0.2 * f + rng.normal(0, 0.01, f.shape), 1)
    np.savez(path, c2=c2, q=q, phi=phi, dt=SPACING, sigma=0.01)
    return ingest.ingest(path).store


@pytest.mark.long
def test_each_angle_has_a_frequency_of_its_own(tmp_path):
    fringes = stored_fringes(tmp_path / "A.npz")
    series = hd.fit_each(fringes, "damped_cosine", over="phi")
    assert series.table["phi"].values.tolist() == ANGLES.tolist()
    found = series.table["value"].sel(param="frequency").values
    np.testing.assert_allclose(found, np.abs(FREQUENCY), rtol=0.01)
    assert series.agreement["rate"].p > 0.001
    assert series.agreement["frequency"].p < 1e-3
    words = ("--over", "phi", "--output", str(tmp_path / "out"), "--no-pictures")
    done("fit", str(fringes), "--model", "damped_cosine", *words)
    assert str(hd.load_series(tmp_path / "out")) == str(series)
    assert (tmp_path / "out" / "phi_30" / "summary.json").is_file()
    assert (tmp_path / "out" / "series.png").is_file()


@pytest.mark.long
def test_angles_of_several_rings_are_parts_of_their_own(tmp_path):
    fringes = stored_fringes(tmp_path / "A.npz", q=[0.01, 0.01, 0.02, 0.02], phi=[0, 30, 0, 30])
    series = hd.fit_each(fringes, "damped_cosine", over="phi")
    assert [entry.name for entry in series.entries] == [
        f"q = {q} 1/Å, φ = {phi}°" for q in (0.01, 0.02) for phi in (0, 30)
    ]
    assert series.table["q"].values.tolist() == [0.01, 0.01, 0.02, 0.02]


def test_unknown_angles_are_refused(tmp_path):
    fringes = stored_fringes(tmp_path / "A.npz", phi=np.full(4, np.nan))
    with pytest.raises(SelectionError, match="φ is unknown for 4 of 4 selected bins"):
        hd.fit_each(fringes, "damped_cosine", over="phi")


ODD, LOST = {"bright": [*range(40, 46)]}, {"dead": [*range(38, 48)]}
BRIGHT = {
    "frames of the second of three repeats": ({}, ODD, {}),
    "frames of the second, which the third lacks": ({}, ODD, LOST),
    "the same frames of all": (ODD, ODD, ODD),
}


@pytest.mark.parametrize("word", BRIGHT)
def test_frames_that_differ_are_those_of_a_scan_with_a_command_for_it(word, tmp_path):
    scans = enumerate(BRIGHT[word])
    files = [scan_file(tmp_path / f"R{k}.npz", k, frames=100, **odd) for k, odd in scans]
    path = ingest.ingest(files, tmp_path / "all.zarr").store
    (differ,) = hd.fit(path, "brownian").findings.of("frames-differ")
    first, last = differ.numbers["frames"]
    assert 38 <= first <= last <= 47
    assert differ.numbers["size"] == pytest.approx(0.1, abs=0.03)
    of_one = word.startswith("frames")
    assert ("of scan 2 is higher" in str(differ)) == of_one
    assert (f"`--exclude-frames 2:{first}-{last}`" in str(differ)) == of_one
    scan = " --scan 2" * of_one
    excluded = f" --model brownian --exclude-frames {first}:{last + 1}"
    assert differ.advice == f"homodyne-dask fit {path}{scan}{excluded}"
    done(*differ.advice.split()[1:], "--no-pictures")
    without = f"2:{first}-{last}" if of_one else f"{first}-{last}"
    again = ingest.ingest(files, tmp_path / "again.zarr", exclude_frames=[without]).store
    assert not hd.fit(again, "brownian").misfit


def test_frames_that_another_scan_lacks_are_not_said_to_differ_there(tmp_path):
    gone = scan_file(tmp_path / "gone.npz", 0, frames=100, dead=[*range(38, 48)])
    odd = scan_file(tmp_path / "odd.npz", 1, frames=100, bright=[*range(40, 46)])
    for files, number in (([gone, odd], 2), ([odd, gone], 1)):
        scan = hd.open_dataset(ingest.ingest(files, tmp_path / f"{number}.zarr").store)
        assert scan_of_frames(scan, 40, 45) == (number, 1.0)


@pytest.mark.parametrize(
    ("excess", "number", "ratio"),
    [((0.0, 0.2, 0.0), 2, 3.0), ((0.11, 0.25, 0.11), 0, 1.0), ((0.25, 0.1), 1, 0.25 / 0.175)],
)
def test_frames_are_of_one_scan_only_where_the_others_differ_little_in_all(excess, number, ratio):
    means = np.ones((2 * len(excess), 60))
    means[:, 30:36] += np.repeat(excess, 2)[:, None]
    scan = SimpleNamespace(frame_means=means, scan_number=np.repeat(np.arange(len(excess)) + 1, 2))
    found, size = scan_of_frames(scan, 30, 35)
    assert found == number
    assert size == pytest.approx(ratio)


def test_an_offset_far_from_its_prior_is_named_with_its_ring_angle_and_scan(store):
    two = hd.open_dataset(store).select(scan=[1, 2])
    (far,) = hd.fit(two, "brownian", offset="prior=1.1:0.001").findings.of("far-from-prior")
    assert len(set(far.about)) == len(far.about) == 6
    assert "offset (q = 0.0054 Å⁻¹, φ = −60°, bin 1, scan 2)" in far.about
