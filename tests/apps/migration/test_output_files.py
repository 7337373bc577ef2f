"""The output files of homodyne, for scripts that read them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.apps.migration import fitted_data, output_files
from homodyne_dask.results.views.figures import fit_figures as plots
from tests.results.made_results import changed
from tests.run_command import done

FIT = (
    "fit", "F_c2.zarr", "--model", "laminar_flow", "--frames", "1:120",
    "--fixed", "D_offset=0", "--fixed", "gamma_dot_t_offset=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A folder with a small flow scan and a fit of it with homodyne's files."""
    folder = tmp_path_factory.mktemp("homodyne")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plots, "save_all", lambda *_: [])  # our own pictures are tested elsewhere
        for words in (
            ("simulate", "F_results.hdf", "--angles", "9", "--frames", "120"),
            ("ingest", "F_results.hdf"),
            (*FIT, "--homodyne-output"),
        ):
            printed = done(*words)
    assert "nlsq/parameters.json" in printed
    return folder


def read(fitted: Path, name: str) -> dict:
    return json.loads((fitted / "F_fit" / "nlsq" / name).read_text())


@pytest.mark.long
def test_parameters_have_a_value_and_an_uncertainty_by_name(fitted):
    content, result = read(fitted, "parameters.json"), hd.load_result(fitted / "F_fit")
    assert content["analysis_mode"] == "laminar_flow"
    assert content["convergence_status"] == "converged"
    assert content["chi_squared"] == pytest.approx(result.chisqr)
    assert content["reduced_chi_squared"] == pytest.approx(result.redchi)
    assert list(content["parameters"]) == ["contrast", "offset", *hd.LAMINAR_FLOW.names]
    table = result.parameters.sel(param="D0")
    assert content["parameters"]["D0"]["value"] == float(table.value)
    assert content["parameters"]["D0"]["uncertainty"] == pytest.approx(float(table.stderr))
    mean = result.scaling.contrast.values.mean()
    assert content["parameters"]["contrast"] == {"value": pytest.approx(mean), "uncertainty": None}


def test_the_analysis_and_the_convergence_have_homodynes_keys(fitted):
    content, result = read(fitted, "analysis_results_nlsq.json"), hd.load_result(fitted / "F_fit")
    assert content["method"] == "nlsq"
    assert set(content["fit_quality"]) == {
        "chi_squared", "reduced_chi_squared", "degrees_of_freedom", "quality_flag",
    }  # fmt: skip
    dof = content["fit_quality"]["degrees_of_freedom"]
    assert dof == pytest.approx(result.chisqr / result.redchi)
    assert content["dataset_info"] == {
        "n_angles": 9, "n_time_points": 119**2, "total_data_points": result.ndata, "q_value": 0.0054,
    }  # fmt: skip
    summary = content["optimization_summary"]
    assert (summary["convergence_status"], summary["iterations"]) == ("converged", result.passes)
    assert (summary["n_batches"], summary["success_rate"]) == (1, 1.0)
    metrics = read(fitted, "convergence_metrics.json")
    assert set(metrics) == {
        "convergence", "recovery_actions", "quality_flag", "device_info",
        "quality_validation_passed", "quality_warnings", "quality_checks",
    }  # fmt: skip
    assert metrics["convergence"]["status"] == "converged"
    assert metrics["convergence"]["n_batches"] == 1
    assert 0 <= metrics["convergence"]["chi_squared_reduction"] <= 1
    assert metrics["device_info"]["platform"] == "cpu"


def test_means_are_over_the_bins_that_determine_them_and_freedom_is_that_of_the_fit(fitted):
    """An undetermined contrast counted as 0; fixed values and a Fourier series as two per bin."""
    result = hd.load_result(fitted / "F_fit")
    bins = result.scaling.copy(deep=True)
    bins["undetermined"][:] = [True, *[False] * 8]
    bins["contrast"][:] = [0.0, *[0.25] * 8]
    bins["ndata"][1] = 0
    bins["contrast"][1], bins["offset"][1] = np.nan, np.nan
    for scaling, freedom in (("fixed", result.ndata - 5), ("fourier1", result.ndata - 5 - 6)):
        again = changed(
            result, scaling=bins, redchi=result.chisqr / freedom,
            config=result.config | {"scaling": scaling},
        )  # fmt: skip
        content = output_files.json_files(again, hd.open_dataset(fitted / "F_c2.zarr"))
        quality = content["analysis_results_nlsq.json"]["fit_quality"]
        assert quality["degrees_of_freedom"] == freedom
        values = content["parameters.json"]["parameters"]
        assert values["contrast"]["value"] == 0.25
        assert values["offset"]["value"] == pytest.approx(float(np.nanmean(bins["offset"])))
    unknown = replace(result, scaling=bins.assign(undetermined=("bin", np.full(9, True))))
    content = output_files.json_files(unknown, hd.open_dataset(fitted / "F_c2.zarr"))
    assert content["parameters.json"]["parameters"]["contrast"]["value"] is None


