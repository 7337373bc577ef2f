"""An invalid value in a configuration of homodyne is an error that names its key."""

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from tests.apps.migration.configurations import translated

WRONG = {
    "mode": ({"analysis_mode": "laminar"}, "did you mean 'laminar_flow'"),
    "no mode": ({"analysis_mode": "absent"}, "not a configuration of homodyne"),
    "no q": ({"analyzer_parameters__scattering": {}}, "wavevector_q is missing"),
    "no gap": ({"analyzer_parameters__geometry": None}, "stator_rotor_gap is missing"),
    "gap of 0": ({"analyzer_parameters__geometry__stator_rotor_gap": 0}, "must be above 0"),
    "no data": ({"experimental_data": {"file_path": None}}, "file_path is missing"),
    "section": ({"experimental_data": "E.hdf"}, "is not a section with keys"),
    "few values": ({"initial_parameters__values": [1.0]}, "one value for each of the 7"),
    "value": ({"initial_parameters__values": ["a"] * 7}, "values of D0 = 'a' is not a finite"),
    "name": ({"initial_parameters__fixed_parameters": {"betta": 0}}, "did you mean 'beta'"),
    "fixed": ({"initial_parameters__fixed_parameters": ["beta"]}, "must be a dict, or null"),
    "inactive": (
        {"initial_parameters__values": None, "initial_parameters__active_parameters": ["D0"]},
        "excludes alpha, which has no value",
    ),
    "bounds": ({"parameter_space__bounds": [{"name": "D0"}]}, "needs name, min and max"),
    "frames": ({"analyzer_parameters__end_frame": 2}, "leaves no frames"),
    "half": ({"analyzer_parameters__start_frame": 1.5}, "is not a whole number"),
    "scaling": ({"optimization__nlsq__anti_degeneracy__per_angle_mode": "none"}, "is unknown"),
    "range": ({"phi_filtering__target_ranges": [[0, 1]]}, "has no min_angle"),
}  # fmt: skip


@pytest.mark.parametrize("word", WRONG)
def test_an_invalid_value_is_named_with_its_key(tmp_path, word):
    changes, message = WRONG[word]
    with pytest.raises(OptionError, match=message) as error:
        translated(tmp_path, **changes)
    assert str(error.value).startswith(str(tmp_path / "homodyne.yaml"))


def test_a_configuration_of_homodyne_dask_is_recognized(tmp_path):
    (tmp_path / "fit.yaml").write_text("data: A.zarr\nmodel: static\n")
    with pytest.raises(OptionError, match="it is one of homodyne-dask"):
        hd.from_homodyne_yaml(tmp_path / "fit.yaml")
