"""What is used of xarray's insides: what it gives, and what is done without it."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray

from homodyne_dask.fitting.curve_fit._xarray_internals import in_memory


@pytest.fixture
def datasets(tmp_path):
    """The same variable in memory, as an array of Dask, and in a store."""
    here = xarray.Dataset({"y": ("x", np.arange(4.0))})
    here.to_zarr(tmp_path / "y.zarr", consolidated=False)
    stored = xarray.open_zarr(tmp_path / "y.zarr", chunks=None, consolidated=False)
    return {"here": here, "dask": here.chunk({"x": 2}), "stored": stored}


def test_only_what_is_loaded_is_in_memory(datasets):
    assert {name: in_memory(of, "y") for name, of in datasets.items()} == {
        "here": True,
        "dask": False,
        "stored": False,
    }
    assert in_memory(datasets["stored"].load(), "y")


def test_without_the_private_name_chunks_and_source_tell(datasets):
    class Stripped:
        def __init__(self, dataset):
            self.encoding, self.variable = dataset.encoding, dataset["y"].variable

        def __getitem__(self, name):
            return SimpleNamespace(variable=SimpleNamespace(chunks=self.variable.chunks))

    assert {name: in_memory(Stripped(of), "y") for name, of in datasets.items()} == {
        "here": True,
        "dask": False,
        "stored": False,
    }
