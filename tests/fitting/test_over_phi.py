"""Fits of each angle by itself."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import SelectionError
from tests.run_command import done

N, DT = 60, 0.1
LAG = DT * np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
PHI = np.array([0.0, 30.0, 60.0, 90.0])
FREQUENCY = 2 * np.cos(np.deg2rad(PHI - 10))


def made(path, q=0.01, phi=PHI):
    """Fringes whose frequency is that of a flow, in a decay of one rate."""
    rng = np.random.default_rng(3)
    f = np.exp(-0.5 * LAG) * np.cos(2 * np.pi * FREQUENCY[:, None, None] * LAG)
    c2 = np.triu(1 + 0.2 * f + rng.normal(0, 0.01, f.shape), 1)
    np.savez(path, c2=c2, q=q, phi=phi, dt=DT, sigma=0.01)
    return ingest.ingest(path).store


@pytest.mark.long
def test_each_angle_has_a_frequency_of_its_own(tmp_path):
    store = made(tmp_path / "A.npz")
    series = hd.fit_each(store, "damped_cosine", over="phi")
    assert series.table["phi"].values.tolist() == PHI.tolist()
    found = series.table["value"].sel(param="frequency").values
    np.testing.assert_allclose(found, np.abs(FREQUENCY), rtol=0.01)
    assert series.agreement["rate"].p > 0.001
    assert series.agreement["frequency"].p < 1e-3
    words = ("--over", "phi", "--output", str(tmp_path / "out"), "--no-pictures")
    done("fit", str(store), "--model", "damped_cosine", *words)
    assert str(hd.load_series(tmp_path / "out")) == str(series)
    assert (tmp_path / "out" / "phi_30" / "summary.json").is_file()
    assert (tmp_path / "out" / "series.png").is_file()


def test_angles_of_several_rings_are_parts_of_their_own(tmp_path):
    store = made(tmp_path / "A.npz", q=[0.01, 0.01, 0.02, 0.02], phi=[0, 30, 0, 30])
    series = hd.fit_each(store, "damped_cosine", over="phi")
    assert [entry.name for entry in series.entries] == [
        f"q = {q} 1/Å, φ = {phi}°" for q in (0.01, 0.02) for phi in (0, 30)
    ]
    assert series.table["q"].values.tolist() == [0.01, 0.01, 0.02, 0.02]


def test_unknown_angles_are_refused(tmp_path):
    store = made(tmp_path / "A.npz", phi=np.full(4, np.nan))
    with pytest.raises(SelectionError, match="φ is unknown for 4 of 4 selected bins"):
        hd.fit_each(store, "damped_cosine", over="phi")
