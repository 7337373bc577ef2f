"""Tables of g2(delay): layouts, units and errors that programs and people write, and what is ambiguous."""

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, SourceError
from ingest.readers.g2_curves import column_of

Q = [0.004, 0.008, 0.0123]
TAU = np.geomspace(1e-3, 10, 12)
G2 = 1 + 0.2 * np.exp(-(np.array(Q)[:, None] ** 2) * 2e4 * TAU)
ERROR = 0.003 + 0.001 * np.arange(36).reshape(3, 12)


def text(separator, head, *columns, form="%.17g"):
    rows = (separator.join(form % value for value in row) for row in zip(*columns, strict=True))
    return "\n".join([*([head] if head else []), *rows]) + "\n"


def alternated(*columns):
    return [column for pair in zip(*columns, strict=True) for column in pair]


NAMES = ",".join(f"q={q}" for q in Q)
LAYOUTS = {
    "errors beside, all of one name": text(
        ",", "delay," + ",".join(f"q={q},error" for q in Q), TAU, *alternated(G2, ERROR),
    ),
    "errors beside, q and units in names": text(
        "\t", "# tau(s)" + "".join(f"\tG2_q{n:03d}(q={q})\tG2_err_q{n:03d}" for n, q in enumerate(Q)),
        TAU, *alternated(G2, ERROR),
    ),
    "errors behind, ms": text(
        ",", "delay_ms," + ",".join(f"g2 q={q}" for q in Q) + "," + ",".join(f"err q={q}" for q in Q),
        1e3 * TAU, *G2, *ERROR,
    ),
    "a row for each point, nm, us, semicolons": text(
        ";", "q [1/nm];delay [us];g2;sigma",
        10 * np.repeat(Q, 12), np.tile(1e6 * TAU, 3), G2.ravel(), ERROR.ravel(),
    ),
    "spaces, reversed, numbers in names": text(
        "  ", "% t  g2_q0.004  g2_q0.008  g2_q0.0123  err1  err2  err3",
        *(column[::-1] for column in (TAU, *G2, *ERROR)),
    ),
}  # fmt: skip


def read(tmp_path, content, name="A.csv", **options):
    (tmp_path / name).write_text(content, encoding="utf-8")
    return hd.read_g2(tmp_path / name, **options)


