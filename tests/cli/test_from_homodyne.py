"""A configuration of homodyne or xpcsjax, read as ours; facts of their format, none of their text."""

import copy
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import homodyne_dask as hd
import ingest
from homodyne_dask.cli import main
from homodyne_dask.cli.config import read_config
from homodyne_dask.errors import OptionError
from tests.synthetic import FLOW, GAP, Q, angles, measured

FLOW_NAMES = ["D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0"]
THEIRS = {
    "metadata": {"config_version": "2.23.2", "generated_at": None},
    "analysis_mode": "laminar_flow",
    "analyzer_parameters": {
        "dt": 0.1,
        "start_frame": 1,
        "end_frame": 400,
        "scattering": {"wavevector_q": 0.0054},
        "geometry": {"stator_rotor_gap": 2000000},
    },
    "experimental_data": {
        "file_path": "./data/E.hdf",
        "data_folder_path": "./data/",
        "data_file_name": "E.hdf",
        "cache_compression": True,
    },
    "phi_filtering": {
        "enabled": True,
        "target_ranges": [
            {"min_angle": -10.0, "max_angle": 10.0, "description": "along the flow"},
            {"min_angle": 170.0, "max_angle": -170.0},
        ],
        "tolerance": 3.0,
    },
    "initial_parameters": {
        "parameter_names": FLOW_NAMES,
        "values": [1000.0, -0.5, 10.0, 0.01, 0.0, 0.0, 0.0],
        "per_angle_scaling": {"contrast": None, "offset": None},
        "active_parameters": None,
        "fixed_parameters": None,
    },
    "parameter_space": {
        "bounds": [
            {"name": "contrast", "min": 0.0, "max": 1.0},
            {"name": "D0", "min": 100.0, "max": "1e5", "type": "TruncatedNormal"},
            {"name": "phi0", "min": -10, "max": 10},
        ]
    },
    "optimization": {
        "method": "nlsq",
        "nlsq": {"loss": "soft_l1", "anti_degeneracy": {"per_angle_mode": "auto", "enable": True}},
    },
    "plotting": {"dpi": 300, "color_scale": {"mode": "legacy"}},
    "logging": {"modules": {"jax._src": "WARNING"}},
}


def theirs(folder: Path, **changes) -> Path:
    """Write their file with values at 'a.b.c' replaced, or dropped (None as a string: 'absent')."""
    held = copy.deepcopy(THEIRS)
    for path, value in changes.items():
        *sections, key = path.split("__")
        at = held
        for section in sections:
            at = at.setdefault(section, {})
        if value == "absent":
            del at[key]
        else:
            at[key] = value
    file = folder / "theirs.yaml"
    file.write_text(yaml.safe_dump(held))
    return file


def translated(folder: Path, **changes):
    return hd.from_homodyne_yaml(theirs(folder, **changes))


def test_what_both_programs_know_is_carried_over(tmp_path):
    found = translated(tmp_path)
    config = found.config
    assert config.data == [Path("data/E_c2.zarr")]
    assert (config.model, config.convention, config.scaling) == (
        "laminar_flow", "homodyne", "shared",
    )  # fmt: skip
    assert (config.gap, config.q) == ("2000000 A", [0.0054])
    assert config.phi == [(-10.0, 10.0), (170.0, -170.0)]
    assert config.bounds == {"D0": (100.0, 1e5), "phi0": (-10.0, 10.0)}
    assert config.initial == dict(zip(FLOW_NAMES, [1000, -0.5, 10, 0.01, 0, 0, 0], strict=True))
    assert found.ingest == 'homodyne-dask ingest data/E.hdf --sigma 0.01 --gap "2000000 A"'
    assert found.unknown == {}


def test_frames_from_1_inclusive_lose_the_first_and_count_from_0(tmp_path):
    assert translated(tmp_path).config.frames == (1, 400)


def test_a_later_first_frame_moves_the_origin_of_times(tmp_path):
    found = translated(tmp_path, analyzer_parameters__start_frame=21)
    assert found.config.frames == (21, 400)
    assert found.ingest.endswith("--time-offset -2")
    assert any("counts them from frame 21" in remark for remark in found.remarks)


def test_frames_up_to_minus_1_are_all_of_them(tmp_path):
    found = translated(tmp_path, analyzer_parameters__end_frame=-1)
    assert found.config.frames is not None
    assert found.config.frames[1] > 1e6
    assert any("frames 1 to the last inclusive" in remark for remark in found.remarks)


def test_values_null_are_searched_in_the_data(tmp_path):
    found = translated(tmp_path, initial_parameters__values=None)
    assert found.config.initial == {}
    assert any("searched in the data" in remark for remark in found.remarks)


