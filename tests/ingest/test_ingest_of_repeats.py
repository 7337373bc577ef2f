"""Scans that repeat one measurement become one store, with the bins of each."""

from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, SelectionError, SourceError
from homodyne_dask.store.scan import with_bins
from ingest.repeats_and_copies import scan_names_of
from tests.ingest_files import (
    arrays,
    attributes,
    decay,
    edited,
    interrupt_ingest,
    noisy,
    simulated,
    upper,
)
from tests.run_command import done, run

N, SIGMA = 40, 0.02
FLUX = "/xpcs/spatial_mean/intensity_vs_time"


def repeat(path, seed, n=N, bins=2, sigma=SIGMA, **changes):
    rng = np.random.default_rng(seed)
    c2 = np.stack([np.triu(rng.normal(decay(n, k), sigma), 1) for k in range(bins)]).astype("f4")
    values = {"q": 0.01, "phi": 30.0 * np.arange(bins), "dt": 0.1} | changes
    np.savez(path, c2=c2, **values)
    return path


@pytest.fixture
def scans(tmp_path):
    return [repeat(tmp_path / f"R{k}.npz", k) for k in (1, 2, 10)]


def test_repeats_are_one_store_with_a_number_for_each_scan(tmp_path, scans):
    report = ingest.ingest(scans, tmp_path / "all.zarr")
    apart = [arrays(ingest.ingest(path).store) for path in scans]
    store = arrays(report.store)
    for name in ("c2", "q", "phi", "label", "sigma_row"):
        np.testing.assert_array_equal(store[name], np.concatenate([scan[name] for scan in apart]))
    assert attributes(report.store)["scans"] == ["R1.npz", "R2.npz", "R10.npz"]
    assert attributes(report.store)["source_file"] == "R1.npz and 2 more"
    scan = hd.open_dataset(report.store)
    assert scan.scan_number.tolist() == [1, 1, 2, 2, 3, 3]
    assert scan.dataset["c2"].coords["scan"].values.tolist() == [1, 1, 2, 2, 3, 3]
    assert "3 R10.npz" in str(scan)
    assert ingest.ingest(scans, tmp_path / "all.zarr").skipped


def test_scans_are_selected_by_number_and_name(tmp_path, scans):
    scan = hd.open_dataset(ingest.ingest(scans, tmp_path / "all.zarr").store)
    assert scan.select(scan=2).bins == (2, 3)
    assert scan.select(scan="R10.npz").bins == (4, 5)
    assert scan.select(scan=[1, "R10.npz"], phi=30).bins == (1, 5)
    assert scan.select(label=2).scan_number.tolist() == [1, 2, 3]
    assert with_bins(scan, [2, 1], [3, 1]).bins == (5, 0)
    for wrong in (0, 4, "R3.npz", 1.5, True, None.__class__):
        with pytest.raises(SelectionError, match="scan"):
            scan.select(scan=wrong)
    with pytest.raises(SelectionError, match=r"no scan 3; choose from 1 \(R1.npz\), 2 \(R2.npz\)$"):
        scan.select(scan=[1, 2]).select(scan=3)


def test_bins_of_one_place_in_several_scans_are_clusters_of_their_own(tmp_path):
    files = [repeat(tmp_path / f"R{k}.npz", k, bins=2, phi=[0.0, 180.0]) for k in range(3)]
    scan = hd.open_dataset(ingest.ingest(files, tmp_path / "all.zarr").store)
    assert scan.clusters.tolist() == [0, 0, 2, 2, 4, 4]  # Friedel pairs in each scan


