"""c2 tends to 1 where all of the sample moves: an offset that differs from 1 is said, with what it may be."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from tests.speckle_scans import Photons
from tests.synthetic import fit_here, store

CODES = NOTE, WARNING = "offset-not-1", "offset-far-from-1"
MOVING = Photons(np.array([2e4, 0.0, 0.0]), pixels=2000, mean=4.0)
SLOW, FEW = replace(MOVING, theta=MOVING.theta / 10), replace(MOVING, frames=40, pixels=60)
HALF, OWN = replace(MOVING, frozen=0.5), replace(MOVING, own_average=True)
THREE = {"q": (0.01,) * 3, "phi": (0.0, 50.0, 100.0)}
FIXED = {"scaling": "fixed", "offset": 1.0, "contrast": 0.25}
CASES = {
    "all moves": (MOVING, 1.0, {}, ()),
    "all moves, at three angles": (replace(MOVING, **THREE), 1.0, {"scaling": "shared"}, ()),
    "longer than the record": (SLOW, 1.0, {}, ()),
    "half is frozen": (HALF, 1.0, {}, (WARNING,)),
    "half is frozen, weighted": (HALF, 1.0, {"weighting": "speckle"}, (WARNING,)),
    "half is frozen, with a loss": (HALF, 1.0, {"loss": "soft_l1"}, (WARNING,)),
    "half is frozen, at three angles": (replace(HALF, **THREE), 1.0, {"scaling": "shared"}, (WARNING,)),
    "a little is frozen": (replace(MOVING, frozen=0.1, pixels=6000), 1.0, {}, (NOTE,)),
    "another normalisation": (MOVING, 1.05, {}, (WARNING,)),
    "own averages": (OWN, 1.0, {}, (WARNING,)),
    "the offset is fixed": (HALF, 1.0, FIXED, ()),
}  # fmt: skip


@pytest.mark.parametrize("word", CASES)
def test_an_offset_is_said_where_c2_does_not_tend_to_1(word, tmp_path):
    photons, factor, options, codes = CASES[word]
    scans = photons.scan(3)
    scan = store(replace(scans, c2=scans.c2 * np.float32(factor)), tmp_path)
    found = fit_here(scan, hd.BROWNIAN, **options).findings.of(*CODES)
    assert found.codes == codes
    assert all((one.numbers["size"] < 0) == photons.own_average for one in found)


@pytest.mark.long
def test_an_offset_that_a_simulated_file_has_is_not_said(tmp_path):
    hd.simulate(tmp_path / "a.h5", scenario="creep", angles=3, frames=60, noise="speckle")
    result = hd.fit(hd.ingest(tmp_path / "a.h5", tmp_path / "a.zarr").store, "laminar_flow")
    assert float(result.scaling["offset"].mean()) > 1.09
    assert not result.findings.of(*CODES)


def test_the_command_for_a_frozen_part_is_advised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = fit_here(store(HALF.scan(3), tmp_path), hd.BROWNIAN).findings.of(WARNING)
    command = "homodyne-dask fit scan.zarr --model 'frozen + brownian' --offset prior=1:0.0009"
    assert found.advice == command


def test_the_rate_beside_a_frozen_part_is_the_truth(tmp_path):
    scan = store(HALF.scan(3), tmp_path)
    result = fit_here(scan, "frozen + brownian", offset={"prior": (1, 0.005)})
    assert abs(result.params["D0"].value - 2e4) < 3 * result.params["D0"].stderr
    assert not result.findings.of(*CODES)


@pytest.mark.parametrize(("photons", "codes"), [(MOVING, ()), (HALF, (WARNING,))])
def test_an_offset_of_a_table_is_said_too(photons, codes, tmp_path):
    c2, path = photons.scan(3).c2[0].astype(float), tmp_path / "a.csv"
    lags = np.unique(np.geomspace(1, 80, 30).astype(int))
    rows = [(lag / 10, np.diagonal(c2, lag).mean(), 0.002) for lag in lags]
    np.savetxt(path, rows, header="delay(s) g2(q=0.01) error", comments="")
    assert fit_here(hd.read_g2(path, q=0.01), hd.BROWNIAN).findings.of(*CODES).codes == codes


@pytest.mark.parametrize(("scaling", "ends"), [("individual", " of bin 2"), ("shared", "")])
def test_priors_of_offset_and_contrast_are_compared_with_the_fit(scaling, ends, tmp_path):
    scans = replace(MOVING, **THREE).scan(3)
    scans.c2[1] += 0.04
    scan = store(scans, tmp_path)

    def about(**prior):
        found = fit_here(scan, hd.BROWNIAN, scaling=scaling, **prior).findings
        return [one.about for one in found.of("far-from-prior", "prior-outweighed")]

    assert about(offset={"prior": (1, 0.003)})[0] == (f"offset{ends}",)
    assert f"contrast{ends}" in about(contrast={"prior": (0.4, 0.004)})[0]
    assert not about(contrast={"prior": (0.25, 0.1)})


@pytest.mark.long
def test_photons_of_moving_scatterers_are_not_called_frozen(tmp_path):
    """Of 216 such scans none were."""
    kinds, called = (FEW, MOVING, SLOW, replace(FEW, **THREE)), 0
    for n, (kind, seed) in enumerate((kind, seed) for kind in kinds for seed in range(12)):
        scan = store(kind.scan(seed), tmp_path, str(n))
        called += len(fit_here(scan, hd.BROWNIAN).findings.of(*CODES))
    assert called <= 1
