"""Files with right checksums that hold what no fit and no ingest writes are refused as they are read."""

import hashlib
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, SourceError
from homodyne_dask.results.files.json_files import write_with_checksum
from tests.applications import public
from tests.faults.test_store import edited
from tests.ingest_files import reseal
from tests.synthetic import CREEP, angles, fit_here, measured, module_scan

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}
scan = module_scan(lambda: measured(CREEP, 40, angles(4), dt=0.1))


@pytest.fixture(scope="module")
def result(scan):
    return fit_here(scan, hd.STATIC, **GIVEN)


VALUES = {
    "a number of 400 digits": (["scaling_per_bin", "phi", 1], 10**400),
    "text among numbers": (["influence", "columns", "change", "values", 0], "x"),
    "a list for a name": (["config", "model"], ["x"]),
    "no labels": (["inputs", "labels"], None),
    "a text for a count": (["ndata"], "many"),
    "a truth value for a number": (["chisqr"], True),
    "a number among notes": (["inputs", "notes"], [1]),
    "a range that is none": (["inputs", "frames", 1], None),
    "an option of another type": (["config", "bounds"], ["x"]),
    "a finding without its numbers": (["findings"], [{"code": "at-bound"}]),
    "a digest that is none": (["inputs", "source_sha256"], 1e308),
}


@pytest.mark.parametrize("word", VALUES)
def test_a_summary_that_no_fit_writes_is_a_sentence(result, tmp_path, word):
    *path, last = VALUES[word][0]
    held = result.to_dict()
    at = held
    for key in path:
        at = at[key]
    at[last] = VALUES[word][1]
    write_with_checksum(held, tmp_path / "summary.json")
    with pytest.raises(SourceError, match="lacks values of a result, or has unexpected ones"):
        hd.load_result(tmp_path)


ARRAYS = {
    "cuts/c2": 1e300, "cuts/count": -3, "cuts/age_edges": -5, "cuts/lag_edges": 0, "sums/pairs": -4,
    "sums/weight": -1.0, "intensity": 1e300, "n_pixels": -2, "q": 1e300, "time": 1.0,
}  # fmt: skip


def sealed(store: Path, arrays=(), attributes=(), pairs=None) -> Path:
    """A store whose arrays or attributes are others, its checksums right."""
    group = zarr.open_group(store, mode="r+")
    for name, value in dict(arrays).items():
        values = group[name][...]
        values.flat[slice(None) if value == 0 else -1] = value
        with zarr.config.set({"array.write_empty_chunks": True}):  # of zeros, too
            group[name][...] = values
    edited(store, "", **dict(attributes))
    reseal(store, **({} if pairs is None else {"pairs": pairs}))
    return store


@pytest.mark.parametrize("change", [
    *({"arrays": {name: value}} for name, value in ARRAYS.items()),
    *({"arrays": {"sigma_row": value}} for value in (0.0, np.nan, 1e200, 1e-100)),
    {"attributes": {"scans": ["a", "b", "c"]}}, {"pairs": [[0]] * 4}, {"pairs": [[2**62]] * 4},
    {"arrays": {"sums/pairs": 0}}, {"arrays": {"sums/pairs": 9}},
], ids=str)  # fmt: skip
def test_a_store_that_no_ingest_writes_is_a_sentence(scan, tmp_path, change):
    copy = sealed(shutil.copytree(scan.path, tmp_path / "A.zarr"), **change)
    with pytest.raises(HomodyneDaskError, match=r"ingest (it|the source) again"):
        fit_here(hd.open_dataset(copy), hd.STATIC, **GIVEN)


def replaced(change):
    def write(held):
        draws = held["posterior/D0"][...]
        del held["posterior/D0"]
        held["posterior"].create_dataset("D0", **change(draws))

    return write


LIES = {
    "NaN": lambda held: held["posterior/D0"].__setitem__((0, 3), np.nan),
    "beyond numbers": lambda held: held["posterior/D0"].__setitem__((0, 3), 1e300),
    "huge": replaced(lambda _: {"shape": (4, 10**9), "dtype": "f8", "chunks": (1, 1000)}),
    "one number": replaced(lambda _: {"data": 1.0}),
    "complex": replaced(lambda draws: {"data": draws + 1j}),
    "format": lambda held: held.attrs.update(format=[1, 2]),
}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("lie", LIES)
def test_draws_that_no_sampler_makes_are_a_sentence(scan, result, tmp_path, lie):
    file = tmp_path / "posterior.nc"
    public("posterior")(result, scan, draws=200).to_netcdf(file)
    assert hd.load_posterior(file).theta.shape == (200, 3)
    file.write_bytes(file.read_bytes()[:-64])
    with h5py.File(file, "r+") as held:
        LIES[lie](held)
    content = file.read_bytes()
    file.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    with pytest.raises(SourceError, match=r"no (real )?number|declares|is not a homodyne"):
        hd.load_posterior(file)
