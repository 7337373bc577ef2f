"""Which covariance is that of the standard errors: a table of cases, of which the first that holds counts.

The rows stand in docs/errors.md, too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.solver.covariance import SPECKLE, Uncertainty, error_used, without
from homodyne_dask.solver.normal_equations import deviation


class NoiseErrors(NamedTuple):
    """Covariances that follow from the noise of speckle and counting."""

    covariance: Float[np.ndarray, "p p"]
    """Of theta; NaN where it is unknown."""
    dof: Float[np.ndarray, " p"]
    scaling: Float[np.ndarray, "bin 2"] | None
    """Errors of offset and contrast; None where those for independent noise are right."""
    objection: str | None = None
    """What speaks against this noise."""


class Known(NamedTuple):
    """What is known of the covariances of a fit, from which one is chosen."""

    by_bins: Uncertainty
    """For white noise and, with 8 clusters or more, from the scatter between them."""
    by_noise: NoiseErrors | None = None
    """None where too little is known of the noise."""
    of_global_fit: Uncertainty | None = None
    """Of a scan that was fitted together with others."""
    decay: bool = True
    """Whether a decay was seen."""
    valley: bool = False
    """Whether the fit ended where the data do not determine all parameters."""
    weighted: bool = False
    """Whether the fit was weighted by its noise."""
    others_enough: Callable[[], bool] = lambda: True
    """Whether clusters and degrees of freedom suffice for the rest, too: rates, and each scan of several."""


def no_decay(known: Known) -> bool:
    """No decay is seen."""
    return not known.decay


def global_fit(known: Known) -> bool:
    """The scan was fitted together with others."""
    return known.of_global_fit is not None


def undetermined(known: Known) -> bool:
    """The data, or those that a loss does not treat as outliers, do not determine all parameters."""
    return known.by_bins.naive is None


def many_clusters(known: Known) -> bool:
    """There are 8 clusters or more, and 4 degrees of freedom for each parameter and rate."""
    few = known.by_bins.few
    return few is not None and not few.any() and known.others_enough()


def valley(known: Known) -> bool:
    """The fit ended in a valley of χ²."""
    return known.valley


def speckle_weights(known: Known) -> bool:
    """The fit was weighted by speckle noise, and nothing speaks against this noise."""
    return known.weighted and speckle(known)


def speckle(known: Known) -> bool:
    """The speckle noise of all bins is known, and nothing speaks against it."""
    return known.by_noise is not None and not known.by_noise.objection


def few_freedom(known: Known) -> bool:
    """There are 8 clusters or more."""
    return known.by_bins.robust is not None


def objection(known: Known) -> bool:
    """Something speaks against the speckle noise."""
    return known.by_noise is not None


def noise_unknown(_: Known) -> bool:
    """Too little is known of the noise."""
    return True


class Case(NamedTuple):
    """A row of the table: when it holds, and which covariance then counts."""

    holds: Callable[[Known], bool]
    """Its name is the code of the case, its docstring says when it holds."""
    counts: str
    """In words."""
    errors: Callable[[Known], Uncertainty]


SOME = "cluster-robust; none of parameters with fewer than 4 degrees of freedom"
CASES = (
    Case(no_decay, "none", lambda known: _only_offsets(known.by_bins)),
    Case(global_fit, "of the global fit", lambda known: known.of_global_fit or known.by_bins),
    Case(undetermined, "none", lambda known: known.by_bins),
    Case(many_clusters, "cluster-robust", lambda known: known.by_bins.without_few()),
    Case(valley, SOME, lambda known: known.by_bins.without_few()),
    Case(speckle_weights, "of the weights", lambda known: _of_noise(known.by_bins, known.by_noise)),
    Case(speckle, "speckle", lambda known: _of_noise(known.by_bins, known.by_noise)),
    Case(few_freedom, SOME, lambda known: known.by_bins.without_few()),
    Case(objection, "none", lambda known: known.by_bins),
    Case(noise_unknown, "none", lambda known: known.by_bins),
)
"""The first that holds counts. A parameter whose value follows from another's bound has no error in any."""


def _only_offsets(errors: Uncertainty) -> Uncertainty:
    """Return the errors of offsets alone: without a decay, no parameter and no contrast is measured."""
    offsets, errors = np.array([0.0, np.nan]), errors.without_few()
    return replace(
        errors, naive=None, robust=None, dof=np.full_like(errors.dof, np.nan),
        scaling_naive=errors.scaling_naive + offsets,
        scaling_robust=errors.scaling_robust + offsets,
    )  # fmt: skip


def _of_noise(errors: Uncertainty, noise: NoiseErrors | None) -> Uncertainty:
    if noise is None:
        return errors
    return replace(
        errors,
        robust=without(noise.covariance, errors.withheld),
        dof=np.where(errors.withheld, np.nan, noise.dof),
        scaling_robust=errors.scaling_naive if noise.scaling is None else noise.scaling,
        method=SPECKLE,
        few=None,
    )


class Counted(NamedTuple):
    """The covariances of a fit by name, and the one that counts."""

    case: str
    """The code of the row of `CASES`: a name of one of the functions above."""
    errors: Uncertainty
    """`robust` is what counts."""
    covariances: dict[str, Float[np.ndarray, "p p"]]
    """Those that are known: naive, cluster_robust, speckle, global_fit."""


def counted(known: Known) -> Counted:
    """Return the covariance that counts, and why."""
    case = next(row for row in CASES if row.holds(known))
    by_name = {
        "naive": known.by_bins.naive,
        "cluster_robust": known.by_bins.robust,
        "speckle": None if known.by_noise is None else known.by_noise.covariance,
        "global_fit": None if known.of_global_fit is None else known.of_global_fit.robust,
    }
    of_each = {name: of for name, of in by_name.items() if of is not None}
    return Counted(case.holds.__name__, case.errors(known), of_each)


def deviations(covariance: Float[np.ndarray, "p p"] | None, p: int) -> Float[np.ndarray, " p"]:
    """Return the square roots of a covariance's diagonal; NaN where it is unknown."""
    return np.full(p, np.nan) if covariance is None else deviation(np.diag(covariance))


def used_of(errors: Uncertainty) -> Float[np.ndarray, " p"]:
    """Return the errors that changes of parameters are compared with (`error_used`); NaN where unknown."""
    return error_used(*(deviations(of, len(errors.dof)) for of in (errors.robust, errors.naive)))
