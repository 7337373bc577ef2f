"""Packages of extras: one sentence says what needs a missing one, and how to install it."""

import re
import sys
from typing import Any, cast

import h5py
import hdf5plugin
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster import connect as tls
from homodyne_dask.errors import PackageError, require_package
from ingest.readers import hdf5
from tests.applications import public

ANYTHING = cast(Any, object())


def enter(context):
    with context:
        pass


NEEDS = {
    "hd.view": ("bokeh", "view", lambda _: public("view")()),
    "hd.posterior": ("arviz_stats", "posterior", lambda _: public("posterior")(ANYTHING)),
    "a store by URL": ("obstore", "objectstore", lambda _: hd.open_dataset("s3://bucket/store")),
    "a site": ("dask_jobqueue", "slurm", lambda _: enter(public("slurm_cluster")("generic"))),
    "the key": ("cryptography", "slurm", lambda folder: tls.make_key(folder / "key")),
}


@pytest.mark.parametrize("case", NEEDS)
def test_one_sentence_says_what_a_missing_package_is_for(case, monkeypatch, tmp_path):
    package, extra, use = NEEDS[case]
    monkeypatch.setitem(sys.modules, package, None)
    wanted = rf'.+ needs {package}: pip install "homodyne-dask\[{extra}\]"'
    with pytest.raises(PackageError) as raised:
        use(tmp_path)
    assert re.fullmatch(wanted, str(raised.value))


def test_a_compressed_matrix_is_read_with_the_filters_of_an_extra(monkeypatch, tmp_path):
    file = tmp_path / "A0001_results.hdf"
    with h5py.File(file, "w") as made:
        made.create_dataset("c2", data=np.ones((8, 8)), **hdf5plugin.Bitshuffle())
    assert (hdf5.read_matrix(file, "c2") == 1).all()
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda _: False)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(PackageError, match=r"c2 of A0001_results\.hdf .* 32008\) needs hdf5plugin"):
        hdf5.read_matrix(file, "c2")


def test_a_package_that_is_there_but_broken_is_no_missing_extra(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        require_package("this", "broken_package", "view")
