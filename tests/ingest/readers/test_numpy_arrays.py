"""Arrays with their numbers, in files of NumPy or without a file; the cache of homodyne and xpcsjax."""

import json
import zipfile

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError
from homodyne_dask.store.scan import open_dataset
from ingest.readers.any_hdf5 import MatrixAxes
from ingest.readers.numpy_arrays import read_npz
from tests.ingest_files import DT, Q, arrays, attributes, noisy, simulated, upper
from tests.synthetic import CREEP, angles, measured


def npz(path, **arrays_):
    np.savez(path, **arrays_)
    return path


C2 = np.stack([noisy(20, k) for k in range(2)])


@pytest.mark.parametrize("compressed", [False, True])
def test_an_npz_holds_everything_and_other_keys_are_listed(tmp_path, compressed):
    save = np.savez_compressed if compressed else np.savez
    values = {"q": [0.001, 0.002], "phi": 30.0, "dt": np.float32([[0.05]]), "sigma": [0.01, 0.02]}
    save(tmp_path / "A.npz", c2=C2, weather="fine", **values)
    report = ingest.ingest(tmp_path / "A.npz")
    assert report.sigma_source == "constant"
    assert [row.sigma for row in report.bins] == pytest.approx([0.01, 0.02])
    assert [row.q for row in report.bins] == [0.001, 0.002]
    assert report.frame_time == 0.05
    assert "ignored in A.npz: weather" in report.notes
    expected = np.where(np.tri(20), np.nan, C2)
    np.testing.assert_array_equal(arrays(report.store)["c2"], expected.astype(np.float32))


def test_an_npy_takes_its_numbers_from_the_options(tmp_path):
    np.save(tmp_path / "A.npy", C2[0])
    options = {"q": np.nan, "phi": 0, "frame_time": 1, "gap": 2e6, "time_offset": 5.5}
    report = ingest.ingest(tmp_path / "A.npy", **options)
    store, attrs = arrays(report.store), attributes(report.store)
    assert np.isnan(store["q"]).all()
    assert "  unknown   0.00" in str(report)
    assert "unknown" in str(open_dataset(report.store))
    assert store["time"].tolist() == [5.5 + i for i in range(20)]
    assert attrs["gap_angstrom"] == 2e6
    assert "5.5 s were added to all times (time_offset)" in report.notes


def test_uneven_times_are_kept_from_the_first_frame(tmp_path):
    time = 3.0 + np.cumsum(np.linspace(0.1, 0.3, 20))
    path = npz(tmp_path / "A.npz", c2=C2, q=0.01, phi=0.0, time=time)
    report = ingest.ingest(path)
    np.testing.assert_allclose(arrays(report.store)["time"], time - time[0])
    assert any("time began at 3.1 s" in note for note in report.notes)


