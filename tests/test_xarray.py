"""The accessor of datasets of xarray: the same selection, plan and result as from a scan."""

from importlib import reload

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
import homodyne_dask.xarray as registered
from homodyne_dask.errors import HomodyneDaskError
from tests.synthetic import angles, measured, store

THETA = (2500.0, -0.3, 100.0)
FIXED = dict(zip(hd.STATIC.names, THETA, strict=True))


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return store(measured(THETA, 24, angles(3)), tmp_path_factory.mktemp("accessor"))


CHOICES = {
    "everything": lambda ds: ds,
    "bins and frames": lambda ds: ds.isel(bin=[2, 0], t1=slice(3, 20), t2=slice(3, 20)),
    "by value": lambda ds: ds.sortby("phi").sel(t1=slice(2, 5), t2=slice(2, 5)),
    "one bin": lambda ds: ds.isel(bin=1),
    "in memory": lambda ds: ds.isel(bin=[1]).compute(),
    "turned": lambda ds: ds.transpose("t2", "t1", "bin", "t"),
}


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
def test_a_choice_of_a_dataset_is_that_of_the_scan(scan, chosen):
    ds = chosen(scan.dataset)
    found = ds.xpcs.scan
    np.testing.assert_array_equal(found.label, np.atleast_1d(ds["label"]))
    np.testing.assert_array_equal(found.time[slice(*found.frames)], ds["t1"])
    wanted = np.atleast_3d(ds["c2"].transpose(..., "t1", "t2").values.T).T
    np.testing.assert_array_equal(found.dataset["c2"].values, wanted)


@pytest.mark.slow
def test_plan_and_fit_are_those_of_the_scan(scan):
    chosen = scan.select(label=[2, 3], frames=(2, None))
    assert str(chosen.dataset.xpcs.plan("static")) == str(hd.plan(chosen, "static"))
    one, other = (
        chosen.dataset.xpcs.fit("static", fixed=FIXED),
        hd.fit(chosen, "static", fixed=FIXED),
    )
    assert one.chisqr == other.chisqr
    assert one.provenance.inputs["labels"] == [2, 3]


def test_a_dataset_of_the_users_is_fitted_from_a_store(scan, tmp_path):
    plain = xarray.Dataset(
        {"c2": (("bin", "t1", "t2"), 1.5 * scan.dataset["c2"].values)},
        {name: ("bin", getattr(scan, name)) for name in ("q", "phi")}
        | dict.fromkeys(("t1", "t2"), scan.time),
    )
    with pytest.raises(
        HomodyneDaskError, match=r"does not come from a store: scan = ds.xpcs.ingest\('c2.zarr'\)"
    ):
        plain.xpcs.fit("static")
    made = plain.xpcs.ingest(tmp_path / "c2.zarr")
    np.testing.assert_array_equal(made.q, scan.q)
    np.testing.assert_array_equal(made.phi, scan.phi)
    np.testing.assert_allclose(made.dataset["c2"], plain["c2"], rtol=1e-6)
    assert made.dataset.xpcs.scan.path == made.path
    alone = plain.isel(bin=0).xpcs.ingest(tmp_path / "alone.zarr", phi=5.0)
    assert alone.phi.tolist() == [5.0]


def shuffled(ds):
    return ds.isel(t1=[1, 0, 2], t2=[1, 0, 2])


MISTAKES = {
    "no c2": lambda ds: ds.drop_vars("c2"),
    "empty": lambda ds: xarray.Dataset(),
    "a cut": lambda ds: ds.isel(t1=0),
    "other t2": lambda ds: ds.isel(t1=slice(3, 9)),
    "shuffled": shuffled,
    "every other": lambda ds: ds.isel(t1=slice(0, 9, 2), t2=slice(0, 9, 2)),
    "computed": lambda ds: ds.assign(c2=2 * ds["c2"]),
    "computed in memory": lambda ds: ds.assign(c2=2 * ds["c2"].compute()),
    "other angles": lambda ds: ds.assign_coords(phi=ds["phi"] + 5),
    "other mask": lambda ds: ds.assign(frame_mask=~ds["frame_mask"]),
    "given mask": lambda ds: ds.assign(frame_mask=("t", [True] * 24)),
    "no times": lambda ds: ds.drop_vars("t1"),
    "no frames": lambda ds: ds.isel(t1=[], t2=[]),
}


@pytest.mark.parametrize("word", MISTAKES)
def test_a_dataset_that_cannot_be_fitted_is_refused_in_a_sentence(scan, word):
    with pytest.raises(HomodyneDaskError, match=r"c2|phi|frames?") as raised:
        MISTAKES[word](scan.dataset).xpcs.plan("static")
    assert "\n" not in str(raised.value)


def test_a_store_that_changed_is_refused(scan):
    with pytest.raises(HomodyneDaskError, match="has changed since this dataset was opened"):
        _ = scan.dataset.assign_attrs(store_sha256="0" * 64).xpcs.scan


def test_registering_twice_warns_of_nothing():  # a warning is an error in tests
    reload(registered)
