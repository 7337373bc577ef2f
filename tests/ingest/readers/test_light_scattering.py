"""Tables of DLS and DDM, and errors of their points: of repeats, and with few photons."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError
from ingest.readers.errors_of_points import follow_points, of_delays, of_repeats

T = np.geomspace(1e-3, 1e3, 40)
"""ms"""
G1 = np.exp(-T / 20)
CURVES = 0.9 * G1[:, None] ** 2 + 0.003 * np.random.default_rng(1).standard_normal((40, 3))
HEAD = (
    'ALV-7004/USB\nDate :\t"01.02.2024"\nTemperature [K] :\t   298.15\nRefractive Index:\t   1.332\n'
    "Wavelength [nm] :\t   632.8\nAngle [°]       :\t   90.00\nMeanCR0 [kHz]   :\t  120.1\n\n"
)
Q = 4 * np.pi * 1.332 * np.sin(np.pi / 4) / 6328


def block(title, *columns):
    rows = ("\t".join(f"{value:.8E}" for value in row) for row in zip(*columns, strict=True))
    return f'"{title}"\n' + "\n".join(rows) + "\n\n"


def alv(*columns, title="Correlation", more=""):
    rates = block("Count Rate", np.arange(80.0), np.full(80, 120.0))
    return HEAD + block(title, T, *columns) + rates + more


def zetasizer(mark, *columns, comma=False):
    names = [f"Correlation Coefficient ({n + 1})" for n in range(len(columns))]
    rows = (
        mark.join(f"{value:.8g}" for value in row) for row in zip(1e3 * T, *columns, strict=True)
    )
    text = "\n".join(rows)
    return (
        mark.join(["Delay Times (µs)", *names]) + "\n" + (text.replace(".", ",") if comma else text)
    )


def by_record(*columns):
    numbers = range(1, len(T) + 1)
    names = [f"Correlation Delay Times[{n}] (µs)" for n in numbers] + [
        f"Correlation Data[{n}]" for n in numbers
    ]
    rows = [["1", "latex", *(1e3 * T).astype(str), *column.astype(str)] for column in columns]
    return "\n".join("\t".join(row) for row in [["Record", "Sample Name", *names], *rows])


FILES = {
    "ALV, two detectors": (alv(*CURVES[:, :2].T), "latin-1", 2),
    "ALV, one of four is on": (alv(CURVES[:, 0], 0 * T, 0 * T, 0 * T), "latin-1", 1),
    "ALV, the mean and its runs": (
        alv(CURVES.mean(1), *CURVES.T, title="Correlation (Multi, Averaged)"), "utf-8", 3),
    "Zetasizer, decimal commas": (zetasizer(";", *CURVES.T, comma=True), "cp1252", 3),
    "Zetasizer, UTF-16": (zetasizer("\t", CURVES[:, 0]), "utf-16", 1),
    "Zetasizer, a row for each record": (by_record(*CURVES.T), "utf-8", 3),
    "names between spaces, numbers between commas": (
        "# delay(ms) g2-1\n" + "\n".join(map("{},{}".format, T, CURVES[:, 0])), "utf-8", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_light_scattering_is_read(tmp_path, name):
    content, encoding, curves = FILES[name]
    path = tmp_path / "A.ASC"
    path.write_bytes(content.encode(encoding))
    scan = hd.read_g2(path, q=None if "ALV" in name else Q)
    np.testing.assert_allclose(scan.table[:, 1:], 1 + CURVES[:, :curves].T, rtol=1e-7)
    np.testing.assert_allclose(scan.time[1:], 1e-3 * T, rtol=1e-6)
    np.testing.assert_allclose(scan.q, Q, rtol=1e-5)
    assert scan.attributes.sigma_source == ("table" if curves > 1 else "residuals")


def test_the_deviations_of_an_alv_file_are_its_errors(tmp_path):
    path = tmp_path / "A.ASC"
    path.write_text(alv(CURVES[:, 0], more=block("StandardDeviation", T, 0.001 + 1e-4 * T)))
    scan = hd.read_g2(path)
    np.testing.assert_allclose(scan.sigma_row[0, 1:], 0.001 + 1e-4 * T, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "says"),
    [(alv(CURVES[:, 0]).replace("Angle", "Place"), "does not contain q"),
     (alv(), "names of columns"),
     (HEAD + "\"Correlation\"\n", "nor a table of g2"),
     (zetasizer(";", 1 + CURVES[:, 0]), "is taken for g2-1, which decays to 0")],
    ids=["no angle", "no curve", "empty", "g2 itself"],
)  # fmt: skip
def test_what_such_a_file_lacks_is_said(tmp_path, content, says):
    path = tmp_path / "A.ASC"
    path.write_text(content)
    with pytest.raises(HomodyneDaskError, match=says):
        hd.read_g2(path, **({} if content.startswith("ALV") else {"q": Q}))


def test_a_table_of_ddm_has_q_in_1_per_um(tmp_path):
    path = tmp_path / "A.csv"
    rows = np.column_stack([T, G1, G1**2])
    np.savetxt(
        path, rows, delimiter=",", header="lag (ms),f(q=0.5 1/µm),f(q=1.0 1/µm)", comments=""
    )
    scan = hd.read_g2(path)
    assert np.allclose(scan.q, [0.5e-4, 1e-4])
    np.testing.assert_allclose(scan.table[:, 1:], 1 + np.stack([G1, G1**2]) ** 2, atol=1e-5)


@pytest.mark.parametrize("files", [1, 3])
def test_repeats_of_one_q_give_each_other_errors(tmp_path, files):
    rng, sigma = np.random.default_rng(3), 0.001 * (1 + 9 * (T < 1))
    curves = 1 + rng.uniform(0.5, 0.9, (6, 1)) * G1**2 + sigma * rng.standard_normal((6, 40))
    paths = [tmp_path / f"{n}.csv" for n in range(files)]
    for path, some in zip(paths, np.split(curves, files), strict=True):
        head = "delay(ms)" + "".join(f",g2 {n}" for n in range(len(some)))
        np.savetxt(path, np.column_stack([T, *some]), delimiter=",", header=head, comments="")
    scan = hd.read_g2([*map(str, paths)], tmp_path / "a.zarr", q=0.01)
    ratio = scan.sigma_row[:, 1:] / sigma
    assert np.abs(np.log(ratio[:, (T > 10) | (T < 0.1)])).mean() < 0.3


@pytest.mark.parametrize("curves", [2, 3, 8])
def test_errors_of_repeats_make_the_mean_square_of_a_deviation_one(curves):
    rng, squares = np.random.default_rng(curves), []
    for _ in range(200):
        noise = rng.standard_normal((curves, 40))
        error = of_repeats(1 + G1**2 + 0.01 * noise)
        squares.append(np.mean((0.01 * rng.standard_normal(40) / error) ** 2))
    assert abs(np.mean(squares) - 1) < 0.08


def counted(mu, rng, curves=6, pixels=300, delays=24):
    """g2 of independent counts, with the scatter over pixels as error; short delays have few pairs."""
    pairs = np.geomspace(100, 5000, delays).astype(int)
    values = rng.poisson(mu**2 * pairs, (curves, pixels, delays)) / (mu**2 * pairs)
    return values.mean(1), values.std(1) / np.sqrt(pixels)


def test_errors_that_follow_few_photons_are_seen_and_averaged():
    rng = np.random.default_rng(5)
    few = [counted(0.005, rng) for _ in range(20)]
    assert np.mean([follow_points(*table) for table in few]) > 0.9
    weighted, averaged = [], []
    for values, error in few:
        with np.errstate(divide="ignore"):
            weighted.append(np.average(values, weights=np.where(error > 0, error**-2.0, 0)))
        averaged.append(np.average(values, weights=of_delays(error) ** -2))
    assert np.mean(weighted) < 0.95
    assert abs(np.mean(averaged) - 1) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_errors_that_know_nothing_of_points_stay(seed):
    rng = np.random.default_rng(seed)
    seen = 0
    for _ in range(300):
        error = rng.uniform(0.5, 2, (4, 1)) * 0.01 * (1 + G1) * rng.uniform(0.7, 1.4, (4, 40))
        seen += follow_points(1 + G1**2 + error * rng.standard_normal((4, 40)), error)
    assert seen <= 4


def test_points_of_0_that_no_photon_pair_saw_are_kept_with_the_error_of_their_delay(tmp_path):
    values, error = counted(0.005, np.random.default_rng(8))
    assert (unseen := (error == 0).sum())
    names = [f"{what} {n}" for what in ("g2", "err") for n in range(6)]
    rows = np.column_stack([np.arange(1, 25) / 1e3, *values + 0.0, *error])
    np.savetxt(
        tmp_path / "A.csv", rows, delimiter=",", header=",".join(["delay(s)", *names]), comments=""
    )
    scan = hd.read_g2(tmp_path / "A.csv", q=0.01, column_is="g2")
    assert np.isfinite(scan.table[:, 1:]).all()
    (note,) = [note for note in scan.attributes.notes if "0 ± 0" in note]
    assert f"{unseen} point" in note
