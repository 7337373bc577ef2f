"""The parameters of scans that were fitted together: shared ones, and those that differ by scan."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.plain_data import read_fields
from homodyne_dask.results.data.result_tables import correlation_of, covariances_in
from homodyne_dask.solver.state import Outcome


@dataclass(frozen=True)
class GlobalFit:
    """The parameters of several scans from one fit, with their covariance."""

    per_scan: tuple[str, ...]
    """Parameters that differ by scan; the others are shared."""
    outcome: Outcome
    parameters: xarray.Dataset
    """Over param ('alpha', 'D0 of scan 3'): value, stderr, stderr_naive, dof, method, at_bound, fixed."""
    covariance: xarray.DataArray | None
    """(cov_i, cov_j), of stderr; None where it is not known."""
    covariance_naive: xarray.DataArray | None
    """That for pairs with independent noise."""
    chisqr: float
    redchi: float
    """χ² over pairs less fitted parameters, contrasts and offsets."""
    ndata: int
    findings: Findings
    """On parameters that the data do not determine, or only weakly."""

    @property
    def correlation(self) -> xarray.DataArray | None:
        """Correlation matrix (cov_i, cov_j) of the standard errors; None if unknown."""
        return correlation_of(self.covariance)

    def own_errors(self, name: str, known: xarray.DataArray) -> Float[np.ndarray, " scan"]:
        """Return the errors of a parameter that differs by scan, the shared ones taken as known.

        The errors that shared ones pass on are the same in all scans: those left are independent. known: one
        of the covariances.
        """
        names = self.parameters["param"].values.tolist()
        free = np.isfinite(np.diag(known.values))
        own = np.array([one.startswith(f"{name} of scan ") for one in names])
        shared = free & np.array([" of scan " not in one for one in names])
        V = known.values
        left = V[np.ix_(own, own)]
        if shared.any():
            across = V[np.ix_(own, shared)]
            left = left - across @ np.linalg.solve(V[np.ix_(shared, shared)], across.T)
        return np.sqrt(np.maximum(np.diag(left), 0.0))


def global_fit_of(read: dict[str, Any]) -> GlobalFit:
    """Return the fit from its plain values, as read from JSON."""
    names = read["parameters"]["coords"]["param"]["values"]
    return read_fields(GlobalFit, read | covariances_in(read, names))
