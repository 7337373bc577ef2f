"""Which of several models is the simplest adequate one, by bins left out or by CLIC.

Each model is fitted, and the fits are compared (`results.data.comparison`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.errors import OptionError, require_type
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit import fit, require_client
from homodyne_dask.fitting.observer import require_callbacks
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.models import BROWNIAN, LAMINAR_FLOW, POWER_LAW, STATIC, Model, scan_model
from homodyne_dask.models.derived_models import FROZEN
from homodyne_dask.models.stretched_exponentials import (
    CUMULANT_Q,
    STRETCHED,
    STRETCHED_Q,
    VIBRATION,
)
from homodyne_dask.models.transport import LAMINAR_FLOW_FREE, STATIC_FREE, Convention
from homodyne_dask.models.two_component import BEATING, TWO_COMPONENT
from homodyne_dask.request.options import PAIRS, takes_options
from homodyne_dask.results.result_classes import Comparison, FitResult, compare_fits
from homodyne_dask.store.scan import Scan, as_scan

if TYPE_CHECKING:
    from distributed import Client

FEWEST = 3
"""Rings from which a power of q, and angles from which a velocity, can be told from the rest."""


@takes_options()
def compare_models(
    data: Scan | str | Path,
    models: Sequence[Model | str] | None = None,
    *,
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Comparison:
    """Fit several models and compare them as `compare` does: the simplest adequate one is chosen.

    models: models or their names; by default brownian, power_law, static, stretched (for three or more
        rings stretched_q) and, if the store or `gap` gives the distance between the plates and there are
        three or more angles, laminar_flow. If none but stretched describes the data, also the sum of two of
        stretched (for rings of brownian), vibration, for three or more angles beating and two_component,
        and static and laminar_flow with rates without a formula (static_free, laminar_flow_free). If
        options name parameters or rates, neither stretched nor these. Of a table of g2: brownian,
        cumulant_q and stretched_q. If free offsets are above 1 (finding `offset-far-from-1`), all of the
        first, and all but stretched with a frozen part, with a prior of the offset: 1 ± 0.5 % of the
        contrast.
    client, callbacks: as in `fit`.
    {options}

    Fewer than 8 independent bins are compared by CLIC where their noise is known. Raises OptionError for a
    loss other than linear, and if no fit converged.

    >>> hd.compare_models("A0123_c2.zarr", ["brownian", "power_law"]).chosen
    'power_law'
    """
    scan = as_scan(data)
    require_client(client)
    require_callbacks(callbacks)
    _check_options(options)
    if models is not None:
        require_type("models", models, list | tuple, "a list of models, or of their names")
    compared = [scan_model(model) for model in models or _usual_models(scan, options)]
    for model in compared:
        prepare(scan, model, **options)  # mistakes are said before the first fit
    options |= {"client": client, "callbacks": callbacks}
    results = _fits(scan, compared, options)
    if models is None:
        results = _with_further_models(scan, compared, results, options)
    return compare_fits(results)


def _fits(scan: Scan, models: Sequence[Model], options: dict[str, Any]) -> dict[str, FitResult]:
    return {model.name: fit(scan, model, **options) for model in models}


def _with_further_models(
    scan: Scan, usual: list[Model], results: dict[str, FitResult], options: dict[str, Any]
) -> dict[str, FitResult]:
    """Return fits of other models, too, where none of the usual ones but stretched describes the data."""
    if prior := _prior_of_plateau(results, options):
        with_plateau = [
            *usual,
            *(FROZEN + model for model in usual if model is not _stretched(scan)),
        ]
        near_1 = _fits(scan, with_plateau, options | prior)
        if _describe(near_1.values()):
            return near_1
    if _describe(fitted for name, fitted in results.items() if name != _stretched(scan).name):
        return results
    return results | _fits(scan, _further_models(scan, options), options)


def _check_options(options: dict[str, Any]) -> None:
    if options.get("weighting", PAIRS) != PAIRS:
        raise OptionError(
            f"a model comparison is not available with weighting {options['weighting']!r}: fit with "
            f"weighting {PAIRS!r}"
        )
    if options.get("loss", "linear") != "linear":
        raise OptionError("models are compared by least squares: leave out loss, or fit one model")


def _usual_models(scan: Scan, options: dict[str, Any]) -> list[Model]:
    if scan.is_table:
        return [BROWNIAN, CUMULANT_Q, STRETCHED_Q]
    stretched = [] if _of_transport_alone(options) else [_stretched(scan)]
    return [BROWNIAN, POWER_LAW, STATIC, *stretched, *[LAMINAR_FLOW] * _flows(scan, options)]


def _describe(results: Iterable[FitResult]) -> bool:
    return any(fitted.converged and not fitted.misfit for fitted in results)


def _prior_of_plateau(results: dict[str, FitResult], options: dict[str, Any]) -> dict[str, Any]:
    """Return a prior of the offset, {} where offsets are near 1: free ones may hide a plateau."""
    if options.get("offset") or options.get("scaling", "individual") not in (
        "individual",
        "shared",
    ):
        return {}
    try:
        findings = results[compare_fits(results).chosen].findings
    except OptionError:  # none has a score
        return {}
    far = [finding.numbers for finding in findings if finding.code == "offset-far-from-1"]
    return {"offset": {"prior": (1.0, far[0]["deviation"])}} if far and far[0]["size"] > 0 else {}


def _has_angles(scan: Scan) -> bool:
    return bool(len(np.unique(scan.phi)) >= FEWEST and np.isfinite(scan.phi).all())


def _stretched(scan: Scan) -> Model:
    several = len(np.unique(scan.q)) >= FEWEST and np.isfinite(scan.q).all()
    return STRETCHED_Q if several else STRETCHED


def _flows(scan: Scan, options: dict[str, Any]) -> bool:
    gap = options.get("gap") is not None or scan.attributes.gap_angstrom is not None
    return gap and _has_angles(scan)


def _of_transport_alone(options: dict[str, Any]) -> bool:
    """Return whether options are not for all models: parameters by name, a convention, a precision."""
    named = ("initial", "fixed", "bounds", "prior", "profile", "rates")
    of_any_model = {"convention": Convention.PHYSICAL, "precision": "float64"}
    return any(options.get(name) for name in named) or any(
        options.get(name, default) != default for name, default in of_any_model.items()
    )


def _further_models(scan: Scan, options: dict[str, Any]) -> list[Model]:
    if scan.is_table or _of_transport_alone(options):
        return []
    return [
        BROWNIAN + BROWNIAN if _stretched(scan) is STRETCHED_Q else STRETCHED + STRETCHED,
        VIBRATION,
        *[BEATING, TWO_COMPONENT] * _has_angles(scan),
        STATIC_FREE,
        *[LAMINAR_FLOW_FREE] * _flows(scan, options),
    ]
