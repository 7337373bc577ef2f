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
HOMODYNE = yaml.safe_load(Path(__file__).with_name("homodyne.yaml").read_text())


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
    return hd.from_homodyne_yaml(write_yaml(folder, **changes))