def test_older_names_of_parameters_are_known(tmp_path):
    older = [*FLOW_NAMES[:3], "gamma_dot_0", "beta", "gamma_dot_offset", "phi_0"]
    found = translated(
        tmp_path,
        initial_parameters__parameter_names=older,
        initial_parameters__fixed_parameters={"gamma_dot_offset": 1e-5},
        parameter_space__bounds=[{"name": "gamma_dot_0", "min": 1e-6, "max": 0.5}],
    )
    assert list(found.config.initial) == [n for n in FLOW_NAMES if n != "gamma_dot_t_offset"]
    assert found.config.fixed == {"gamma_dot_t_offset": 1e-5}
    assert found.config.bounds == {"gamma_dot_t0": (1e-6, 0.5)}


def test_parameters_that_are_not_active_are_held_at_their_values(tmp_path):
    found = translated(tmp_path, initial_parameters__active_parameters=["D0", "gamma_dot_0"])
    assert list(found.config.initial) == ["D0", "gamma_dot_t0"]
    assert found.config.fixed == {
        "alpha": -0.5, "D_offset": 10.0, "beta": 0.0, "gamma_dot_t_offset": 0.0, "phi0": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "scaling", "said"),
    [
        ("auto", "shared", "for 3 angles or more"),
        ("constant", "individual", "freezes estimates"),
        ("individual", "individual", "exactly"),
        ("fourier", "fourier2", "exactly"),
    ],
)
def test_their_modes_of_contrast_and_offset_become_ours_with_a_word(tmp_path, mode, scaling, said):
    found = translated(tmp_path, optimization__nlsq__anti_degeneracy__per_angle_mode=mode)
    assert found.config.scaling == scaling
    assert any(f"scaling {scaling}" in remark and said in remark for remark in found.remarks)


def test_the_order_of_their_fourier_series_is_kept(tmp_path):
    mode = {"per_angle_mode": "fourier", "fourier_order": 3}
    found = translated(tmp_path, optimization__nlsq__anti_degeneracy=mode)
    assert found.config.scaling == "fourier3"
    assert not found.unknown
    wrong = mode | {"fourier_order": 9}
    with pytest.raises(OptionError, match="scaling 'fourier9' is unknown"):
        translated(tmp_path, optimization__nlsq__anti_degeneracy=wrong)


@pytest.mark.parametrize(
    ("mode", "model"),
    [
        ("static", "static"),
        ("STATIC", "static"),
        ("static_isotropic", "static"),
        ("static_anisotropic", "static"),
        ("heterodyne", "two_component"),
        ("two_component", "two_component"),
    ],
)
def test_every_mode_of_either_program_has_a_model(tmp_path, mode, model):
    nothing = {"initial_parameters__values": None, "parameter_space__bounds": []}
    assert translated(tmp_path, analysis_mode=mode, **nothing).config.model == model


def test_the_static_model_takes_no_gap_and_leaves_bounds_of_the_flow_out(tmp_path):
    found = translated(tmp_path, analysis_mode="static", initial_parameters__values=None)
    assert found.config.gap is None
    assert list(found.config.bounds) == ["D0"]


def test_the_fourteen_parameters_of_two_components_keep_their_names(tmp_path):
    bounds = [{"name": name, "min": 0.0, "max": 1.0} for name in ("v0", "v_beta", "phi0_het")]
    found = translated(
        tmp_path,
        analysis_mode="two_component",
        initial_parameters__values=None,
        initial_parameters__tied_parameters={"D0_ref": "D0_sample"},
        parameter_space__bounds=bounds,
    )
    assert list(found.config.bounds) == ["v0", "v_beta", "phi0_het"]
    assert "cannot be tied" in found.ignored["initial_parameters.tied_parameters"]


def test_every_key_is_carried_over_or_ignored_for_a_reason(tmp_path):
    found = translated(tmp_path)
    assert found.ignored["plotting.dpi"] == found.ignored["plotting.color_scale.mode"] != ""
    assert found.ignored["optimization.nlsq.loss"].startswith("the loss is the sum of squares; add")
    assert "logging.modules.jax._src" in found.ignored
    assert "phi_filtering.tolerance" in found.ignored
    assert "analyzer_parameters.dt" in found.ignored
    said = str(found)
    assert all(key.rpartition(".")[2] in said for key in found.ignored)


UNKNOWN = {
    "section": ("plottting", {"dpi": 3}, "did you mean 'plotting'?"),
    "key": ("initial_parameters__fixed_paramters", {}, "did you mean 'fixed_parameters'?"),
    "deep": ("optimization__nlsq__cmaes__popsiz", 3, "did you mean 'popsize'?"),
}


