"""The cache of homodyne and xpcsjax."""

import json

import numpy as np
import pytest

import ingest
from homodyne_dask.errors import HomodyneDaskError
from tests.ingest_files import DT, Q, arrays, attributes, noisy, upper

N = 30
BINS = [noisy(N, k) for k in range(3)]
PHI = [-60.0, 0.0, 60.0]
TIME = np.linspace(0, DT * (N - 1), N)
CACHE = {
    "c2_exp": np.stack(BINS).astype(np.float64),
    "wavevector_q_list": np.full(3, Q),
    "phi_angles_list": np.array(PHI),
    "t1": TIME,
    "t2": TIME,
}


def cache(path, **changes):
    held = {**CACHE, **changes}
    np.savez_compressed(path, **{k: v for k, v in held.items() if v is not None})
    return path


def test_homodynes_cache_is_read_as_it_is(tmp_path):
    about = {"start_frame": 11, "end_frame": 40, "cache_version": "2.0"}
    report = ingest.ingest(
        cache(tmp_path / "cached_c2.npz", cache_metadata_json=np.asarray(json.dumps(about)))
    )
    held, attrs = arrays(report.store), attributes(report.store)
    np.testing.assert_array_equal(held["c2"], upper(np.stack(BINS)))
    assert [row.q for row in report.bins] == [Q] * 3
    assert [row.phi for row in report.bins] == PHI
    np.testing.assert_allclose(held["time"], TIME, atol=1e-12)
    assert attrs["source_format"] == "homodyne"
    assert (attrs["begin_frame"], attrs["end_frame"]) == (11, 40)
    assert any("times count from frame 11" in note for note in report.notes)


def test_an_older_cache_holds_its_times_as_planes_and_one_q(tmp_path):
    t1, t2 = np.meshgrid(TIME, TIME, indexing="ij")
    one = np.array([Q])
    for planes in ({"t1": t1, "t2": t2}, {"t1": t2, "t2": t1}):
        path = cache(tmp_path / "A.npz", wavevector_q_list=one, **planes)
        report = ingest.ingest(path, overwrite=True)
        assert report.frame_time == pytest.approx(DT)
        assert [row.q for row in report.bins] == [Q] * 3


CACHE_MISTAKES = {
    "no angles": ({"phi_angles_list": None}, "has c2_exp but no phi_angles_list"),
    "angles": ({"phi_angles_list": np.zeros(2)}, "phi of A.npz has 2 values for 3 bins"),
    "times": ({"t2": TIME + 1}, "are not the same times"),
    "length": ({"t1": TIME[:-1], "t2": TIME[:-1]}, "29 entries for 30 frames"),
    "objects": ({"c2_exp": np.array([None])}, "c2_exp of A.npz holds object"),
    "shape": ({"c2_exp": np.zeros((2, 3, 4))}, r"c2_exp of A.npz has shape \(2, 3, 4\)"),
    "metadata": ({"cache_metadata_json": np.asarray("{")}, "cannot be read as NumPy arrays"),
}


@pytest.mark.parametrize("word", CACHE_MISTAKES)
def test_a_damaged_cache_is_named(tmp_path, word):
    changes, message = CACHE_MISTAKES[word]
    with pytest.raises(HomodyneDaskError, match=message):
        ingest.ingest(cache(tmp_path / "A.npz", **changes))
