"""A configuration of homodyne or xpcsjax becomes one that describes the same fit."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

import homodyne_dask as hd
import ingest
from homodyne_dask.apps.migration.translate_yaml import ALL_FRAMES
from homodyne_dask.cli.fit_config import read_config
from homodyne_dask.errors import OptionError
from tests.apps.migration.configurations import FLOW_NAMES, translated, write_yaml
from tests.run_command import run
from tests.synthetic import FLOW, GAP, Q, angles, measured


def test_keys_that_both_programs_know_are_converted(tmp_path):
    translation = translated(tmp_path)
    config = translation.config
    assert config.data == [Path("data/E_c2.zarr")]
    assert (config.model, config.convention, config.scaling) == (
        "laminar_flow", "homodyne", "shared",
    )  # fmt: skip
    assert (config.gap, config.q) == ("2000000 A", [0.0054])
    assert config.phi == [(-10.0, 10.0), (170.0, 180.0), (-180.0, -170.0)]
    assert config.bounds == {"D0": (100.0, 1e5), "phi0": (-10.0, 10.0)}
    assert config.initial == dict(zip(FLOW_NAMES, [1000, -0.5, 10, 0.01, 0, 0, 0], strict=True))
    assert translation.ingest == 'homodyne-dask ingest data/E.hdf --sigma 0.01 --gap "2000000 A"'
    assert translation.unknown == {}


def test_the_command_that_writes_the_store_quotes_its_file(tmp_path):
    data = {"file_path": "my data/it's E.hdf"}
    words = shlex.split(translated(tmp_path, experimental_data=data).ingest)
    assert words[:3] == ["homodyne-dask", "ingest", "my data/it's E.hdf"]


FRAMES = {
    "from 1 inclusive lose the first and count from 0": ({}, (1, 400), ""),
    "from a later one move the origin of times": ({"start_frame": 21}, (21, 400), "--time-offset -2"),
    "up to minus 1 are all of them": ({"end_frame": -1}, (1, ALL_FRAMES), ""),
}  # fmt: skip


@pytest.mark.parametrize("word", FRAMES)
def test_frames(tmp_path, word):
    changes, frames, option = FRAMES[word]
    translation = translated(
        tmp_path, **{f"analyzer_parameters__{name}": value for name, value in changes.items()}
    )
    assert translation.config.frames == frames
    assert translation.ingest.endswith(option)


OF_ANALYSIS = {
    "metadata": {"analysis_mode": "static_isotropic"},
    "experimental_data": {"data_folder_path": "./data/", "data_file_name": "A1.hdf"},
    "analyzer_parameters": {
        "temporal": {"dt": 0.5, "dt_unit": "seconds", "start_frame": 300, "end_frame": 900},
        "scattering": {"wavevector_q": 0.02, "q_unit": "1/A"},
    },
    "initial_parameters": {
        "values": [20000, -1.5, 3.0], "parameter_names": FLOW_NAMES,
        "active_parameters": FLOW_NAMES[:3],
    },
}  # fmt: skip
"""As homodyne-analysis has it, in JSON."""


def test_a_file_of_homodyne_analysis_selects_the_same_frames(tmp_path):
    (tmp_path / "A.json").write_text(json.dumps(OF_ANALYSIS))
    found = hd.from_homodyne_yaml(tmp_path / "A.json")
    config = found.config
    assert (config.model, config.frames, config.q) == ("static", (300, 900), [0.02])
    assert found.config.initial == {"D0": 20000, "alpha": -1.5, "D_offset": 3.0}
    assert found.ingest.endswith("--time-offset -149.5")
    assert found.unknown == {}


DECIDING = [
    ("analyzer_parameters", {"dt": 1.0, "temporal": {"dt": 0.5}}, "has dt twice"),
    ("analyzer_parameters", {"scattering": {"q_unit": "1/nm"}}, "give a number in 1/A"),
    ("analyzer_parameters", {"first_frame": 20}, "first_frame is unknown, and may decide"),
    ("phi_filtering", {"enabled": True, "range": [0, 1]}, "range is unknown, and may decide"),
    ("analyzer_parameters.start_frame", {}, "'start_frame' inside the section 'analyzer_parameters'"),
    ("phi_filtering.enabled", {}, "phi_filtering.enabled is unknown, and may decide"),
    ("analyzer_parameters.scattering.wavevector_q", {}, "wavevector_q is unknown, and may decide"),
    ("analyzer_parameters", {"scattering.wavevector_q": 1}, "wavevector_q is unknown, and may"),
    ("parameters", {"reference": {}}, "of heterodyne, which is not converted"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "held", "said"), DECIDING)
def test_what_decides_which_data_are_fitted_is_never_ignored(tmp_path, section, held, said):
    content = OF_ANALYSIS | {section: OF_ANALYSIS.get(section, {}) | held}
    content["metadata"] = {} if section == "parameters" else OF_ANALYSIS["metadata"]
    (tmp_path / "A.json").write_text(json.dumps(content))
    with pytest.raises(OptionError, match=said):
        hd.from_homodyne_yaml(tmp_path / "A.json")


def test_older_names_of_parameters_are_known(tmp_path):
    older = [*FLOW_NAMES[:3], "gamma_dot_0", "beta", "gamma_dot_offset", "phi_0"]
    translation = translated(
        tmp_path,
        initial_parameters__parameter_names=older,
        initial_parameters__fixed_parameters={"gamma_dot_offset": 1e-5},
        parameter_space__bounds=[{"name": "gamma_dot_0", "min": 1e-6, "max": 0.5}],
    )
    assert list(translation.config.initial) == [n for n in FLOW_NAMES if n != "gamma_dot_t_offset"]
    assert translation.config.fixed == {"gamma_dot_t_offset": 1e-5}
    assert translation.config.bounds == {"gamma_dot_t0": (1e-6, 0.5)}


def test_parameters_that_are_not_active_are_fixed_at_their_values(tmp_path):
    translation = translated(tmp_path, initial_parameters__active_parameters=["D0", "gamma_dot_0"])
    assert list(translation.config.initial) == ["D0", "gamma_dot_t0"]
    assert translation.config.fixed == {
        "alpha": -0.5, "D_offset": 10.0, "beta": 0.0, "gamma_dot_t_offset": 0.0, "phi0": 0.0,
    }  # fmt: skip


def test_values_are_of_the_names_in_whichever_order_the_active_ones_are(tmp_path):
    in_order, found = (
        translated(tmp_path, initial_parameters__active_parameters=names)
        for names in (FLOW_NAMES, FLOW_NAMES[::-1])
    )
    assert found.config.initial == in_order.config.initial


SCALINGS = {
    "auto": "shared", "constant": "individual", "individual": "individual", "fourier": "fourier2",
}  # fmt: skip


@pytest.mark.parametrize("mode", SCALINGS)
def test_modes_of_contrast_and_offset_become_scalings_with_a_remark(tmp_path, mode):
    translation = translated(tmp_path, optimization__nlsq__anti_degeneracy__per_angle_mode=mode)
    assert translation.config.scaling == SCALINGS[mode]
    assert any(f"scaling {SCALINGS[mode]}" in text for text in translation.remarks)


def test_the_order_of_the_fourier_series_is_kept(tmp_path):
    def of_order(order: object):
        mode = {"per_angle_mode": "fourier", "fourier_order": order}
        return translated(tmp_path, optimization__nlsq__anti_degeneracy=mode)

    assert of_order(3).config.scaling == of_order("3").config.scaling == "fourier3"
    assert not of_order(3).unknown
    for order, why in {
        9: "9: Input should be 1, 2 or 3",
        True: "True: Value error, a truth",
    }.items():
        with pytest.raises(OptionError, match=f"fourier_order = {why}"):
            of_order(order)


STATIC = ("static", "STATIC", "static_isotropic", "static_anisotropic")


@pytest.mark.parametrize("mode", [*STATIC, "heterodyne", "two_component"])
def test_every_mode_of_either_program_has_a_model(tmp_path, mode):
    nothing = {"initial_parameters__values": None, "parameter_space__bounds": []}
    model = "static" if mode in STATIC else "two_component_xpcsjax"
    assert translated(tmp_path, analysis_mode=mode, **nothing).config.model == model


def test_the_static_model_takes_no_gap_and_no_bounds_of_the_flow(tmp_path):
    translation = translated(tmp_path, analysis_mode="static", initial_parameters__values=None)
    assert translation.config.gap is None
    assert translation.config.initial is None  # searched in the data
    assert list(translation.config.bounds) == ["D0"]


def test_the_command_writes_a_file_that_fit_reads_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path)
    (tmp_path / "sub").mkdir()
    words = ["from-homodyne", "homodyne.yaml", "-o", "sub/converted.yaml"]
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "homodyne-dask fit sub/converted.yaml" in result.stdout
    config = read_config("sub/converted.yaml")
    assert config.data == [Path("sub/../data/E_c2.zarr")]
    assert config.output == Path("sub/E_fit")  # the data lie outside the folder of the file
    apart = {"data": [], "output": None}
    expected = translated(tmp_path).config.replaced(**apart)
    assert config.replaced(**apart).values() == expected.values()
    assert run(*words).exit_code == 2
    assert run(*words, "--overwrite").exit_code == 0
    printed = run(*words[:2])
    assert yaml.safe_load(printed.stdout)["data"] == "data/E_c2.zarr"
    assert "not converted" in printed.stderr


@pytest.mark.long
def test_a_configuration_and_a_cache_of_homodyne_recover_the_truth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    phi = np.append(angles(8), 175.0)
    scans = measured(FLOW, 80, phi, convention="homodyne", sigma=0.002)
    c2 = np.where(np.isnan(scans.c2), 0, scans.c2)
    np.savez(
        "E.npz",
        c2_exp=c2 + c2.transpose(0, 2, 1),
        wavevector_q_list=scans.q,
        phi_angles_list=phi,
        t1=scans.time,
        t2=scans.time,
    )
    data = {"file_path": None, "data_folder_path": ".", "data_file_name": "E.npz"}
    translation = translated(
        tmp_path,
        experimental_data=data,
        analyzer_parameters__dt=float(scans.time[1]),
        phi_filtering__target_ranges=[
            {"min_angle": -50, "max_angle": 70},
            {"min_angle": 170, "max_angle": -80},
        ],
        initial_parameters__values=None,
        parameter_space__bounds=[],
    )
    Path("converted.yaml").write_text(translation.yaml())
    ingest.ingest("E.npz", sigma=0.01, gap=GAP)
    config = read_config("converted.yaml")
    scan = hd.open_dataset(config.data[0]).select(**config.selection())
    assert scan.phi.tolist() == [-90, -45, -22.5, 0, 22.5, 45, 67.5, 175]
    assert scan.frames == (1, 80)
    assert scan.q == pytest.approx(Q)
    result = hd.fit(scan, hd.LAMINAR_FLOW, **config.values())
    assert result.converged
    away = result.parameters.value.values - FLOW
    assert (np.abs(away) < 5 * 0.2 * result.parameters.stderr_naive.values).all()


def test_every_key_is_converted_or_ignored_for_a_reason(tmp_path):
    translation = translated(tmp_path)
    assert translation.ignored["plotting"] == "the figures of a fit have one format"
    assert "optimization.nlsq.loss" not in translation.ignored
    assert any(text.startswith("loss soft_l1: a sum of") for text in translation.remarks)
    assert "logging" in translation.ignored
    assert "phi_filtering.tolerance" in translation.ignored
    assert "analyzer_parameters.dt" in translation.ignored
    text = str(translation)
    assert all(key.rpartition(".")[2] in text for key in translation.ignored)


UNKNOWN = {
    "section": ("plottting", {"dpi": 3}, "did you mean 'plotting'?"),
    "key": ("initial_parameters__fixed_paramters", {}, "did you mean 'fixed_parameters'?"),
    "deep": (
        "optimization__nlsq__anti_degeneracy__per_angle_mod",
        "auto",
        "did you mean 'per_angle_mode'?",
    ),
    "flat": ("optimization.nlsq.loss", "x", "did you mean 'loss' inside the section 'optimization.nlsq'?"),
}  # fmt: skip


@pytest.mark.parametrize("word", UNKNOWN)
def test_a_key_that_neither_program_knows_is_named_with_the_most_similar_one(tmp_path, word):
    path, value, similar = UNKNOWN[word]
    translation = translated(tmp_path, **{path: value})
    assert translation.unknown == {path.replace("__", "."): similar}
    text = str(translation)
    assert text.index("unknown keys, ignored:") < text.index("converted, with a difference:")


WRONG = {
    "mode": ({"analysis_mode": "laminar"}, "did you mean 'laminar_flow'"),
    "no mode": ({"analysis_mode": "absent"}, "not a configuration of homodyne"),
    "no q": ({"analyzer_parameters__scattering": {}}, "wavevector_q is missing"),
    "no gap": ({"analyzer_parameters__geometry": None}, "stator_rotor_gap is missing"),
    "misspelled q": (
        {"analyzer_parameters__scattering": {"wavevectr_q": 0.01, "q_unit": "1/A"}},
        r"the file has analyzer_parameters.scattering.wavevectr_q: did you mean 'wavevector_q'\?",
    ),
    "misspelled section": (
        {"analyzer_parameters": "absent", "analyser_parameters": {}},
        r"the file has analyser_parameters: did you mean 'analyzer_parameters'\?",
    ),
    "misspelled mode": (
        {"analysis_mode": "absent", "analysis_mod": "static"},
        r"the file has analysis_mod: did you mean 'analysis_mode'\?",
    ),
    "no data beside a known key": (
        {"experimental_data": {"cache_file_path": "A", "file_paht": "B"}}, "has experimental_data.file_paht",
    ),
    "gap of 0": ({"analyzer_parameters__geometry__stator_rotor_gap": 0}, "gap = 0: Input should be greater"),
    "no data": ({"experimental_data": {"file_path": None}}, "file_path is missing"),
    "section": ({"experimental_data": "E.hdf"}, "is not a section with keys"),
    "few values": ({"initial_parameters__values": [1.0]}, "has 1 values: give 7, one for each"),
    "value": ({"initial_parameters__values": ["a"] * 7}, "values of D0 = 'a': Input should be a valid"),
    "infinite": ({"initial_parameters__values": [float("inf")] * 7}, "of D0 = inf: Input should be a finite"),
    "name twice": (
        {"initial_parameters__parameter_names": [*FLOW_NAMES[:6], "D0"]}, "values has D0 twice: remove one",
    ),
    "older name twice": (
        {"initial_parameters__fixed_parameters": {"phi_0": 1, "phi0": 2}}, "parameters has phi0 twice",
    ),
    "bounds twice": (
        {"parameter_space__bounds": [{"name": "D0", "min": 1, "max": high} for high in (2, 3)]},
        "parameter_space.bounds has D0 twice: remove one",
    ),
    "metadata": ({"metadata": "text"}, "metadata.analysis_mode = 'text' is not a section with keys"),
    "name": ({"initial_parameters__fixed_parameters": {"betta": 0}}, "did you mean 'beta'"),
    "fixed": ({"initial_parameters__fixed_parameters": ["beta"]}, r"\['beta'\]: Input should be a valid"),
    "inactive": (
        {"initial_parameters__values": None, "initial_parameters__active_parameters": ["D0"]},
        "excludes alpha, which has no value",
    ),
    "bounds": ({"parameter_space__bounds": [{"name": "D0"}]}, "bounds of D0: min = None: Input should be"),
    "frames": ({"analyzer_parameters__end_frame": 2}, "leaves no frames"),
    "half": ({"analyzer_parameters__start_frame": 1.5}, "start_frame = 1.5: Input should be a valid integer"),
    "scaling": ({"optimization__nlsq__anti_degeneracy__per_angle_mode": "none"}, "should be 'auto'"),
    "range": ({"phi_filtering__target_ranges": [[0, 1]]}, r"target_ranges.0 = \[0, 1\]: Input should be"),
    "key of a range": (
        {"phi_filtering__target_ranges": [{"min_angel": -10, "max_angle": 10}]},
        "'min_angel': Input should be 'min_angle', 'max_angle' or 'description'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("word", WRONG)
def test_an_invalid_value_is_named_with_its_key(tmp_path, word):
    changes, message = WRONG[word]
    with pytest.raises(OptionError, match=message) as error:
        translated(tmp_path, **changes)
    assert str(error.value).startswith(str(tmp_path / "homodyne.yaml"))


def test_a_configuration_of_homodyne_dask_is_recognized(tmp_path):
    (tmp_path / "fit.yaml").write_text("data: A.zarr\nmodel: static\n")
    with pytest.raises(OptionError, match="run `homodyne-dask fit` with it"):
        hd.from_homodyne_yaml(tmp_path / "fit.yaml")


def test_the_fourteen_parameters_of_two_components_keep_their_names(tmp_path):
    bounds = [{"name": name, "min": 0.0, "max": 1.0} for name in ("v0", "v_beta", "phi0_het")]
    translation = translated(
        tmp_path,
        analysis_mode="two_component",
        initial_parameters__values=None,
        initial_parameters__tied_parameters={"D0_ref": "D0_sample"},
        parameter_space__bounds=bounds,
    )
    assert list(translation.config.bounds) == ["v0", "v_beta", "phi0_het"]
    assert "ties are not converted" in translation.ignored["initial_parameters.tied_parameters"]