@pytest.mark.parametrize("word", UNKNOWN)
def test_a_key_that_neither_program_knows_is_named_with_what_was_meant(tmp_path, word):
    path, value, meant = UNKNOWN[word]
    found = translated(tmp_path, **{path: value})
    assert found.unknown == {path.replace("__", "."): meant}
    assert str(found).index("unknown, and not carried over") < str(found).index("carried over:\n")


WRONG = {
    "mode": ({"analysis_mode": "laminar"}, "did you mean 'laminar_flow'"),
    "no mode": ({"analysis_mode": "absent"}, "no configuration of homodyne"),
    "no q": ({"analyzer_parameters__scattering": {}}, "wavevector_q is missing"),
    "no gap": ({"analyzer_parameters__geometry": None}, "stator_rotor_gap is missing"),
    "gap of 0": ({"analyzer_parameters__geometry__stator_rotor_gap": 0}, "must be above 0"),
    "no data": ({"experimental_data": {"file_path": None}}, "file_path is missing"),
    "section": ({"experimental_data": "E.hdf"}, "is no section with keys"),
    "few values": ({"initial_parameters__values": [1.0]}, "one value for each of the 7"),
    "value": ({"initial_parameters__values": ["a"] * 7}, "values of D0 = 'a' is not a finite"),
    "name": ({"initial_parameters__fixed_parameters": {"betta": 0}}, "did you mean 'beta'"),
    "fixed": ({"initial_parameters__fixed_parameters": ["beta"]}, "must be a dict, or null"),
    "inactive": (
        {"initial_parameters__values": None, "initial_parameters__active_parameters": ["D0"]},
        "leaves alpha out and nothing says its value",
    ),
    "bounds": ({"parameter_space__bounds": [{"name": "D0"}]}, "needs name, min and max"),
    "frames": ({"analyzer_parameters__end_frame": 2}, "leaves no frames"),
    "half": ({"analyzer_parameters__start_frame": 1.5}, "is not a whole number"),
    "scaling": ({"optimization__nlsq__anti_degeneracy__per_angle_mode": "none"}, "is unknown"),
    "range": ({"phi_filtering__target_ranges": [[0, 1]]}, "has no min_angle"),
}  # fmt: skip


@pytest.mark.parametrize("word", WRONG)
def test_a_mistake_names_its_key(tmp_path, word):
    changes, message = WRONG[word]
    with pytest.raises(OptionError, match=message) as error:
        translated(tmp_path, **changes)
    assert str(error.value).startswith(str(tmp_path / "theirs.yaml"))


def test_our_own_file_is_not_mistaken_for_theirs(tmp_path):
    (tmp_path / "fit.yaml").write_text("data: A.zarr\nmodel: static\n")
    with pytest.raises(OptionError, match="it is one of ours"):
        hd.from_homodyne_yaml(tmp_path / "fit.yaml")


def test_the_command_writes_a_file_that_fit_reads_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs(tmp_path)
    (tmp_path / "sub").mkdir()
    words = ["from-homodyne", "theirs.yaml", "-o", "sub/ours.yaml"]
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 0, said.output
    assert "homodyne-dask fit sub/ours.yaml" in said.stdout
    found = read_config("sub/ours.yaml")
    assert found.data == [Path("sub/../data/E_c2.zarr")]
    assert found.model_dump(exclude={"data"}) == translated(tmp_path).config.model_dump(
        exclude={"data"}
    )
    assert CliRunner().invoke(main, words).exit_code == 2
    assert CliRunner().invoke(main, [*words, "--overwrite"]).exit_code == 0
    printed = CliRunner().invoke(main, words[:2])
    assert yaml.safe_load(printed.stdout)["data"] == "data/E_c2.zarr"
    assert "not carried over" in printed.stderr


def test_their_configuration_and_cache_give_the_truth_back(tmp_path, monkeypatch):
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
    found = translated(
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
    Path("ours.yaml").write_text(found.yaml())
    ingest.ingest("E.npz", sigma=0.01, gap=GAP)
    config = read_config("ours.yaml")
    scan = hd.open_dataset(config.data[0]).select(**config.selection())
    assert scan.phi.tolist() == [-90, -45, -22.5, 0, 22.5, 45, 67.5, 175]
    assert scan.frames == (1, 80)
    assert scan.q == pytest.approx(Q)
    result = hd.fit(scan, hd.LAMINAR_FLOW, **config.fit_options())
    assert result.converged
    away = result.parameters.value.values - FLOW
    assert (np.abs(away) < 5 * 0.2 * result.parameters.stderr_naive.values).all()
