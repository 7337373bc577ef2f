"""A configuration of homodyne: facts about its format, none of its text."""

import copy
from pathlib import Path

import yaml

import homodyne_dask as hd
from homodyne_dask.apps.migration.translate_yaml import Translation

FLOW_NAMES = ["D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0"]
SHORT_YAML = """
analysis_mode: static
experimental_data: {file_path: A.hdf}
analyzer_parameters: {dt: 0.1, scattering: {wavevector_q: 0.01}}
"""
HOMODYNE = {
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


def write_yaml(folder: Path, **changes) -> Path:
    """Write the file with the values at a__b__c replaced; 'absent' removes the key."""
    content = copy.deepcopy(HOMODYNE)
    for path, value in changes.items():
        *sections, key = path.split("__")
        at = content
        for section in sections:
            at = at.setdefault(section, {})
        if value == "absent":
            del at[key]
        else:
            at[key] = value
    file = folder / "homodyne.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def translated(folder: Path, **changes) -> Translation:
    """Return the translation of the file with changes."""
    return hd.from_homodyne_yaml(write_yaml(folder, **changes))
