"""A checked request for a fit: data, model, search and options."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.models.parameters import Parameter, Search
from homodyne_dask.request.options import FitOptions
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.scan import Scan


@dataclass(frozen=True)
class Request:
    scan: Scan
    problem: Problem
    search: Search
    parameters: tuple[Parameter, ...]
    scaling: Scaling
    options: FitOptions
    """As used: names of scaling modes, contrast, offset and loss_scale are resolved."""
    solver: lm.SolverOptions
    config: dict[str, Any]
    """The options and what they lead to, for checkpoint and result."""
    others: tuple[Scan, ...] = ()
    """Scans of other stores that are fitted together with this one, whose bins follow."""

    @property
    def clusters(self) -> Int[np.ndarray, " bin"]:
        found, after = [], 0
        for scan in (self.scan, *self.others):
            found.append(after + speckle_clusters(scan, self.options.friedel))
            after = int(found[-1].max()) + 1
        return np.concatenate(found)

    @property
    def sum_rounding(self) -> float:
        return self.problem.sum_rounding


def speckle_clusters(scan: Scan, friedel: str) -> Int[np.ndarray, " bin"]:
    """Return a cluster number per bin: bins that are Friedel pairs have one, unless friedel is off."""
    return scan.clusters if friedel == "on" else np.arange(len(scan.bins))
