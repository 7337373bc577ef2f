"""Files of any layout: datasets that the user names, axes in any order, one half of matrices, no data."""

import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError
from ingest.clean import clean, measure_scatter
from tests.ingest_files import DT, arrays, noisy, simulated, upper

N, BINS = 20, 3
C2 = np.stack([noisy(N, k) for k in range(BINS)])
LAST = np.moveaxis(C2, 0, -1)
BAD = 30 * np.maximum.outer(*[np.arange(60) % 9 == 4] * 2)
"""Of every ninth frame, in all pairs."""
NUMBERS = {"q": [0.01, 0.02, 0.03], "phi": 0.0, "frame_time": DT}


def hdf5(path, attrs=None, **datasets):
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name.replace("__", "/"), data=value)
        for name, values in (attrs or {}).items():
            file[name].attrs.update(values)
    return path


def matlab(path, **arrays_):
    """A file as MATLAB v7.3 writes it: 512 bytes of its own before HDF5, axes in reverse order."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in arrays_.items():
            file[name] = np.asarray(value).T
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512))
    return path


def stored(report):
    return arrays(report.store)["c2"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "c2", "options"),
    [
        ("bins first", C2, {}),
        ("bins last", LAST, {}),
        ("bins between", np.moveaxis(C2, 0, 1), {}),
        ("Fortran order", np.asfortranarray(LAST), {}),
        ("axes given", LAST, {"axes": "t,t,q"}),
        ("axes as a list", LAST, {"axes": ["t", "t", "ring"]}),
        ("one ring of many angles", C2[None], {}),
        ("rings and angles", np.stack([C2[:1], C2[1:2], C2[2:]]), {}),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "npz", "hdf5", "matlab"])
def test_the_two_times_are_found_in_any_order_of_axes(tmp_path, kind, word, c2, options):
    path = tmp_path / "A"
    if kind == "npy":
        np.save(path.with_suffix(".npy"), c2)
        path = path.with_suffix(".npy")
    elif kind == "npz":
        path = path.with_suffix(".npz")
        np.savez_compressed(path, c2=c2)
    else:
        path = (hdf5 if kind == "hdf5" else matlab)(path, c2=c2)
        options = options | {"dataset": "c2"}
    report = ingest.ingest(path, tmp_path / "s.zarr", **NUMBERS, **options)
    np.testing.assert_array_equal(stored(report), upper(C2))


def test_axes_that_nothing_tells_are_asked_for(tmp_path):
    c2 = np.random.default_rng(1).normal(1, 0.1, (7, 7, 7))
    np.save(tmp_path / "A.npy", c2)
    with pytest.raises(OptionError, match=r"give axes t,t,q or t,q,t or q,t,t, with t for each"):
        ingest.ingest(tmp_path / "A.npy", q=0.01, phi=0, frame_time=1)
    np.save(tmp_path / "A.npy", np.ones((4, 5, 5)))
    with pytest.raises(OptionError, match=r"axes = t,q,t do not match c2 .* \(4, 5, 5\)"):
        ingest.ingest(tmp_path / "A.npy", q=0.01, phi=0, frame_time=1, axes="t,q,t")
    with pytest.raises(OptionError, match=r"axes = 'x,y,t' .*it must name two axes t.* as t,t,q"):
        ingest.ingest(tmp_path / "A.npy", axes="x,y,t")


@pytest.mark.parametrize(
    "names", [("1", "2", "10"), ("0.005", "0.01", "0.02"), ("5e-3", "1e-2", "2.0e-2")]
)
def test_a_group_of_matrices_is_taken_in_the_order_of_their_numbers(tmp_path, names):
    of_names = {f"ttc__q{name}": C2[n] for n, name in enumerate(names)}
    path = hdf5(tmp_path / "A.h5", **of_names, ttc__q=[1.0])
    report = ingest.ingest(path, dataset="/ttc", **NUMBERS)
    np.testing.assert_array_equal(stored(report), upper(C2))


@pytest.mark.parametrize("dataset", ["/C", "/ttc"])
def test_the_half_of_a_matrix_of_matlab_is_the_one_that_matlab_shows(tmp_path, dataset):
    shown = C2 + 0.5 * np.tri(C2.shape[-1], k=-1)
    with h5py.File(tmp_path / "A.mat", "w") as file:
        cell = np.empty((1, len(C2)), h5py.ref_dtype)
        for k, matrix in enumerate(shown):
            file[f"ttc/q{k}"] = matrix.T
            file[f"ttc/q{k}"].attrs["MATLAB_class"] = np.bytes_("double")
            cell[0, k] = file[f"ttc/q{k}"].ref
        file["C"] = cell
    report = ingest.ingest(tmp_path / "A.mat", dataset=dataset, half="upper", **NUMBERS)
    np.testing.assert_array_equal(stored(report), upper(C2))


def cells(path, names="cab"):
    """A cell array of matrices, and one of structs with matrix and q; what they hold has random names."""
    with h5py.File(path, "w") as file:
        of_matrices, of_structs = np.empty((2, 1, BINS), h5py.ref_dtype)
        for k, name in enumerate(names):
            file[f"#refs#/{name}"] = C2[k]
            file[f"#refs#/s{name}/ttc"], file[f"#refs#/s{name}/q"] = C2[k], NUMBERS["q"][k]
            file[f"#refs#/s{name}"].attrs["q"] = NUMBERS["q"][k]
            of_matrices[0, k], of_structs[0, k] = (
                file[f"#refs#/{name}"].ref,
                file[f"#refs#/s{name}"].ref,
            )
        file["C"], file["S"] = of_matrices, of_structs
        file["same/1.1"], file["same/1.10"] = C2[:2]
        file["empty"] = np.empty((1, BINS), h5py.ref_dtype)
    return path  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "q", "order"),
    [
        ("/C", None, [0, 1, 2]),
        ("/#refs#/s*/ttc", "/#refs#/s*/q", [1, 2, 0]),
        ("/#refs#/s*/ttc", "/#refs#/s*@q", [1, 2, 0]),
    ],
)
def test_each_matrix_of_a_cell_array_or_a_pattern_has_its_own_q(tmp_path, dataset, q, order):
    q = {"q": NUMBERS["q"]} if q is None else {"q_dataset": q}
    report = ingest.ingest(cells(tmp_path / "A.mat"), dataset=dataset, **q, phi=0.0, frame_time=DT)
    np.testing.assert_array_equal(stored(report), upper(C2[order]))
    assert [row.q for row in report.bins] == [NUMBERS["q"][k] for k in order]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "/same", "q": [0.1, 0.2]}, r"\(/same/1.1, /same/1.10 .* have no order"),
        ({"dataset": "/#refs#", "q": [0.1, 0.2, 0.3]}, r"\(/#refs#/a, .* have no order"),
        ({"dataset": "/#refs#/s*/ttc", "q_dataset": "/q/*/*"}, r"has 2 \*: give one"),
        ({"dataset": "/#refs#/s*/ttc", "q_dataset": "/#refs#/s*@Q"}, "has no attribute Q"),
        ({"dataset": "/C", "q_dataset": "/#refs#/s*/q"}, r"has a \*, but the name of the matrices"),
        ({"dataset": "/empty", "q": 0.1}, "has a cell that is empty"),
        ({"q": 0.1}, r"give dataset NAME: /C \(3, 20, 20\), /same/1.1 .*, /same/1.10 \(20, 20\)$"),
    ],
)
def test_matrices_whose_order_nothing_tells_are_refused(tmp_path, arguments, message):
    with pytest.raises(HomodyneDaskError, match=message):
        ingest.ingest(cells(tmp_path / "A.mat"), phi=0.0, frame_time=DT, **arguments)


SHARED = np.random.default_rng(1).normal(0, 0.01, (60, 60))
COPIES = {
    "a copy": lambda matrix: matrix,
    "normalised otherwise": lambda matrix: 1 + 1.07 * (matrix - 1.01),
    "float16 of it": lambda matrix: matrix.astype(np.float16),
    "its transpose, other frames unknown": lambda c2: np.where(np.arange(60) < 5, np.nan, c2.T),
}
NO_COPIES = {
    "of a measurement of its own": lambda matrix: noisy(60, 7),
    "with the same bad frames": lambda matrix: noisy(60, 7) + BAD,
    "half of its noise": lambda matrix: matrix + 1.0 * (SHARED + SHARED.T) / np.sqrt(2),
}


@pytest.mark.parametrize("word", [*COPIES, *NO_COPIES])
def test_the_data_of_a_bin_count_once(tmp_path, word):
    matrix, kept = noisy(60, 0), word in NO_COPIES
    last = (COPIES | NO_COPIES)[word](matrix)
    c2 = np.stack([matrix + BAD * ("bad" in word), noisy(60, 1), last])
    np.save(tmp_path / "A.npy", c2)
    numbers = {"q": [0.1, 0.2, 0.3], "phi": 0, "frame_time": 1}
    report = ingest.ingest(tmp_path / "A.npy", **numbers)
    copy_notes = [
        note for note in report.notes if "bin 3 (c2[2]) of A.npy holds the data of bin 1" in note
    ]
    assert (np.isfinite(stored(report)[2]).any(), bool(copy_notes)) == (kept, not kept)
    both = ingest.ingest(tmp_path / "A.npy", tmp_path / "b.zarr", **numbers, keep_copies=True)
    assert np.isfinite(stored(both)[2]).any()


def test_bins_that_see_one_speckle_and_curves_without_noise_are_no_copies(tmp_path):
    matrix, t = noisy(60, 0), np.arange(60)
    np.save(tmp_path / "A.npy", np.stack([matrix, matrix]))
    report = ingest.ingest(tmp_path / "A.npy", q=0.1, phi=[10, -170], frame_time=1)
    assert np.isfinite(stored(report)[1]).any()
    curve = 1 + 0.2 * np.exp(-0.01 * (np.abs(t[:, None] ** 1.5 - t**1.5)))
    np.save(tmp_path / "B.npy", np.stack([curve, curve]))
    report = ingest.ingest(tmp_path / "B.npy", q=0.1, phi=0, frame_time=1, sigma=0.01)
    assert np.isfinite(stored(report)[1]).any()
    t = 0.1 * np.arange(120)
    root = np.sqrt(t + 0.05)
    decay_only = 0.2 * np.exp(-0.05 * np.abs(t[:, None] - t))
    flow = 1 + decay_only * np.sinc(0.05 * (root[:, None] - root)) ** 2  # as rounded to float32
    np.save(tmp_path / "C.npy", np.stack([flow, flow]).astype(np.float32))
    report = ingest.ingest(tmp_path / "C.npy", q=0.1, phi=[-30, 30], frame_time=1, sigma=0.01)
    assert np.isfinite(stored(report)[1]).any()


@pytest.mark.parametrize("frames", [6, 60])
def test_bins_under_one_beam_and_bins_of_few_frames_are_no_copies(tmp_path, frames):
    beam = 1 + 0.2 * np.random.default_rng(5).normal(size=frames) * (frames > 10)
    bins = [noisy(frames, k, 0.005) * beam[:, None] * beam for k in range(6)]
    np.save(tmp_path / "A.npy", np.stack(bins))
    q = [0.1 * (k + 1) for k in range(6)]
    report = ingest.ingest(tmp_path / "A.npy", q=q, phi=0, frame_time=1, sigma=0.005, axes="q,t,t")
    assert np.isfinite(stored(report)).any((1, 2)).all()


@pytest.mark.long
def test_an_unknown_layout_is_answered_with_what_is_in_the_file(tmp_path):
    path = hdf5(tmp_path / "A.h5", a__ttc=C2, a__mask=np.ones((4, 5)), q=[1.0, 2.0], words="fine")
    with pytest.raises(
        SourceError,
        match=r"give dataset NAME: /a/ttc \(3, 20, 20\); candidates for .*: /q \(2,\)",
    ):
        ingest.ingest(path)
    with pytest.raises(SourceError, match="no dataset in it has two axes of equal length"):
        ingest.ingest(hdf5(tmp_path / "B.h5", mask=np.ones((4, 5))))
    with pytest.raises(OptionError, match=r"has no dataset /a/tc; did you mean '/a/ttc'\?"):
        ingest.ingest(path, dataset="a/tc", **NUMBERS)
    with pytest.raises(OptionError, match=r"A.h5 does not contain q.* phi.* q_dataset"):
        ingest.ingest(path, dataset="a/ttc")
    with pytest.raises(OptionError, match="q_dataset = q applies only together with dataset"):
        ingest.ingest(path, q_dataset="q")
    with pytest.raises(SourceError, match=r"a/mask of A.h5 has shape"):
        ingest.ingest(path, dataset="a/mask", **NUMBERS)


def chx(path, values, lags=(0, 2 * DT, DT), **md):
    """A file as pyCHX writes its results: dictionaries are attributes of datasets of one number."""
    attrs = {"qval_dict": {str(k): value for k, value in enumerate(values)}, "md": md}
    datasets = {"g12b": LAST, "qval_dict": [0], "md": [0], "g2b": np.ones((3, BINS))}
    return hdf5(path, attrs, **datasets, **({"tausb": lags} if lags else {}))


@pytest.mark.parametrize(
    ("word", "values", "phi"),
    [
        ("rings", [[0.01], [0.02], [0.03]], [np.nan] * 3),
        ("sectors", [[0.01, -60.0], [0.02, 0.0], [0.03, 60.0]], [-60, 0, 60]),
        ("reflection", [[0.01, 0.02], [0.02, 0.02], [0.03, 0.02]], [np.nan] * 3),
    ],
)
def test_results_of_chx_are_read(tmp_path, word, values, phi):
    report = ingest.ingest(chx(tmp_path / "uid=ab12_Res.h5", values))
    np.testing.assert_array_equal(stored(report), upper(C2))
    assert report.source_format == "chx"
    assert [row.q for row in report.bins] == [0.01, 0.02, 0.03]
    np.testing.assert_array_equal([row.phi for row in report.bins], phi)
    assert report.frame_time == DT


def test_results_of_chx_without_lags_have_the_period_of_the_detector(tmp_path):
    rings = [[0.01], [0.02], [0.03]]
    path = chx(tmp_path / "A_Res.h5", rings, lags=None, **{"acquire period": 0.25})
    assert ingest.ingest(path).frame_time == 0.25
    with pytest.raises(OptionError, match="does not contain its frame spacing: give frame_time"):
        ingest.ingest(chx(tmp_path / "B_Res.h5", rings, lags=None))
    with pytest.raises(OptionError, match="describes 2 bins, but /g12b has 3: give dataset /g12b"):
        ingest.ingest(chx(tmp_path / "C_Res.h5", rings[:2]))


def test_arrays_of_an_npz_may_have_any_name(tmp_path):
    np.savez(tmp_path / "A.npz", ttc=LAST, qs=[0.01, 0.02, 0.03], angle=0.0, step=DT)
    names = {"q_dataset": "qs", "phi_dataset": "angle", "time_dataset": "step"}
    report = ingest.ingest(tmp_path / "A.npz", dataset="ttc", **names)
    np.testing.assert_array_equal(stored(report), upper(C2))
    assert report.frame_time == DT
    with pytest.raises(SourceError, match="has no array c2; it has ttc, qs, angle, step: give"):
        ingest.ingest(tmp_path / "A.npz")


ASYMMETRIC = C2 + np.tril(np.full((N, N), 0.1, np.float32))


@pytest.mark.long
@pytest.mark.parametrize(("half", "added"), [("upper", 0.0), ("lower", 0.1), ("mean", 0.05)])
@pytest.mark.parametrize("kind", ["npy", "matlab"])
def test_one_half_or_the_mean_of_a_matrix_that_is_not_symmetric(tmp_path, half, added, kind):
    options = NUMBERS
    if kind == "npy":
        path = tmp_path / "A.npy"
        np.save(path, ASYMMETRIC)
    else:
        path = matlab(tmp_path / "A.mat", c2=ASYMMETRIC)
        options = options | {"dataset": "c2"}
    with pytest.raises(SourceError, match=r"not symmetric: .* give half upper .* lower .* mean"):
        ingest.ingest(path, tmp_path / "s.zarr", **options)
    report = ingest.ingest(path, tmp_path / "s.zarr", **options, half=half)
    np.testing.assert_allclose(stored(report), upper(C2) + np.float32(added), rtol=1e-6)
    words = {"upper": "the pairs above", "lower": "the pairs below", "mean": "the mean of both"}
    assert any(note.startswith(f"half = {half}: {words[half]}") for note in report.notes)


def test_the_mean_of_two_halves_has_the_noise_of_the_mean():
    rng = np.random.default_rng(0)
    c2 = 1 + rng.normal(0, 0.01, (100, 100))
    sigma_upper, sigma_mean = (
        measure_scatter(clean(c2, 100, "a", 1, half).c2) for half in ("upper", "mean")
    )
    assert sigma_upper == pytest.approx(0.01, rel=0.05)
    assert sigma_mean == pytest.approx(0.01 / np.sqrt(2), rel=0.05)


def test_the_mean_of_halves_of_a_file_of_counts_has_its_noise_from_scatter(tmp_path):
    path = simulated(tmp_path / "A.hdf", counts=0.8, n_pixels=3000)
    with h5py.File(path, "r+") as file:
        group = file["/xpcs/twotime/correlation_map"]
        for name in group:
            full = np.maximum(group[name][...], group[name][...].T)
            del group[name]
            group[name] = full
    assert ingest.ingest(path, tmp_path / "a.zarr").sigma_source == "counts"
    assert ingest.ingest(path, tmp_path / "b.zarr", half="mean").sigma_source == "scatter"
    with pytest.raises(OptionError, match=r"half 'both' is unknown; .*upper"):
        ingest.ingest(path, half="both")


def test_a_half_that_is_empty_is_refused(tmp_path):
    np.save(tmp_path / "A.npy", np.triu(C2))
    with pytest.raises(SourceError, match="has only its upper half, but half = lower is given"):
        ingest.ingest(tmp_path / "A.npy", **NUMBERS, half="lower")


@pytest.mark.parametrize(
    ("content", "word"), [(b"", "empty"), (b"0.1 0.2 0.3", "neither HDF5 nor .npy")]
)
def test_what_is_no_data_is_named_as_what_it_is(tmp_path, content, word):
    (tmp_path / "A_results.hdf").write_bytes(content)
    with pytest.raises(SourceError, match=word):
        ingest.ingest(tmp_path / "A_results.hdf", q=1, phi=0, frame_time=1)


UNEVEN = {
    "logarithmic": lambda rng: np.geomspace(1, 1e4, 60),
    "alternating": lambda rng: np.cumsum(np.where(np.arange(60) % 2, 1, 10.0)),
    "random": lambda rng: np.cumsum(np.exp(rng.normal(0, 1.5, 60))),
    "bursts": lambda rng: np.concatenate([np.geomspace(1, 1000, 20) + 1000 * k for k in range(3)]),
    "a pause": lambda rng: np.r_[np.arange(30), 500 + np.arange(30.0)],
}


@pytest.mark.parametrize("word", UNEVEN)
@pytest.mark.parametrize("decay", [3, 30, 300])
def test_scatter_is_right_where_frames_are_uneven_in_time(word, decay):
    rng = np.random.default_rng(decay)
    time = UNEVEN[word](rng)
    lag = np.abs(time[:, None] - time)
    c2 = (1 + 0.3 * np.exp(-2 * (lag / decay) ** 0.8) + rng.normal(0, 0.002, lag.shape)).astype(
        "f4"
    )
    c2[np.tri(len(c2), dtype=bool)] = np.nan
    assert measure_scatter(c2, time) == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize("damage", ["dataset of text", "complex", "flat", "empty", "objects"])
def test_a_dataset_that_is_no_matrix_is_refused_in_one_sentence(tmp_path, damage):
    value = {
        "dataset of text": ["a", "b"], "complex": C2 * 1j, "flat": np.ones(9), "empty": np.empty((0, 0)),
        "objects": [b"abc"],
    }[damage]  # fmt: skip
    with pytest.raises(HomodyneDaskError) as raised:
        ingest.ingest(hdf5(tmp_path / "A.h5", c2=value), dataset="c2", **NUMBERS)
    assert "A.h5" in str(raised.value)


def test_a_dataset_whose_attributes_are_damaged_is_left_out_of_what_a_file_has(
    tmp_path, monkeypatch
):
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file["c2"] = np.ones((3, 20, 20))

    def damaged(*_: object) -> bool:
        raise RuntimeError("unknown datatype class found")

    monkeypatch.setattr(h5py.AttributeManager, "__contains__", damaged)
    with pytest.raises(SourceError, match="no dataset in it has two axes of equal length"):
        ingest.ingest(tmp_path / "A.h5", tmp_path / "A.zarr")
