"""A fit of a small scan of laminar flow, with errors of known size."""

from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.result_tables import parameter_table
from tests.results.views.figures.made import FLOW, SMALL, result_for, scan_of, truth_of

UNITS = ["Å²/s", "", "Å²/s", "1/s", "", "1/s", "degree"]


def fit_of(scan, fixed=()):
    """A converged fit whose stderr is 2 % of each parameter, of 6 degrees of freedom; some are fixed."""
    result = result_for(scan, FLOW, SMALL, truth=truth_of(FLOW, LAMINAR_FLOW.names))
    names = result.parameters["param"].values.tolist()
    is_fixed = np.isin(names, fixed)
    stderr = np.where(is_fixed, np.nan, 0.02 * np.abs(FLOW))
    table = parameter_table(
        {"param": names, "value": FLOW, "stderr": stderr, "stderr_naive": stderr / 2, "unit": UNITS}
        | {"dof": np.full(7, 6.0), "at_bound": np.zeros(7), "fixed": is_fixed}
    )
    inputs = {
        "store": "A0123_c2.zarr", "store_path": scan.path, "store_sha256": scan.digest,
        "labels": scan.label.tolist(), "frames": list(scan.frames), "bins": len(scan.bins),
        "source_file": "A0123.npz", "source_sha256": "ab" * 32, "source_format": "npz",
        "seconds": [0.0, 5.9], "frame_time": 0.1, "sigma_source": "counts", "notes": [],
        "frames_masked": 0,
    }  # fmt: skip
    config = result.config | {"scaling": "individual"}
    return replace(result, parameters=table, inputs=inputs, config=config, version="0.1.0")


@pytest.fixture(scope="package")
def flowing(tmp_path_factory):
    """A scan of three angles and 60 frames."""
    return scan_of(tmp_path_factory.mktemp("posterior"), FLOW)


@pytest.fixture(scope="package")
def fitted(flowing):
    """A fit of it with all parameters free."""
    return fit_of(flowing)