DIFFERENT = {
    "frames": {"n": 30},
    "bins": {"bins": 3},
    "q": {"q": [0.01, 0.02]},
    "phi": {"phi": [0.0, 31.0]},
    "phi of": {"phi": [0.0, np.nan]},
    "frame time": {"dt": 0.2},
    "time of frame 39": {"time": np.r_[0.1 * np.arange(39), 5.0]},
    "sigma": {"sigma": 0.01},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_scan_that_differs_is_refused_by_name_and_difference(tmp_path, scans, what):
    unlike = repeat(tmp_path / "R9.npz", 9, **({} if what == "sigma" else DIFFERENT[what]))
    if what == "sigma":
        with np.load(unlike) as contents:
            np.savez(unlike, **contents, sigma=0.01)
    with pytest.raises(SourceError, match=rf"R9\.npz .*{what}"):
        ingest.ingest([*scans, unlike], tmp_path / "all.zarr")


def test_a_copy_of_a_scan_is_refused(tmp_path, scans):
    copy = tmp_path / "again.npz"
    copy.write_bytes(scans[1].read_bytes())
    with pytest.raises(SourceError, match=r"again.npz has the same content as .*R2.npz"):
        ingest.ingest([*scans, copy], tmp_path / "all.zarr")
    with pytest.raises(OptionError, match=r"R1.npz is given twice"):
        ingest.ingest([scans[0], scans[0]], tmp_path / "all.zarr")
    with pytest.raises(OptionError, match="3 files make one store: give its name"):
        ingest.ingest(scans)
    with pytest.raises(OptionError, match="source is an empty list"):
        ingest.ingest([])


def test_files_of_one_name_are_told_apart_by_their_folders():
    paths = [Path(f"/data/run{k}/c2.npz") for k in (1, 2)]
    assert scan_names_of(paths) == ["run1/c2.npz", "run2/c2.npz"]


def test_a_beam_trip_masks_the_frames_of_its_scan_alone(tmp_path):
    def trip(flux):
        flux[1, 6:9] *= 0.1
        return flux

    files = [simulated(tmp_path / f"{k}.hdf", seed=k) for k in range(3)]
    edited(files[1], **{FLUX: trip})
    report = ingest.ingest(files, tmp_path / "all.zarr")
    store = arrays(report.store)
    is_known = np.isfinite(store["c2"])
    assert store["frame_mask"].all()
    assert not is_known[3:6, 6:9].any()
    assert not is_known[3:6, :, 6:9].any()
    assert is_known[:3].sum() == is_known[6:].sum() == 3 * N * (N - 1) // 2
    assert (
        "1.hdf: 3 frames masked (intensity below half its median): 6 to 8, counted from 0"
        in report.notes
    )
    assert report.sigma_source == "counts"


def test_the_mean_of_scans_has_the_noise_of_their_scatter(tmp_path):
    noise = (0.01, 0.02, 0.03, 0.02, 0.01)
    files = [repeat(tmp_path / f"R{k}.npz", k, n=80, sigma=s) for k, s in enumerate(noise)]
    report = ingest.ingest(files, tmp_path / "mean.zarr", average="scans")
    store = arrays(report.store)
    weight = 1 / np.square(noise)
    expected = sum(
        w * upper(np.load(path)["c2"]) for w, path in zip(weight, files, strict=True)
    ) / sum(weight)
    np.testing.assert_allclose(store["c2"], expected, atol=2e-3)  # weights are measured
    assert "scans" not in attributes(report.store)
    assert [row.sigma for row in report.bins] == pytest.approx([sum(weight) ** -0.5] * 2, rel=0.1)
    assert any("mean of 5 scans, which scatter" in note for note in report.notes)


def test_scans_that_differ_by_more_than_noise_have_a_mean_with_that_scatter(tmp_path):
    files = [repeat(tmp_path / f"R{k}.npz", k) for k in range(6)]
    for k, path in enumerate(files):
        with np.load(path) as contents:
            np.savez(
                path,
                **{**contents, "c2": contents["c2"] + np.triu(np.full((N, N), 0.1 * (-1) ** k), 1)},
            )
    report = ingest.ingest(files, tmp_path / "mean.zarr", average="scans")
    assert [row.sigma for row in report.bins] == pytest.approx([0.11 / 6**0.5] * 2, rel=0.1)
    with pytest.raises(OptionError, match="is one scan, but average applies to several"):
        ingest.ingest(files[0], average="scans")
    with pytest.raises(OptionError, match="average 'bins' is unknown"):
        ingest.ingest(files, tmp_path / "b.zarr", average="bins")


def test_the_command_takes_several_files(tmp_path, scans):
    files = [str(path) for path in scans]
    made = done("ingest", *files, "-o", str(tmp_path / "all.zarr"))
    assert "3 scans: R1.npz, R2.npz, R10.npz" in made
    done("ingest", files[0], str(tmp_path / "one.zarr"))
    assert run("ingest", *files[:2]).exit_code != 0
    assert run("ingest", files[0], str(tmp_path / "none.npz.zarr"), files[1]).exit_code != 0


@pytest.mark.parametrize("where", ["in options", "in files"])
def test_files_of_one_bin_with_a_q_each_are_bins_of_one_scan(tmp_path, where):
    q, c2 = [0.03, 0.01, 0.02], [noisy(N, k) for k in range(3)]
    paths = [tmp_path / f"q{k}.npz" for k in range(3)]
    for path, matrix, k in zip(paths, c2, range(3), strict=True):
        np.savez(path, c2=matrix, **({"q": q[k]} if where == "in files" else {}))
    options = {} if where == "in files" else {"q": q}
    report = ingest.ingest(paths, tmp_path / "s.zarr", phi=0, frame_time=0.1, **options)
    np.testing.assert_array_equal(arrays(report.store)["c2"], upper(np.stack(c2)))
    scan = hd.open_dataset(report.store)
    assert (scan.q.tolist(), scan.label.tolist(), len(scan.scan_names)) == (q, [1, 2, 3], 1)
    assert "3 files, one for each bin" in report.notes
    with pytest.raises(OptionError, match="average applies to scans of one measurement, but each"):
        ingest.ingest(paths, tmp_path / "m.zarr", phi=0, frame_time=0.1, average="scans", **options)


def test_a_bin_in_a_file_of_its_own_is_named_with_that_file(tmp_path):
    paths = [tmp_path / f"{k}.npz" for k in range(3)]
    for k, path in enumerate(paths):
        np.savez(path, c2=noisy(N, k) * (1 if k < 2 else np.nan), q=0.01 * (k + 1), phi=0)
    report = ingest.ingest(paths, tmp_path / "s.zarr", frame_time=0.1)
    assert attributes(report.store)["source_file"] == "0.npz and 2 more"
    assert "1 of 3 bins left out: bin 3 (2.npz) of 2.npz contains no data" in report.notes[-1]


def test_two_files_of_two_bins_with_two_q_repeat_both(tmp_path):
    paths = [tmp_path / f"{k}.npz" for k in range(2)]
    for k, path in enumerate(paths):
        np.savez(path, c2=np.stack([noisy(N, 2 * k), noisy(N, 2 * k + 1)]))
    report = ingest.ingest(paths, tmp_path / "s.zarr", q=[0.1, 0.2], phi=0, frame_time=0.1)
    scan = hd.open_dataset(report.store)
    assert (scan.q.tolist(), scan.scan_number.tolist()) == ([0.1, 0.2] * 2, [1, 1, 2, 2])


def test_files_of_one_ring_repeat_it_and_of_other_times_are_refused(tmp_path):
    paths = [tmp_path / f"{k}.npz" for k in range(2)]
    for k, path in enumerate(paths):
        np.savez(path, c2=noisy(N, k), q=0.01, phi=0)
    report = ingest.ingest(paths, tmp_path / "s.zarr", frame_time=0.1)
    assert hd.open_dataset(report.store).scan_number.tolist() == [1, 2]
    np.savez(paths[1], c2=noisy(N, 1), q=0.0101, phi=0)
    with pytest.raises(SourceError, match=r"1.npz cannot be a repeat of 0.npz: q of bin 1 is"):
        ingest.ingest(paths, tmp_path / "t.zarr", frame_time=0.1)
    np.savez(paths[1], c2=noisy(N + 1, 1), q=0.02, phi=0)
    with pytest.raises(SourceError, match=r"1.npz cannot be .* 0.npz: the number of frames is 41"):
        ingest.ingest(paths, tmp_path / "t.zarr", frame_time=0.1)


def test_a_mean_of_a_measurement_and_its_copy_is_refused(tmp_path):
    c2 = np.stack([noisy(40, k) for k in range(2)])
    for name, factor in (("a", 1.0), ("b", 1.01)):
        np.savez(tmp_path / f"{name}.npz", c2=factor * c2, q=[0.01] * 2, phi=[0, 60], dt=0.1)
    with pytest.raises(SourceError, match=r"b\.npz holds the data of a\.npz, which count once"):
        ingest.ingest(
            [tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "s.zarr", average="scans"
        )


def test_an_interrupted_ingest_of_scans_is_continued(tmp_path, scans):
    interrupt_ingest(scans, tmp_path / "all.zarr", bins=3)
    steps = []
    ingest.ingest(scans, tmp_path / "all.zarr", progress=lambda done, total: steps.append(done))
    assert steps[0] >= 4
    assert steps[-1] == 6
    straight = ingest.ingest(scans, tmp_path / "straight.zarr").store
    assert attributes(straight)["store_sha256"] == attributes(tmp_path / "all.zarr")["store_sha256"]
