"""A client of a cluster that somebody else started: no settings of ours, another working folder."""

import os
from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

import homodyne_dask as hd
from homodyne_dask.errors import ClusterError
from homodyne_dask.fitting.events import on_pass
from tests.result_bits import result_bits
from tests.synthetic import CREEP, fit_here, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}, "max_passes": 3}
ELSEWHERE = """
import os, sys
os.chdir({there!r})

def hide(event, details):
    if event == "open" and str(details[0]).startswith({hidden!r}):
        raise FileNotFoundError(2, "No such file or directory", details[0])

sys.addaudithook(hide)
"""
"""Runs in a worker as it starts: another working folder, on a machine that lacks one folder of this one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    for name in ("here", "hidden"):
        store(measured(CREEP, 60, [0.0, 45.0], dt=0.1), folder, name)
    return folder


@pytest.fixture(scope="module")
def client(folder) -> Iterator[Client]:
    (folder / "away").mkdir()
    preload = folder / "elsewhere.py"
    values = {"there": str(folder / "away"), "hidden": str(folder / "hidden.zarr")}
    preload.write_text(ELSEWHERE.format(**values))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", preload=[str(preload)]
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.long
def test_workers_in_another_folder_give_the_bits_of_a_fit_in_this_process(
    folder, client, monkeypatch
):
    monkeypatch.chdir(folder)
    assert set(client.run(os.getcwd).values()) == {str(folder / "away")}
    result = hd.fit("here.zarr", hd.STATIC, **GIVEN, client=client)
    assert result_bits(result) == result_bits(
        fit_here(hd.open_dataset("here.zarr"), hd.STATIC, **GIVEN)
    )
    pools = client.run(lambda: os.environ["NPROC"])
    assert set(pools.values()) == {"1"}


@pytest.mark.long
def test_workers_that_do_not_see_the_store_are_named_before_the_first_pass(folder, client):
    passes = []
    given = GIVEN | {"callbacks": [on_pass(passes.append)]}
    with pytest.raises(ClusterError) as said:
        hd.fit(folder / "hidden.zarr", hd.STATIC, **given, client=client)
    sentences = str(said.value).splitlines()
    assert len(sentences) == 2
    for sentence in sentences:
        assert f"cannot read the store {folder / 'hidden.zarr'} (No such file" in sentence
        assert "put it on a file system that all nodes share" in sentence
    assert passes == []
