"""The options of a fit as a file."""

from pathlib import Path

import pytest
import yaml

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import MODELS, SITES, FitConfig, read_config, template
from homodyne_dask.errors import OptionError
from tests.applications import application


def written(folder: Path, text: str) -> Path:
    path = folder / "fit.yaml"
    path.write_text(text)
    return path


LEAST = "data: A_c2.zarr\nmodel: static\n"


def test_the_template_is_valid_as_it_stands_and_with_all_options_and_has_their_defaults(tmp_path):
    config = read_config(written(tmp_path, template()))
    assert config.data == [tmp_path / "A0123_c2.zarr"]
    assert (config.model, config.gap) == ("laminar_flow", "200 um")
    config = read_config(written(tmp_path, uncommented(template())))
    assert config.model_fields_set == set(FitConfig.model_fields)
    for name, value in yaml.safe_load(uncommented(template())).items():
        default = FitConfig.options()[name].default
        if default not in (..., None, ()):
            assert value == default, name


def test_help_names_all_models_that_are_asked_for_by_name_and_all_sites():
    # --rates asks for those with splines of time
    models = [name for name, model in hd.MODELS.items() if {*model.splines} <= {"log_density"}]
    models[models.index("frozen")] = "frozen + brownian"  # of sums alone
    assert (*models, "auto") == MODELS
    folder = application("slurm.jobs").FOLDER
    assert {*SITES, "template"} == {file.stem for file in folder.glob("*.yaml")}


def uncommented(text: str) -> str:
    names = tuple(f"# {name}: " for name in FitConfig.model_fields)
    return "\n".join(
        line.removeprefix("# ") if line.startswith(names) else line for line in text.splitlines()
    )


def test_paths_are_relative_to_the_file_and_an_option_wins_over_it(tmp_path):
    text = "data: [a.zarr, /b.zarr]\nmodel: static\noutput: out\ncheckpoint: c.json\n"
    config = read_config(written(tmp_path, text))
    assert config.data == [tmp_path / "a.zarr", Path("/b.zarr")]
    assert (config.output, config.checkpoint) == (tmp_path / "out", tmp_path / "c.json")
    path = written(tmp_path, LEAST + "min_lag: 3\nphi: [-30, 30]\noutput: out\n")
    config = read_config(path, {"min_lag": "2"})
    assert (config.min_lag, config.phi) == (2, (-30.0, 30.0))
    assert config.output == tmp_path / "out"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("phi: -30:30", "phi", (-30.0, 30.0)),
        ("phi: 0:22.5", "phi", (0.0, 22.5)),
        ("phi: [-30:30, [150, -150]]", "phi", [(-30.0, 30.0), (150.0, -150.0)]),
        ("frames: 0:30", "frames", (0, 30)),
        ("time: 10:50", "time", (10.0, 50.0)),
        ("windows: 0:30", "windows", [(0.0, 30.0)]),
        ("jobs: 1:20", "jobs", (1, 20)),
        ("bounds: {D0: 1:50}", "bounds", {"D0": (1.0, 50.0)}),
        ("phi: 30", "phi", 30.0),
        ("initial: {D0: 1e4}", "initial", {"D0": 1e4}),
        ("scaling:", "scaling", "individual"),
    ],
)
def test_a_value_in_a_file_is_that_of_the_command_line_or_without_one_the_default(
    tmp_path, text, key, value
):
    """YAML 1.1 takes -30:30 for -1830, a number in base 60, and 1e4 for text."""
    assert getattr(read_config(written(tmp_path, f"{LEAST}{text}\n")), key) == value


MISTAKES = [
    LEAST + "modle: static", LEAST + "gap: 200", LEAST + "min_lag: 1.5", LEAST + "min_lag: yes",
    LEAST + "q: .inf", LEAST + "time: 10:50:3", LEAST + "gap: 2 m", LEAST + "frames: [0, 1, 2]",
    LEAST + "initial: {D0: much}", LEAST + "bounds: {D0: 5}", LEAST + "overwrite: maybe",
    "model: static", "", "data: [",
]  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_file_names_the_file_and_the_key(tmp_path, text):
    key = text.removeprefix(LEAST).partition(":")[0] if text.startswith(LEAST) else "fit.yaml"
    path = written(tmp_path, text)
    with pytest.raises(OptionError, match=key) as error:
        read_config(path)
    assert str(path) in str(error.value)
    path.unlink()
    with pytest.raises(OptionError, match=r"fit\.yaml cannot be read .*homodyne-dask config"):
        read_config(path)
