"""A target that holds something already: whole, half-written, of another ingest, or not of ours."""

import numpy as np
import pytest
import zarr

import ingest
from homodyne_dask.errors import SourceError, StoreError
from ingest import store_writer
from tests.ingest.test_changed_source import after_the_hash, interrupt
from tests.ingest_files import edited, interrupt_ingest, manifest, noisy, simulated


def test_a_second_ingest_does_nothing_and_says_so(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30)
    first = ingest.ingest(path)
    before = {file: file.stat().st_mtime_ns for file in first.store.rglob("*")}
    second = ingest.ingest(path)
    assert (first.skipped, second.skipped) == (False, True)
    assert "already complete" in str(second)
    assert second.bins == first.bins
    assert {file: file.stat().st_mtime_ns for file in first.store.rglob("*")} == before


@pytest.mark.long
def test_another_source_or_option_needs_overwrite(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30)
    report = ingest.ingest(path)
    with pytest.raises(StoreError, match="the same file with other options: give overwrite=True"):
        ingest.ingest(path, time_offset=5)
    second = simulated(tmp_path / "B.hdf", n=30, seed=9)
    with pytest.raises(StoreError, match=r"another file \(A.hdf\): give overwrite=True"):
        ingest.ingest(second, report.store)
    assert ingest.ingest(second, report.store, overwrite=True).source_file == "B.hdf"


@pytest.mark.long
def test_a_second_ingest_of_a_damaged_store_asks_for_overwrite(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30)
    chunk = ingest.ingest(path).store / "phi/c/0"
    chunk.write_bytes((chunk.parents[2] / "q/c/0").read_bytes())
    with pytest.raises(StoreError, match=r"phi differs from what was ingested: .* with"):
        ingest.ingest(path)
    assert str(ingest.ingest(path, overwrite=True)) == str(ingest.ingest(path)).replace(
        "already complete, nothing to do\n", ""
    )


def foreign_folder(path):
    path.mkdir()
    (path / "thesis.tex").write_text("chapter 1")


def foreign_zarr(path):
    zarr.create_group(path, attributes={"format": "something else"})


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "make", "message"),
    [
        ("a file", lambda path: path.write_text("x"), "exists and is not a store: give another"),
        ("a folder of something else", foreign_folder, "not a store of homodyne_dask"),
        ("a store of another kind", foreign_zarr, "not a store of homodyne_dask"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_that_is_not_ours_is_refused_and_left_alone(
    tmp_path, word, make, message, overwrite
):
    path = simulated(tmp_path / "A.hdf", n=20)
    make(tmp_path / "A_c2.zarr")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=message):
        ingest.ingest(path, overwrite=overwrite)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_kill_between_complete_and_cleaning_up_is_mended(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30)
    report = ingest.ingest(path)
    (report.store / store_writer.WORK_FOLDER).mkdir()
    assert ingest.ingest(path).skipped
    assert not (report.store / store_writer.WORK_FOLDER).exists()


@pytest.mark.long
def test_a_kill_as_the_record_of_a_bin_is_written_is_mended(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30)
    quiet = ingest.ingest(path, tmp_path / "quiet.zarr")

    store = tmp_path / "A_c2.zarr"
    interrupt_ingest(path, store, bins=1)
    record = min((store / store_writer.WORK_FOLDER).glob("bin-*.json"))
    record.rename(record.with_name(f"{record.name}.3dcb849988ec4ade8f65cfe698b4da71.partial"))
    ingest.ingest(path)
    assert manifest(store) == manifest(quiet.store)
    assert not [*store.rglob("*.partial")]


def stopped(folder):
    """Let the ingest of a file into c2.zarr stop at its third bin; return another file."""
    bad = edited(
        simulated(folder / "A.hdf", n=30),
        **{"/xpcs/twotime/correlation_map/c2_00003": noisy(30) + np.tri(30)},
    )
    with pytest.raises(SourceError, match="not symmetric"):
        ingest.ingest(bad, folder / "c2.zarr")
    return simulated(folder / "B.hdf", n=30)


@pytest.mark.long
def test_an_unfinished_ingest_of_another_file_needs_overwrite(tmp_path):
    good = stopped(tmp_path)
    with pytest.raises(StoreError, match="unfinished ingest of another file: give overwrite=True"):
        ingest.ingest(good, tmp_path / "c2.zarr")
    assert not ingest.ingest(good, tmp_path / "c2.zarr", overwrite=True).skipped


def test_an_ingest_stopped_before_its_source_was_hashed_begins_anew(tmp_path):
    good = stopped(tmp_path)
    (tmp_path / "c2.zarr" / store_writer.WORK_FOLDER / store_writer.JOB_FILE).unlink()
    done = []
    ingest.ingest(good, tmp_path / "c2.zarr", progress=lambda k, _: done.append(k))
    assert done == [1, 2, 3]


def exchanged(first, second):
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def edited_record(first, second):
    first.write_text(first.read_text().replace('"zeros": 0', '"zeros": 1'))


@pytest.mark.parametrize("change", [exchanged, edited_record])
def test_what_is_exchanged_between_finished_bins_is_not_sealed(tmp_path, change):
    c2 = np.stack([noisy(20, k) for k in range(3)])
    c2[1, 3] = c2[1, :, 3] = np.nan  # counts that differ
    np.savez(tmp_path / "A.npz", c2=c2, q=[0.01] * 3, phi=[0, 60, 120], dt=0.1)
    store = tmp_path / "s.zarr"
    with pytest.raises(KeyboardInterrupt):
        ingest.ingest(tmp_path / "A.npz", store, progress=after_the_hash(3, store, interrupt))
    change(*(store / f".ingest/bin-00000{n}.json" for n in (0, 1)))
    with pytest.raises(StoreError, match="damaged"):
        ingest.ingest(tmp_path / "A.npz", store)
    ingest.ingest(tmp_path / "A.npz", store, overwrite=True)
