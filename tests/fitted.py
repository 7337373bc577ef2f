"""A result of laminar flow with the data it is of, without the time that a fit takes."""

from dataclasses import replace

import numpy as np

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.result_tables import covariance_table
from tests.results.views.test_text_report import flow
from tests.synthetic import FLOW

CONTRAST, OFFSET = 0.2, 1.0
"""Those of `measured`."""


def fitted_to(scan) -> FitResult:
    """A result with the parameters FLOW, from which up to nine bins of `measured` were made."""
    base, bins, names = flow(), len(scan.bins), list(flow().parameters["param"].values)
    known = {"contrast": CONTRAST, "offset": OFFSET, "redchi": 1.0, "undetermined": False}
    scaling = base.scaling.isel(bin=slice(bins)).assign(
        q=("bin", scan.q), phi=("bin", scan.phi), label=("bin", scan.label),
        **{name: ("bin", np.full(bins, value)) for name, value in known.items()},
    )  # fmt: skip
    inputs = {
        "store_path": scan.path,
        "store_sha256": scan.digest,
        "labels": scan.label.tolist(),
        "frames": list(scan.frames),
    }
    return replace(
        base,
        parameters=base.parameters.assign(value=("param", FLOW)),
        covariance=covariance_table(np.diag((0.02 * FLOW) ** 2), names),
        scaling=scaling,
        inputs=base.inputs | inputs,
    )
