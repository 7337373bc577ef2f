"""Which covariance is that of the standard errors: a table of cases, of which the first that holds counts.

The rows stand in docs/errors.md, too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from homodyne_dask.solver.array_shapes import LinearParams, Theta, ThetaMatrix
from homodyne_dask.solver.covariance import SPECKLE, Uncertainty, error_used, without
from homodyne_dask.solver.normal_equations import deviation


class NoiseErrors(NamedTuple):
    covariance: ThetaMatrix
    """Of theta; NaN where it is unknown."""
    dof: Theta
    scaling: LinearParams | None
    """Errors of offset and contrast; None where those for independent noise are right."""
    objection: str | None = None
    neighbours: bool = False
    """Whether neighbouring bins are likely to share speckle, by their residuals."""


class Candidates(NamedTuple):
    """The covariances of a fit, and what decides which of them counts."""

    by_bins: Uncertainty
    """For white noise and, with 8 clusters or more, from the scatter between them."""
    by_noise: NoiseErrors | None = None
    """None where too little is known of the noise."""
    of_global_fit: Uncertainty | None = None
    decay: bool = True
    valley: bool = False
    """Whether the fit ended where the data do not determine all parameters."""
    others_enough: Callable[[], bool] = lambda: True
    """Whether clusters and degrees of freedom suffice for the rest, too: rates, and each scan of several."""

    @property
    def neighbours(self) -> bool:
        """Whether neighbours are likely to share speckle: residuals of a misfit do not tell it."""
        return self.by_noise is not None and self.by_noise.neighbours and self.noise_known

    @property
    def noise_known(self) -> bool:
        return self.by_noise is not None and not self.by_noise.objection

    @property
    def many_clusters(self) -> bool:
        few = self.by_bins.few
        return few is not None and not few.any() and self.others_enough()


class Case(NamedTuple):
    code: str
    when: str
    counts: str
    """In words, as is `when`."""
    holds: Callable[[Candidates], bool]
    errors: Callable[[Candidates], Uncertainty]


def _only_offsets(fit: Candidates) -> Uncertainty:
    """Without a decay, no parameter and no contrast is measured."""
    offsets, errors = np.array([0.0, np.nan]), fit.by_bins.without_few()
    return replace(
        errors, naive=None, robust=None, dof=np.full_like(errors.dof, np.nan),
        scaling_naive=errors.scaling_naive + offsets,
        scaling_robust=errors.scaling_robust + offsets,
    )  # fmt: skip


def _of_noise(fit: Candidates) -> Uncertainty:
    errors, noise = fit.by_bins, fit.by_noise
    assert noise is not None
    unknown = errors.withheld | np.isnan(noise.dof)
    return replace(
        errors,
        robust=without(noise.covariance, unknown),
        dof=np.where(unknown, np.nan, noise.dof),
        scaling_robust=errors.scaling_naive if noise.scaling is None else noise.scaling,
        method=SPECKLE,
        few=None,
    )


# fmt: off
CASES = (
    Case("no_decay", "No decay is seen.", "none",
         lambda fit: not fit.decay, _only_offsets),
    Case("global_fit", "The scan was fitted together with others.", "of the global fit",
         lambda fit: fit.of_global_fit is not None,
         lambda fit: fit.of_global_fit or fit.by_bins),
    Case("undetermined", "The data, or those that a loss does not treat as outliers, do not determine all "
         "parameters.", "none",
         lambda fit: fit.by_bins.naive is None, lambda fit: fit.by_bins),
    Case("neighbours", "Neighbouring bins are likely to share speckle, and nothing speaks against noise or "
         "optimum.",
         "speckle",
         lambda fit: fit.neighbours and not fit.valley, _of_noise),
    Case("many_clusters", "There are 8 clusters or more, and 4 degrees of freedom for each parameter and "
         "rate.", "cluster-robust",
         lambda fit: fit.many_clusters, lambda fit: fit.by_bins.without_few()),
    Case("valley", "The fit ended in a valley of χ², with fewer than 8 clusters.", "none",
         lambda fit: fit.valley and fit.by_bins.robust is None, lambda fit: fit.by_bins),
    Case("speckle", "The speckle noise of all bins is known, and nothing speaks against it.", "speckle",
         lambda fit: fit.noise_known, _of_noise),
    Case("few_freedom", "There are 8 clusters or more.",
         "cluster-robust; none of parameters with fewer than 4 degrees of freedom",
         lambda fit: fit.by_bins.robust is not None, lambda fit: fit.by_bins.without_few()),
    Case("noise_unknown", "Too little is known of the noise, or something speaks against it.", "none",
         lambda _: True, lambda fit: fit.by_bins),
)
# fmt: on
"""The first that holds counts. A parameter whose value follows from another's bound has no error in any."""


def counted(fit: Candidates) -> tuple[str, Uncertainty]:
    """Return the code of the case, and the errors: their `robust` is the covariance that counts."""
    case = next(row for row in CASES if row.holds(fit))
    return case.code, case.errors(fit)


def deviations(covariance: ThetaMatrix | None, p: int) -> Theta:
    return np.full(p, np.nan) if covariance is None else deviation(np.diag(covariance))


def used_of(errors: Uncertainty) -> Theta:
    """Return the errors that changes of parameters are compared with (`error_used`); NaN where unknown."""
    p = len(errors.dof)
    return error_used(deviations(errors.robust, p), deviations(errors.naive, p))
