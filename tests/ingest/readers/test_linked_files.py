"""Master files: virtual datasets and external links, read below one folder alone."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import SourceError, StoreError

N = 24
T = np.arange(N)
C2 = np.array([1 + 0.2 * np.exp(-np.abs(T[:, None] - T) / tau) for tau in (4.0, 6.0, 8.0)])
NOISE = np.triu(np.random.default_rng(1).normal(0, 0.01, C2.shape), 1)
C2 += NOISE + NOISE.transpose(0, 2, 1)


@pytest.fixture(autouse=True)
def _raw_files(tmp_path, monkeypatch):
    """In m/raw a file for each bin, and two with every other row; in proc one outside m."""
    monkeypatch.chdir(tmp_path)
    Path("m/raw").mkdir(parents=True)
    Path("proc").mkdir()
    for k, matrix in enumerate(C2):
        written(f"m/raw/s{k}.h5", c2=matrix)
    written("m/raw/even.h5", c2=C2[:, 0::2])
    written("m/raw/odd.h5", c2=C2[:, 1::2])
    written("proc/z.h5", c2=C2[2])
    Path("m/raw/link.h5").symlink_to(Path("proc/z.h5").absolute())
    os.mkfifo("m/raw/pipe.h5")


def written(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
        file["q"] = [0.01, 0.02, 0.03]


def virtual(path, *sources):
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout(C2.shape, "f8")
        for k, source in enumerate(sources):
            layout[k] = h5py.VirtualSource(source, "c2", (N, N))
        file.create_virtual_dataset("c2", layout)
        file["q"] = [0.01, 0.02, 0.03]


def rows_in_turn(path):
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout(C2.shape, "f8")
        for k, name in enumerate(("even", "odd")):
            layout[:, k::2] = h5py.VirtualSource(f"raw/{name}.h5", "c2", (3, N // 2, N))
        file.create_virtual_dataset("c2", layout)
        file["q"] = [0.01, 0.02, 0.03]


def virtual_of_virtual(path):
    virtual("m/inner.h5", *RAW)
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout(C2.shape, "f8")
        layout[...] = h5py.VirtualSource("inner.h5", "c2", C2.shape)
        file.create_virtual_dataset("c2", layout)
        file["q"] = h5py.ExternalLink("inner.h5", "/q")


def circle(path):
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout(C2.shape, "f8")
        layout[...] = h5py.VirtualSource(Path(path).name, "c2", C2.shape)
        file.create_virtual_dataset("c2", layout)


def links(path, *names):
    written(path, **{f"c2/b{k}": h5py.ExternalLink(name, "/c2") for k, name in enumerate(names)})


def group_elsewhere(path):
    written("m/raw/all.h5", **{f"c2/b{k}": matrix for k, matrix in enumerate(C2)})
    written(path, c2=h5py.ExternalLink("raw/all.h5", "/c2"))


RAW = ("raw/s0.h5", "raw/s1.h5", "raw/s2.h5")
READ = {
    "sources below the folder": lambda path: virtual(path, *RAW),
    "files that were moved": lambda path: virtual(path, *(f"/gone/far/{name}" for name in RAW)),
    "rows in turn": rows_in_turn,
    "virtual of virtual, and a link": virtual_of_virtual,
    "an external link for each bin": lambda path: links(path, *RAW),
    "a group in another file": group_elsewhere,
}


def ingested(path, **options):
    report = hd.ingest(path, "out.zarr", dataset="c2", q_dataset="q", phi=0, dt=0.1, **options)
    return hd.open_dataset(report.store).dataset["c2"].values, report


@pytest.mark.parametrize("sharded", [False, True], ids=["each bin alone", "all bins in one task"])
@pytest.mark.parametrize("way", READ)
def test_a_master_file_gives_the_numbers_of_its_sources(way, sharded):
    READ[way]("m/A.h5")
    c2, report = ingested("m/A.h5", sharded=sharded)
    upper = np.triu_indices(N, 1)
    np.testing.assert_allclose(c2[:, *upper], C2[:, *upper], atol=1e-6)
    assert any("that the source leads to: " in note for note in report.notes)


@pytest.mark.parametrize(
    ("way", "says"),
    [(lambda path: virtual(path, "raw/x.h5", RAW[1], "raw/y.h5"), "needs raw/x.h5, raw/y.h5, which are"),
     (lambda path: links(path, *RAW, "raw/x.h5", "y.h5"), "needs raw/x.h5, y.h5, which are not below"),
     (lambda path: virtual(path, *RAW[:2], "../proc/z.h5"), r"needs \.\./proc/z.h5, which is not below"),
     (lambda path: virtual(path, *RAW[:2], str(Path("proc/z.h5").absolute())), "z.h5, which is not"),
     (lambda path: virtual(path, *RAW[:2], "raw/link.h5"), "needs raw/link.h5, which is not below"),
     (lambda path: virtual(path, *RAW[:2], "raw/pipe.h5"), "needs raw/pipe.h5, which is not below"),
     (lambda path: virtual(path, *RAW[:2], "raw/even.h5"), "another number of values than its place"),
     (circle, "chain of too many virtual datasets")],
    ids=["missing", "missing links", "above", "absolute", "symbolic link", "pipe", "shape", "circle"],
)  # fmt: skip
def test_what_is_missing_or_outside_is_named(way, says):
    way("m/A.h5")
    with pytest.raises(SourceError, match=says):
        ingested("m/A.h5")


def test_follow_gives_the_folder_that_has_all_files():
    virtual("proc/A.h5", *(f"../m/{name}" for name in RAW[:2]), "z.h5")
    c2, _ = ingested("proc/A.h5", follow=".")
    assert np.isclose(c2[2, 3, 9], C2[2, 3, 9])
    with pytest.raises(SourceError, match=r"needs z\.h5, which is not below"):
        ingested("proc/A.h5", follow="m", overwrite=True)


def test_a_source_that_changed_is_no_longer_what_the_store_has():
    virtual_of_virtual("m/A.h5")
    ingested("m/A.h5")
    assert ingested("m/A.h5")[1].skipped
    with h5py.File("m/raw/s1.h5", "r+") as file:
        file["c2"][0, 5] += 0.01
    with pytest.raises(StoreError, match="contains another file"):
        ingested("m/A.h5")