GOOD = {"c2": C2, "q": 0.01, "phi": 0.0, "dt": 0.1}
WRONG = {
    "c2": [None, np.ones((2, 3, 4)), np.ones(9), np.full((5, 5), None), C2 * 1j, np.ones((2, 2))],
    "q": [None, [1, 2, 3], -1.0, "0.01", 1e300],
    "phi": [None, 1e300],
    "dt": [None, 0.0, 1e300, 1e-300],
    "sigma": [0.0, [0.1, np.nan], np.ones((20, 20)), 1e300, 1e-300],
    "time": [np.arange(19.0), np.r_[0:10, 8, 11:20], 0.2 * np.arange(20)],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_npz_is_refused_naming_the_file_and_the_key(tmp_path, name):
    key = {"c2": "c2|frames", "dt": "dt|time|frame spacing"}.get(name, name)
    for value in WRONG[name]:
        contents = {k: array for k, array in (GOOD | {name: value}).items() if array is not None}
        with pytest.raises((SourceError, OptionError), match=key) as raised:
            ingest.ingest(npz(tmp_path / "A.npz", **contents))
        assert "A.npz" in str(raised.value), value


OPTIONS = {
    "frame_time": [0.2, np.arange(40.0)],
    "q": [0.1],
    "sigma": [0, np.inf, [1, 2], [1 + 1j, 1, 1], [1, {}, 1]],
    "time_offset": [np.datetime64(1, "s"), np.inf],
    "gap": ["200 um", 200, -1, 1e6],
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_cannot_be_is_refused(tmp_path, name):
    path = simulated(tmp_path / "A.hdf", n=20, truth={"gap_angstrom": 2e6, "parameters": {}})
    for value in OPTIONS[name]:
        with pytest.raises(OptionError, match=name):
            ingest.ingest(path, **{name: value})
        assert not (tmp_path / "A_c2.zarr").exists()


@pytest.mark.parametrize("name", ["sigma", "time_offset"])
def test_an_option_beyond_any_measurement_is_refused_for_every_format(tmp_path, name):
    path = simulated(tmp_path / "A.hdf", n=20)
    with pytest.raises(SourceError, match=r"A\.hdf cannot be ingested: (sigma|time) = 1e\+300 \("):
        ingest.ingest(path, **{name: 1e300})


def test_a_bin_without_scatter_wants_a_sigma(tmp_path):
    path = npz(tmp_path / "A.npz", **(GOOD | {"c2": np.full((20, 20), 1.25)}))
    with pytest.raises(SourceError, match=r"has no scatter .* give sigma"):
        ingest.ingest(path)
    report = ingest.ingest(path, sigma=0.01)
    assert report.bins[0].sigma == pytest.approx(0.01)


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
    contents = {**CACHE, **changes}
    np.savez_compressed(path, **{k: v for k, v in contents.items() if v is not None})
    return path


def test_homodynes_cache_is_read_as_it_is(tmp_path):
    about = {"start_frame": 11, "end_frame": 40, "cache_version": "2.0"}
    report = ingest.ingest(
        cache(tmp_path / "cached_c2.npz", cache_metadata_json=np.asarray(json.dumps(about)))
    )
    store, attrs = arrays(report.store), attributes(report.store)
    np.testing.assert_array_equal(store["c2"], upper(np.stack(BINS)))
    assert [row.q for row in report.bins] == [Q] * 3
    assert [row.phi for row in report.bins] == PHI
    np.testing.assert_allclose(store["time"], TIME, atol=1e-12)
    assert attrs["source_format"] == "homodyne"
    assert (attrs["begin_frame"], attrs["end_frame"]) == (11, 40)
    assert any("times count from the first of these" in note for note in report.notes)


def test_an_older_cache_holds_its_times_as_planes_and_one_q(tmp_path):
    t1, t2 = np.meshgrid(TIME, TIME, indexing="ij")
    q = np.array([Q])
    for planes in ({"t1": t1, "t2": t2}, {"t1": t2, "t2": t1}):
        path = cache(tmp_path / "A.npz", wavevector_q_list=q, **planes)
        report = ingest.ingest(path, overwrite=True)
        assert report.frame_time == pytest.approx(DT)
        assert [row.q for row in report.bins] == [Q] * 3


CACHE_MISTAKES = {
    "no angles": ({"phi_angles_list": None}, "has no array phi_angles_list"),
    "angles": ({"phi_angles_list": np.zeros(2)}, "phi of A.npz has 2 values for 3 bins"),
    "times": ({"t2": TIME + 1}, "differ: the file is damaged"),
    "length": ({"t1": TIME[:-1], "t2": TIME[:-1]}, "29 entries for 30 frames"),
    "objects": ({"c2_exp": np.array([None])}, "c2_exp of A.npz contains object"),
    "shape": ({"c2_exp": np.zeros((2, 3, 4))}, r"c2_exp of A.npz has shape \(2, 3, 4\)"),
    "metadata": ({"cache_metadata_json": np.asarray("{")}, "cannot be read as NumPy arrays"),
}


@pytest.mark.parametrize("word", CACHE_MISTAKES)
def test_a_damaged_cache_is_named(tmp_path, word):
    changes, message = CACHE_MISTAKES[word]
    with pytest.raises(HomodyneDaskError, match=message):
        ingest.ingest(cache(tmp_path / "A.npz", **changes))


def test_a_bin_of_an_npz_is_read_without_those_before_it(tmp_path, monkeypatch):
    many = np.stack([noisy(100, k) for k in range(40)])
    source = npz(tmp_path / "A.npz", c2=many, q=0.01, phi=0.0, dt=0.1)
    layout = MatrixAxes(many.shape, (1, 2))
    read = []
    plain = zipfile.ZipExtFile.read
    monkeypatch.setattr(
        zipfile.ZipExtFile, "read", lambda file, n=-1: read.append(n) or plain(file, n)
    )
    matrix = read_npz(source, "c2[30]", layout)
    np.testing.assert_array_equal(matrix, many[30])
    assert sum(read) < 2 * many[0].nbytes
    assert len(read) < 20  # and no row by itself


def test_a_changed_byte_of_an_npz_is_found(tmp_path):
    many = np.stack([noisy(100, k) for k in range(4)])
    source = npz(tmp_path / "A.npz", c2=many, q=0.01, phi=0.0, dt=0.1)
    content = bytearray(source.read_bytes())
    content[100_000] ^= 4
    source.write_bytes(content)
    with pytest.raises(SourceError, match="Bad CRC-32"):
        ingest.ingest(source)


ANGLES = angles(3)
KNOWN = {"q": 0.005, "phi": ANGLES, "dt": 0.5}


@pytest.fixture(scope="module")
def c2():
    made = measured(CREEP, 40, ANGLES, dt=0.5).c2
    return np.where(np.isnan(made), np.swapaxes(made, 1, 2), made)


class Tensor:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


FORMS = {
    "float64": lambda c2: c2.astype(float),
    "Fortran order": np.asfortranarray,
    "a view that runs backwards": lambda c2: c2[::-1][::-1],
    "xarray": lambda c2: xarray.DataArray(c2, dims=("bin", "t1", "t2")),
    "of another library": Tensor,
    "a list": lambda c2: c2.tolist(),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_array_is_ingested_as_its_file_would_be(c2, tmp_path, form):
    np.savez(tmp_path / "S.npz", c2=c2, **KNOWN)
    of_file = hd.open_dataset(hd.ingest(tmp_path / "S.npz").store)
    report = hd.ingest(FORMS[form](c2), tmp_path / "new" / "A_c2.zarr", **KNOWN)
    scan = hd.open_dataset(report.store)
    np.testing.assert_array_equal(scan.dataset["c2"].values, of_file.dataset["c2"].values)
    assert scan.phi.tolist() == of_file.phi.tolist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["A_c2.zarr"]


def test_the_same_call_again_finds_its_store(c2, tmp_path):
    store = tmp_path / "A_c2.zarr"
    hd.ingest(c2, store, **KNOWN)
    assert hd.ingest(c2, store, **KNOWN).skipped
    with pytest.raises(HomodyneDaskError, match="give overwrite=True to replace it"):
        hd.ingest(c2 + 0.001, store, **KNOWN)


COUNTS = [0.3, [0.2, 0.3, 0.4], np.full(40, 0.3), np.full((3, 40), 0.3)]


@pytest.mark.parametrize("counts", COUNTS, ids=["one", "of bins", "of frames", "of both"])
def test_sigma_follows_from_counts_and_pixels(c2, tmp_path, counts):
    report = hd.ingest(c2, tmp_path / "A.zarr", **KNOWN, counts=counts, pixels=[400, 500, 600])
    assert report.sigma_source == "counts"
    assert [row.pixels for row in report.bins] == [400, 500, 600]
    beta = hd.open_dataset(report.store).all_bins["beta_ingest"][1]
    assert report.bins[1].sigma == pytest.approx((1 / 0.3 + beta) / np.sqrt(500), rel=1e-6)


WRONG_ARRAYS = [
    {"source": 5}, {"source": None}, {"source": np.ones((3, 4, 5))}, {"source": np.array([["a"]])},
    {"store": None}, {"dt": None}, {"frame_time": 0.5}, {"counts": 0.3}, {"counts": np.ones(7), "pixels": 5},
    {"counts": -1.0, "pixels": 5}, {"pixels": 2.5}, {"pixels": "many"},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG_ARRAYS, ids=lambda changes: str(changes)[:30])
def test_what_is_wrong_with_an_array_is_named(c2, tmp_path, changes):
    arguments = {"source": c2, "store": tmp_path / "A.zarr", **KNOWN} | changes
    with pytest.raises(HomodyneDaskError, match="array|" + "|".join(changes)):
        hd.ingest(**arguments)


def test_counts_of_a_file_stand_in_the_file(c2, tmp_path):
    np.savez(tmp_path / "S.npz", c2=c2, counts=0.3, pixels=500, **KNOWN)
    with pytest.raises(OptionError, match="counts applies to arrays only"):
        hd.ingest(tmp_path / "S.npz", counts=0.3)
    assert hd.ingest(tmp_path / "S.npz").sigma_source == "counts"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"q": "0.22 1/nm", "phi": 0, "dt": "443 ns"}, ([0.022] * 2, 4.43e-7)),
        ({"q": "0.1, 0.2 nm^-1", "phi": "0, 1.5 rad", "dt": "20ms"}, ([0.01, 0.02], 0.02)),
        ({"q": ["1e-2", "0.02"], "phi": 0, "dt": "0.5"}, ([0.01, 0.02], 0.5)),
        ({"q": "0.1 nm", "phi": 0, "dt": 1}, "only 1/Å, 1/nm and 1/µm are known units of q"),
        ({"q": "1 1/mm", "phi": 0, "dt": 1}, "only 1/Å, 1/nm and 1/µm are known units of q"),
        ({"q": "1 1/nm, 2 1/A", "phi": 0, "dt": 1}, "with one unit or none"),
        ({"q": 0.1, "phi": 0, "dt": "5 furlongs"}, "the known units of time are s, sec"),
        ({"q": 0.1, "phi": 0, "dt": "-3 ms"}, r"with its unit \(.443 ns.\)"),
        ({"q": 0.1, "phi": 0, "dt": "ms"}, "it must be a number, or numbers, with one unit"),
    ],
    ids=str,
)
def test_numbers_have_the_unit_that_is_written_beside_them(tmp_path, arguments, expected):
    np.save(tmp_path / "A.npy", np.stack([noisy(20, k) for k in range(2)]))
    if isinstance(expected, str):
        with pytest.raises(OptionError, match=expected):
            hd.ingest(tmp_path / "A.npy", **arguments)
        return
    report = hd.ingest(tmp_path / "A.npy", **arguments)
    assert ([row.q for row in report.bins], report.frame_time) == (
        pytest.approx(expected[0]),
        pytest.approx(expected[1]),
    )
