"""What is used of xarray's insides: what it gives, and what is done without it."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import xarray

from homodyne_dask.results._xarray_internals import in_memory
from tests.synthetic import FLOW, measured, store


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


FIT = """
import sys
import homodyne_dask as hd

loaded = []
first = [lambda _: loaded.append(set(sys.modules))]
result = hd.fit("scan.zarr", hd.STATIC, fixed={"alpha": 0}, callbacks=first)
print([name for name in ("jax", "xarray") if name in loaded[0]])
str(result), result.to_dataset(), result._repr_html_()
print([name for name in ("dask.array", "distributed", "matplotlib", "bokeh") if name in sys.modules])
import numpy, xarray
chunked = result.parameters.chunk()
masked = chunked["value"].copy(data=numpy.ma.masked_invalid([1, numpy.nan, 3])).chunk()
print(type(chunked["value"].data).__module__, masked.mean().compute().item())
"""


@pytest.mark.long
def test_a_fit_in_this_process_and_its_tables_load_neither_dask_nor_drawing(tmp_path):
    store(measured(FLOW[:3], 60, (0.0, 50.0)), tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", FIT], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert ran.stdout.splitlines() == ["[]", "[]", "dask.array.core 2.0"], ran.stderr