def check(scan, error=ERROR, delay=TAU):
    np.testing.assert_allclose(scan.q, Q, rtol=1e-12)
    np.testing.assert_allclose(scan.time, [0, *delay], rtol=1e-12)
    np.testing.assert_allclose(scan.table[:, 1:], G2, rtol=1e-15)
    assert scan.attrs["sigma_source"] == ("residuals" if error is None else "table")
    if error is not None:
        np.testing.assert_allclose(scan.sigma_row[:, 1:], error, rtol=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_gives_delays_q_g2_and_errors(tmp_path, layout):
    check(read(tmp_path, LAYOUTS[layout]))


@pytest.mark.parametrize("content", [
    text(",", f"tau,{','.join(map(str, Q))}", TAU, *G2),
    "\ufeff" + text(",", f",tau,{','.join(f'qr= {q}' for q in Q)}", np.arange(12), TAU, *G2),
    text(",", f"tau (s),{NAMES}", [0, *TAU], *np.c_[np.full(3, 2.5), G2]),
    text(";", "tau;" + NAMES.replace(",", ";"), TAU, *G2).replace(".", ","),
])  # fmt: skip
def test_curves_with_q_alone_are_g2_and_rows_numbers_and_delay_0_are_left_out(tmp_path, content):
    scan = read(tmp_path, content)
    check(scan, None)
    assert "curves with q alone are taken for g2: they decay to 1" in scan.attrs["notes"]


def test_a_file_of_errors_beside_is_not_passed_over(tmp_path):
    (tmp_path / "A_g2err.csv").write_text("errors")
    with pytest.raises(SourceError, match=r"seem to be in A_g2err\.csv, which is not read"):
        read(tmp_path, text(",", "tau," + NAMES, TAU, *G2), "A_g2.csv")


def test_unknown_points_and_points_without_an_error_are_left_out(tmp_path):
    g2, error = G2.copy(), ERROR.copy()
    g2[0, 3:5], error[1, 0] = np.nan, 0
    scan = read(tmp_path, text(",", f"tau,{NAMES},err1,err2,err3", TAU, *g2, *error))
    assert np.argwhere(np.isnan(scan.table[:, 1:])).tolist() == [[0, 3], [0, 4], [1, 0]]
    assert "1 point without an error above 0 left out" in scan.attrs["notes"]
    assert hd.fit(scan, "brownian").ndata == 33


def test_g2_minus_1_and_delays_in_frames(tmp_path):
    content = text(" ", "lag(frames) g2-1", np.arange(1, 13), G2[2] - 1)
    scan = read(tmp_path, content, "run7.dat", dt="2 ms", q=0.0123)
    assert scan.q.tolist() == [0.0123]
    np.testing.assert_allclose(scan.time, 2e-3 * np.arange(13), rtol=1e-12)
    np.testing.assert_allclose(scan.table[0, 1:], G2[2], rtol=1e-12)


MISTAKES = [
    (text(" ", "", TAU, G2[0], ERROR[0]), {"q": 0.004}, "has 0 columns of delays"),
    (text(",", "tau,g2", TAU, G2[0], ERROR[0]), {"q": 0.004}, "has 2 names .*: name the columns in one line"),
    (text(" ", "tau g2 (q=0.004)", TAU, G2[0]), {}, r"column '\(q=0.004\)' does not contain"),
    (text(",", "file,tau,g2", TAU, TAU, G2[0]).replace("\n", "\n1A"), {"q": 0.1}, "column 'file' does not"),
    (text(",", "q_index,tau,g2", TAU, TAU, G2[0]), {"q": 0.1}, "column 'q_index' is none of delay, exp"),
    ("delay\tg2(q=0.0123)\n1,000\t1\n2,000\t1\n", {}, "'delay' does not contain numbers alone"),
    (text(",", "tau,g2,kelvin", TAU, G2[0], TAU), {"q": 0.004}, "column 'kelvin' is none of delay"),
    (text(",", "tau,g2_1,g2_2,err", TAU, *G2[:2], TAU), {}, "2 columns of g2 and 1 of errors"),
    (text(",", "tau,g2", TAU, G2[0]), {}, "does not contain q: give q in 1/Å"),
    (text(",", "lag(frames),g2", TAU, G2[0]), {"q": 0.004}, "in frames: give dt"),
    (text(",", "tau(fs),g2", TAU, G2[0]), {"q": 0.004}, "'fs', but the known units of time"),
    (text(",", "tau,q=0.004", TAU, G2[0]), {"dt": 1}, "delays are in s: leave out dt"),
    (text(",", "tau,q=0.004,err", TAU, G2[0], TAU), {"sigma": 1}, "sigma is given, but A.csv"),
    (text(",", "tau,q=0.004", [*TAU, *TAU], [*G2[0], *G2[0]]), {}, "has the delay 0.001 s twice"),
    (text(",", "tau,q=0.004", TAU, G2[0]) + "3,1,2\n", {}, "has 2 names of columns, but"),
    ("no table\nat all\n", {}, "nor a table of g2"),
    (text(",", "tau,g2(q=0.0123)", TAU, G2[2] - 1), {}, "taken for g2, which"),
    (text(",", "tau,g2-1(q=0.0123)", TAU, G2[2]), {}, "taken for g2-1, w"),
    (text(",", "tau,f(q=0.0123)", TAU, G2[2]), {}, "is taken for g1, which"),
    (text(",", "tau," + NAMES, TAU, *G2[:2], G2[2] - 1), {}, "'q=0.0123' is tak"),
    (text(",", "tau,g2-1,g2-2", TAU, *G2[1:]), {"q": 0.0123}, "of one q: keep one"),
    (text(",", "tau,g2,g1", TAU, G2[2], np.sqrt(5 * (G2[2] - 1))), {"q": 0.0123}, "of one q: keep"),
    (text(",", "tau,q=0.0123", TAU, G2[2] - 1), {}, "whether 'q=0.0123' is g2, g2 - 1 or g1"),
    (text(",", "tau,T-150K", TAU, G2[2]), {"q": 0.0123}, "column 'T-150K' is none of delay, exp"),
    (text(",", "lag,D(q=0.0123)", TAU, 5e3 * (1.2 - G2[2])), {}, r"column 'D\(q=0\.0123\)' is none"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "message"), MISTAKES)
def test_what_can_be_read_in_two_ways_or_contradicts_its_names_is_refused(
    tmp_path, content, options, message
):
    with pytest.raises((SourceError, OptionError), match=message):
        read(tmp_path, content, **options)


KINDS = {
    "g2": "G2 g_2 g(2) g^(2) g^{(2)} g² g₂ g⁽²⁾ g2(t) c2 g2_avg norm-0-g2 g2_1 g2-1.5K g2-10 g2-100K",
    "g2-1": "G2-1 g2_minus_1 g2minus1 g2m1 (g2-1)/beta (g2-1)/β g^(2)(t)-1 g2(τ)−1 g²-1 c2-1 |g1|² g1^2",
    "g1": "g1 |g1| g(1) g^(1)(q,t) g₁ ISF f F(q,t) f_qt field_correlation intermediate_scattering_function",
    None: "q=0.004 0.004 qr=0.0045 q=0.05T-150K",
    "": "kelvin y C corr intensity chi4(q=0.1) ln(g2-1) sqrt(g2-1) 1/g2 g1/g2 f(Hz) D(q=0.1)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_column_is_its_own_token_says(kind):
    columns = [column_of(name, TAU) for name in KINDS[kind].split()]
    assert {column.name for column in columns if column.kind != kind} == set()
    assert not any(column.role == "error" for column in columns)
    errors = "err g2err dg2 Δg2 σ sigma_g1 g1_err std g2_sem f_err error(q=0.1) g2_deviation"
    assert all(column_of(name, TAU).role == "error" for name in errors.split())
    labels = ("correlation function g2", "Sigma-Aldrich g2", "truncated g2", "dev2 g2")
    assert not any(column_of(name, TAU).role == "error" for name in labels)


def test_units_runs_temperatures_and_exponents_in_names_decide_nothing(tmp_path):
    rng, q = np.random.default_rng(0), np.geomspace(1e-3, 2e-2, 200)
    tokens = {"g2": ["g2", "G2", "g(2)", "g₂"], "g2-1": ["g2-1", "g2 - 1", "g2m1", "(g2-1)/b"]}
    tokens |= {"g1": ["g1", "ISF", "|g1|", "g^(1)"]}
    units = [(1, "A^-1"), (1, " Å⁻¹"), (1, " 1/A"), (1, "")]
    units += [(10, " nm-1"), (10, "nm^-1"), (10, " 1/nm")]
    labels = ["", " run-1", " T-150K", ", -1 °C", " sample-1", " (scan -1)", " 1.0e-1 mol/l"]
    labels += [" m-1.5"]
    names, values, squared = ["tau (s)"], [], 1.25 * (G2[1] - 1) / 0.2
    for q_of_curve in q:
        kind = rng.choice(list(tokens))
        (factor, unit), form = units[rng.integers(len(units))], rng.choice(["{:.6e}", "{:.8f}"])
        of_q = f"q={form.format(q_of_curve * factor)}{unit}"
        inside = rng.choice([f"({of_q})", f" {of_q}", f" [{of_q}]"])
        names.append(f"{rng.choice(tokens[kind])}{inside}{rng.choice(labels)}".replace(",", ""))
        curve = {"g2": 1 + squared / 4, "g2-1": squared / 4, "g1": np.sqrt(squared) / 2}[kind]
        values.append(curve + 1e-5 * rng.standard_normal(12))
    scan = read(tmp_path, text(",", ",".join(names), TAU, *values))
    np.testing.assert_allclose(scan.q, q, rtol=1e-4)
    np.testing.assert_allclose(scan.table[:, 1:], np.tile(1 + squared / 4, (200, 1)), atol=2e-4)


@pytest.mark.long
def test_the_field_correlation_is_squared_with_its_error_and_keeps_the_rate(tmp_path):
    rng, tau = np.random.default_rng(1), np.geomspace(1e-3, 10, 60)
    field = np.exp(-1e4 * np.square(Q)[:, None] * tau)
    sigma = np.broadcast_to(np.linspace(0.01, 0.05, 60), field.shape)
    pulls = []
    for n in range(40):
        g1 = field + sigma * rng.standard_normal(field.shape)
        assert (g1 < 0).any()
        names = "tau," + ",".join(f"{name}(q={q})" for name in ("f", "sigma_f") for q in Q)
        scan = read(tmp_path, text(",", names, tau, *g1, *sigma), f"{n}.csv")
        result = hd.fit(scan, "brownian")
        row = result.params["D0"]
        pulls.append((row.value - 2e4) / row.stderr_naive)
        assert not result.findings.of("decay-outside-record", "table-misfit")
    assert abs(np.mean(pulls)) < 0.5
    assert 0.75 < np.std(pulls) < 1.3


def test_an_option_says_what_columns_are_in_place_of_their_names(tmp_path):
    for kind, curve in (("g2", G2[2]), ("g2-1", G2[2] - 1), ("f", np.sqrt(G2[2] - 1))):
        named = read(
            tmp_path, text(",", "lag,y", TAU, curve), f"{kind}.csv", q=0.0123, column_is=kind
        )
        np.testing.assert_allclose(named.table[0, 1:], G2[2], atol=1e-3)
    np.savez(tmp_path / "A.npz", c2=np.full((9, 9), 1.1), q=0.01, phi=0.0, dt=1.0)
    with pytest.raises(OptionError, match="has matrices, not columns of g2: leave out column_is"):
        hd.ingest(tmp_path / "A.npz", column_is="g1")


def test_g2_of_result_files_is_read_with_its_delays_in_frames(tmp_path):
    frames, multitau, instrument = np.arange(1, 13), "/xpcs/multitau/", "/entry/instrument/"
    files = {
        "A_results.hdf": {
            multitau + "normalized_g2": G2.T, multitau + "normalized_g2_err": ERROR.T,
            multitau + "delay_list": frames[None], multitau + "config/stride_frame": 2,
            instrument + "detector_1/frame_time": 1e-3, "/xpcs/qmap/dynamic_num_pts": [3, 1],
            "/xpcs/qmap/dynamic_v_list_dim0": Q, "/xpcs/qmap/dynamic_v_list_dim1": [0.0],
        },
        "B_results.hdf": {
            "/exchange/norm-0-g2": G2.T, "/exchange/norm-0-stderr": ERROR.T,
            "/exchange/tau": frames[None].astype(float), "/xpcs/dqlist": [Q],
            "/measurement/instrument/detector/exposure_period": [[2e-3]], "/xpcs/dphilist": np.zeros((1, 3)),
        },
        "C.nxs": {
            "/entry/data/g2": G2, "/entry/data/g2_derr": ERROR,
            "/entry/data/delay_difference": 2e-3 * frames, instrument + "masks/dynamic_q_list": Q,
        },
    }  # fmt: skip
    for name, arrays in files.items():
        with h5py.File(tmp_path / name, "w") as file:
            for where, values in arrays.items():
                file[where] = values
            if name == "C.nxs":
                file["/entry/data/delay_difference"].attrs["units"] = "s"
        check(hd.read_g2(tmp_path / name), delay=2e-3 * frames)


def test_one_file_for_each_q_makes_one_scan_and_may_lack_a_point(tmp_path):
    files, curves = [tmp_path / f"A_q{q}.txt" for q in Q], G2.copy()
    curves[1, 5] = curves[2, 8] = np.nan
    for path, g2, error in zip(files, curves, ERROR, strict=True):
        path.write_text(text(" ", "tau g2 err", TAU, g2, error))
    scan = hd.read_g2(files, tmp_path / "A_g2.zarr", q=Q)
    assert scan.q.tolist() == Q
    np.testing.assert_array_equal(scan.table[:, 1:], curves)


def test_a_curve_that_is_there_twice_counts_once(tmp_path):
    scan = read(tmp_path, text(",", "tau,q=0.004,q=0.008", TAU, G2[0], G2[0]))
    assert scan.q.tolist() == [0.004]


def test_the_report_of_many_curves_shows_forty_with_the_error_of_a_point(tmp_path):
    rows = np.c_[np.repeat(np.linspace(0.004, 0.02, 45), 3), np.tile([0.1, 1, 3], 45)]
    rows = np.c_[rows, 1.1 - rows[:, 0] * rows[:, 1], np.full(135, 0.004)]
    content = text(",", "q_val,tau,g2,g2_err", *rows.T)
    (tmp_path / "A.csv").write_text(content, encoding="utf-8")
    lines = str(hd.ingest(tmp_path / "A.csv")).splitlines()
    assert sum(line.split()[-1:] == ["0.004"] for line in lines) == 40, lines
    assert any(line.startswith("and 5 more bins; `homodyne-dask info") for line in lines)
