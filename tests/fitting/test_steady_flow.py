"""Errors of J of a steady flow, which the two of ten bins across the flow determine."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.design.photons import PhotonScan
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.results.data.fit_rows import fit_row
from ingest.simulate import angles

THETA = np.array([2e4, 0.0, 0.0, 5e-4, 0.0, 0.0, 0.0])
SCATTER = 550.0
"""Of J at the mean age, between 40 scans with all seven parameters free."""
OTHERS = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0, "alpha": 0.0, "beta": 0.0}


@pytest.mark.long
def test_the_error_of_J_is_that_of_speckle_however_many_parameters_are_free(tmp_path):
    """All eigenvalues but one are a million million times the smallest: rounding left no variance of J."""
    bins, counts = 10, np.ones((10, 299))
    same = (np.full(bins, of) for of in (0.3, 1.0, 1.0))
    of = PhotonScan(
        Problem(hd.LAMINAR_FLOW, gap=2e6), THETA, 0.1 * np.arange(299), np.full(bins, 0.0054), angles(bins),
        *same, np.full(bins, 1000), np.arange(bins),
    )  # fmt: skip
    held = {"phi": of.phi, "time": of.time, "q": of.q, "counts": counts, "pixels": of.pixels}
    np.savez(tmp_path / "A.npz", c2=of.c2(4), **held)
    scan = hd.open_dataset(hd.ingest(tmp_path / "A.npz", tmp_path / "A.zarr").store)
    errors = []
    for fixed in (OTHERS, {}):
        result = hd.fit(scan, "laminar_flow", gap=2e6, fixed=fixed)
        age = float(scan.time.mean())
        found = fit_row("", None, result, at={"age": age}).quantities
        assert found["J"].method == "speckle"
        assert found["J"].dof > 20
        assert result.params["phi0"].dof > 20
        at = int(np.abs(result.rates["t"].values - age).argmin())
        assert result.rates["J_stderr"].values[at] == pytest.approx(found["J"].stderr, rel=0.05)
        errors.append(found["J"].stderr)
    assert 0.7 * SCATTER < errors[1] < 1.4 * SCATTER
    assert 0.3 * SCATTER < errors[0] < 1.1 * errors[1]
