"""What the data do not determine has no value in any output, and what is known of it is the same in all."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.results.data.fit_rows import PARTS, fit_row
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.files.csv_and_netcdf import (
    entries_csv,
    netcdf,
    parameters_csv,
    result_netcdf,
)
from homodyne_dask.results.files.json_files import write_with_checksum
from homodyne_dask.results.files.result_folder import write_index
from homodyne_dask.results.result_classes import FitSeries
from homodyne_dask.results.views.panels import DOWN, UP
from homodyne_dask.results.views.scans_figure import page_of_series
from tests.results.made_results import UNITS, rate_dof, result_for

NAN = np.nan
NAMES = LAMINAR_FLOW.names
THETA = np.array([1e-9, 2.0, 1200.0, 1e-4, 0.5, -9e-4, 3.0])
SIGMA = np.array([1.4e6, 0.5, 40.0, 1e-5, NAN, NAN, 40.0])
FOUND = {
    "only an upper limit": ("D0", (NAN, NAN, 2.3e6)),
    "undetermined": ("alpha", (NAN, NAN, NAN)),
    "a value": ("D_offset", (1200.0, NAN, NAN)),
    "limits that are the bounds": ("gamma_dot_t0", (NAN, 1e-9, 1.0)),
    "fixed": ("beta", (0.5, NAN, NAN)),
    "at a bound, without an error": ("gamma_dot_t_offset", (-9e-4, NAN, NAN)),
    "an error larger than the value": ("phi0", (NAN, NAN, NAN)),
}
LIMITS = {"D0": [None, 2.3e6, "Å²/s"], "gamma_dot_t0": [1e-9, 1.0, "1/s"]}
CELLS = {
    "D0": "below 2.3e+06", "alpha": "-", "D_offset": "1200 ± 40", "beta": "0.5", "phi0": "-",
    "gamma_dot_t0": "above 1e-09 and below 1 at bound", "gamma_dot_t_offset": "-0.0009 at bound",
}  # fmt: skip
FINDINGS = Findings(
    [
        finding("limits-only", LIMITS, limits=LIMITS),
        finding("undetermined", ["alpha"], "--model brownian"),
        finding("larger-error", ["phi0"]),
        finding("shear-sign", rate=-8e-4, bounded=""),
    ]
)


def partly_determined(scan):
    flags = {"fixed": np.isin(NAMES, ["beta"]), "unit": UNITS}
    flags |= {"at_bound": np.isin(NAMES, ["gamma_dot_t0", "gamma_dot_t_offset"])}
    table = flags | {"stderr": SIGMA, "stderr_naive": SIGMA / 2, "dof": np.full(7, 50.0)}
    covariance = np.diag(np.where(np.isin(NAMES, ["beta"]), 0.0, SIGMA) ** 2)
    dof = rate_dof(J=50.0, J_integral=50.0, gamma_dot=50.0, strain=50.0)
    made = result_for(
        scan, THETA, covariance, table=table, findings=FINDINGS, rate_dof=dof, truth=None
    )
    inputs = made.provenance.inputs | {"labels": scan.label.tolist(), "mean_age": 3.0}
    return replace(made, provenance=replace(made.provenance, inputs=inputs))


@pytest.fixture(scope="module")
def result(flowing):
    return partly_determined(flowing)


def rows_of(text, name="name"):
    return {row[name]: row for row in csv.DictReader(io.StringIO(text))}


def numbers(row, *keys):
    return tuple(NAN if row.get(key) in (None, "") else float(row[key]) for key in keys)


def series_of(result):
    rows = [fit_row(f"q{n}", None, result, "", {"q": 0.01 * n, "age": 3.0}) for n in (1, 2)]
    return FitSeries("q", tuple(rows))


KEYS = ("value", "lower_limit", "upper_limit")


def of_table(table):
    return {str(n): [float(table[key].sel(param=n)) for key in KEYS] for n in table["param"].values}


def of_result(result, scan, folder):
    view, series = FitView(result, scan), series_of(result)
    result.to_json(folder / "summary.json")
    again = hd.load_result(folder / "summary.json")
    plain = result.to_dict()
    scans = entries_csv(series.names, series.entries, folder, "fit")
    written = rows_of(scans, "fit")["q1"]
    (folder / "result.nc").write_bytes(result_netcdf(view))
    (folder / "series.nc").write_bytes(netcdf(series.table))
    with (
        xarray.open_dataset(folder / "result.nc", engine="h5netcdf") as of_file,
        xarray.open_dataset(folder / "series.nc", engine="h5netcdf") as of_series,
    ):
        tables = {
            "netcdf": of_table(of_file.load()),
            "series.nc": of_table(of_series.load().isel(fit=0)),
        }
    return tables | {
        "params": {n: numbers(vars(of), *KEYS) for n, of in result.params.items()},
        "summary": {n: numbers(row, *KEYS) for n, row in result.summary().iterrows()},
        "read": of_table(again.parameters),
        "JSON": {n: numbers(row, *KEYS) for n, row in (plain["parameters"] | plain["derived"]).items()},
        "parameters.csv": {n: numbers(row, *KEYS) for n, row in rows_of(parameters_csv(result)).items()},
        "scans.csv": {
            n: numbers(written, n, f"{n}_lower_limit", f"{n}_upper_limit") for n in series.names
        },
        "series": of_table(series.table.isel(fit=0)),
    }  # fmt: skip


def test_a_parameter_has_the_same_value_or_limit_in_every_file_and_table(result, flowing, tmp_path):
    outputs = of_result(result, flowing, tmp_path)
    for where, found in outputs.items():
        for word, (name, expected) in FOUND.items():
            np.testing.assert_allclose(found[name], expected, 1e-12, err_msg=f"{where}: {word}")
    rate = [of["gamma_dot"] for of in outputs.values() if "gamma_dot" in of]
    assert len(rate) >= 5
    np.testing.assert_array_equal(rate, [rate[0]] * len(rate))
    np.testing.assert_array_equal(result.parameters["optimum"], THETA)


def test_a_parameter_is_the_same_in_every_text(result, tmp_path):
    series = series_of(result)
    write_index(tmp_path, NAMES, series.entries, 2, PARTS)
    texts = [str(result), str(result.params), str(series), (tmp_path / "series.html").read_text()]
    for name, cell in CELLS.items():
        shown = cell.removesuffix(" at bound")
        assert all(shown in text for text in texts), (name, shown)
    assert all("1400000" not in text and "-0.00073" not in text for text in texts)


def test_limits_are_drawn_as_arrows_and_what_is_not_known_is_not_drawn(result):
    picture = page_of_series(series_of(result)).figure()
    drawn = {axes.get_ylabel().partition(" [")[0]: axes for axes in picture.axes}
    assert {"D offset", "γ̇ offset", "D₀", "γ̇₀", "J"} <= {*drawn}, drawn
    assert {*drawn}.isdisjoint({"α", "φ₀"}), drawn
    (limit,) = drawn["D₀"].lines
    assert limit.get_marker() is DOWN
    assert limit.get_ydata().tolist() == [2.3e6] * 2
    limits = [line.get_ydata().tolist() for line in drawn["γ̇₀"].lines]
    assert limits == [[1.0] * 2, [1e-9] * 2]
    assert [line.get_marker() for line in drawn["γ̇₀"].lines] == [DOWN, UP]


def test_only_the_lowest_panel_of_a_column_names_the_axis_that_its_panels_share(result):
    axes = page_of_series(series_of(result)).figure().axes
    assert len(axes) > 3
    named = [axis.xaxis.label.get_visible() for axis in axes]
    assert named == [False] * (len(axes) - 3) + [True] * 3


def test_a_shear_rate_whose_sign_is_not_seen_is_positive_in_curves_as_in_tables(result, flowing):
    curves, at = rates_in(FitView(result, flowing)), result.derived["gamma_dot"]
    assert np.isnan(at.value) or at.value > 0
    rate, strain = (curves[name].values for name in ("gamma_dot", "strain"))
    assert min(rate.min(), np.diff(strain).min()) > 0
    assert np.interp(3.0, curves["t"], rate) == pytest.approx(at.optimum, rel=1e-3)
    raw = replace(result, diagnosis=replace(result.diagnosis, findings=FINDINGS.of("limits-only")))
    np.testing.assert_array_equal(rates_in(FitView(raw, flowing))["gamma_dot"], -rate)


def test_a_summary_of_an_earlier_version_is_read_with_the_same_rule(result, tmp_path):
    plain, known = result.to_dict(), zip(THETA.tolist(), SIGMA.tolist(), strict=True)
    for row, (value, stderr) in zip(plain["parameters"].values(), known, strict=True):
        for key in ("optimum", "lower_limit", "upper_limit"):
            del row[key]
        row |= {"value": value, "stderr": None if np.isnan(stderr) else stderr}
    write_with_checksum(plain, tmp_path / "summary.json")
    read = hd.load_result(tmp_path).parameters
    np.testing.assert_array_equal(read["value"], result.parameters["value"])
    np.testing.assert_array_equal(read["upper_limit"], result.parameters["upper_limit"])


def test_a_limit_is_one_of_what_grows_with_it_and_none_of_what_is_tied_by_a_curve(tmp_path):
    t, noise = 0.1 * np.arange(60), np.random.default_rng(4).standard_normal((4, 60, 60))
    c2 = 1 + 0.3 * np.exp(-0.04 * np.abs(t[:, None] - t)) + 0.09 * np.triu(noise, 1)
    source = {"c2": np.triu(c2) + np.triu(c2, 1).transpose(0, 2, 1), "q": [0.006] * 4}
    np.savez(tmp_path / "a.npz", **source, phi=[0.0, 30.0, 60.0, 90.0], dt=0.1)
    hd.ingest(tmp_path / "a.npz", tmp_path / "a.zarr")
    options = {"tie": {"alpha": "exp(-D0/1000)"}, "fixed": {"D_offset": 0.0}}
    result = hd.fit(tmp_path / "a.zarr", "static", **options)
    assert np.isfinite(result.params["D0"].upper_limit)
    assert np.isnan(result.derived["alpha"].value)
    assert result.derived["alpha"].limit == ""
    stretched = hd.fit(tmp_path / "a.zarr", "stretched", fixed={"stretching": 1.0})
    limit = stretched.params["rate"].upper_limit
    assert np.isfinite(limit)
    assert stretched.derived["Gamma"].upper_limit == limit
    assert stretched.derived["tau"].lower_limit == 1 / limit