def test_the_archive_holds_data_model_and_residuals_of_every_pair(fitted):
    result = hd.load_result(fitted / "F_fit")
    scan = hd.open_dataset(fitted / "F_c2.zarr")
    values = dict(zip(hd.LAMINAR_FLOW.names, result.parameters.value.values, strict=True))
    expected = hd.predict(
        hd.LAMINAR_FLOW, values, scan.time, q=scan.q, phi=scan.phi, gap=scan.attrs["gap_angstrom"],
        contrast=result.scaling.contrast.values, offset=result.scaling.offset.values,
    )[:, 1:, 1:]  # fmt: skip
    with np.load(fitted / "F_fit/nlsq/fitted_data.npz") as content:
        assert set(content) == {
            "phi_angles", "c2_exp", "c2_theoretical_raw", "c2_theoretical_scaled",
            "c2_solver_scaled", "per_angle_scaling", "per_angle_scaling_solver", "residuals",
            "residuals_normalized", "t1", "t2", "q",
        }  # fmt: skip
        c2, model = content["c2_exp"], content["c2_theoretical_scaled"]
        assert c2.shape == (9, 119, 119)
        np.testing.assert_array_equal(c2, c2.transpose(0, 2, 1))
        stored = np.asarray(scan.dataset["c2"])[:, 1:, 1:]
        above = np.triu(np.ones((119, 119), bool), 1)
        np.testing.assert_array_equal(c2[:, above], stored[:, above])
        assert c2[0, 0, 0] == c2[0, 0, 1]
        assert c2[0, 5, 5] == pytest.approx((c2[0, 4, 5] + c2[0, 5, 6]) / 2)
        np.testing.assert_allclose(model, expected, rtol=1e-12)
        np.testing.assert_allclose(content["residuals"], c2 - model)
        contrast, offset = content["per_angle_scaling"].T[:, :, None, None]
        np.testing.assert_allclose(offset + contrast * content["c2_theoretical_raw"], model)
        sigma = scan.sigma_row[:, 1:, None] * scan.sigma_row[:, None, 1:]
        np.testing.assert_allclose(content["residuals_normalized"] * sigma, content["residuals"])
        np.testing.assert_array_equal(content["t1"], scan.time[1:])
        assert content["q"].tolist() == [0.0054]
        assert content["phi_angles"].tolist() == scan.phi.tolist()


def test_every_angle_has_a_figure_with_the_file_name_of_homodyne(fitted):
    phi = hd.open_dataset(fitted / "F_c2.zarr").phi
    found = {path.name for path in (fitted / "F_fit/nlsq").glob("*.png")}
    assert found == {f"c2_heatmaps_phi_{angle:.1f}deg.png" for angle in phi}


def test_one_angle_at_several_q_has_several_figures(fitted):
    scan = hd.open_dataset(fitted / "F_c2.zarr")
    q, phi, label = np.array([0.01, 0.02, 0.02]), np.zeros(3), np.arange(3)
    several = replace(
        scan, bins=(0, 1, 2), all_bins=scan.all_bins | {"q": q, "phi": phi, "label": label}
    )
    names = output_files._figure_names(several)
    assert names[0] == "c2_heatmaps_phi_0.0deg_q_0.01_0.png"
    assert len(set(names)) == 3


@pytest.mark.long
def test_an_archive_above_the_limit_is_refused_with_numbers_and_the_rest_is_written(
    fitted, monkeypatch, no_pictures
):
    monkeypatch.chdir(fitted)
    monkeypatch.setattr(fitted_data, "MAX_FILE_BYTES", 100_000)
    printed = done(*FIT, "--homodyne-output", "--overwrite", "--output", "S_fit")
    assert (
        "6 arrays of 9 x 119 x 119 numbers take 6.12 MB, more than the limit of 100 kB" in printed
    )
    names = {path.name for path in (fitted / "S_fit/nlsq").iterdir()}
    assert "fitted_data.npz" not in names
    assert "parameters.json" in names
    analysis = json.loads((fitted / "S_fit/nlsq/analysis_results_nlsq.json").read_text())
    assert "is not written" in analysis["fitted_data"]
