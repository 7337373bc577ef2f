"""`result.plot` opens the data of its fit by itself."""

import shutil

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import StoreError
from homodyne_dask.results.data.fit_view import fitted_scan
from tests.results.made_results import changed, scan_of
from tests.synthetic import CREEP


@pytest.fixture
def fitted(tmp_path):
    """A scan and the fit of some of its bins, in another order, and frames."""
    scan = scan_of(tmp_path, CREEP, n=40).select(label=[3, 1], frames=(2, 38))
    known = {"D_offset": 1000.0, "alpha": -0.4}
    return scan, hd.fit(scan, hd.STATIC, initial={"D0": 20000.0}, fixed=known)


def test_a_figure_finds_the_bins_and_frames_of_its_fit(fitted, tmp_path):
    scan, result = fitted
    result.to_json(tmp_path / "fit.json")
    for one in (result, hd.load_result(tmp_path / "fit.json")):
        assert fitted_scan(one).selection == scan.selection
        drawn = one.plot.cuts()
        assert [a.get_title() for a in drawn.axes] == [
            a.get_title() for a in one.plot.cuts(scan).axes
        ]


def test_a_store_that_is_gone_or_changed_is_not_drawn(fitted):
    scan, result = fitted
    other = changed(result, inputs=result.provenance.inputs | {"store_sha256": "0" * 64})
    with pytest.raises(StoreError, match="has changed since the fit: fit again, or give the scan"):
        other.plot.maps()
    shutil.rmtree(scan.path)
    with pytest.raises(StoreError, match="does not exist"):
        result.plot.maps()
