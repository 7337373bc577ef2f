"""Which of several models is the simplest adequate one, by bins left out or by CLIC.

Each model is fitted, and the fits are compared (`results.data.comparison`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    BALLISTIC,
    CUMULANT,
    CUMULANT_Q,
    STRETCHED,
    STRETCHED_AGEING,
    STRETCHED_FREE,
    STRETCHED_Q,
    VIBRATION,
)
from homodyne_dask.models.transport import (
    LAMINAR_FLOW_FREE,
    POISEUILLE,
    POISEUILLE_FLOW,
    STATIC_FREE,
    Convention,
)
from homodyne_dask.models.two_component import BEATING, TWO_COMPONENT
from homodyne_dask.request.options import PAIRS, takes_options
from homodyne_dask.results.result_classes import Comparison, FitResult, compare_fits
from homodyne_dask.store.scan import Scan, as_scan

if TYPE_CHECKING:
    from distributed import Client

FEWEST = 3
"""Angles from which a velocity can be told from the rest."""
REASONS = {
    "ages": "a table has no ages",
    "flow": "a flow needs the gap and three angles or more",
    "angles": "motion in one direction needs three angles or more",
    "rings": "a power of q needs two rings or more",
    "ring": "their rates are those of one ring: select one, or fit each (--over q)",
    "shape": "stretched exponentials describe the data, with as many parameters",
    "all": "an option names parameters, rates, a convention or a precision",
}
"""What data must have for a model, or must not, and what is said of a model that is left out for it."""
ADEQUATE = "a model that is fitted before them describes the data"
NOT_FROZEN = {
    False: "no free offset is above 1",
    True: "with an offset of 1, no model describes the data, with a frozen part or without",
}
RATES_FIT = "in the closest model, rates change with age as c2 does"
FORMULAS: dict[Model, str] = {
    STRETCHED_AGEING: "ages ring",
    BALLISTIC: "rings",
    CUMULANT: "ring shape",
    CUMULANT_Q: "rings shape",
    STRETCHED + STRETCHED: "ring",
    BROWNIAN + BROWNIAN: "rings",
    VIBRATION: "",
    POISEUILLE: "flow",
    POISEUILLE_FLOW: "flow",
    BEATING: "ages angles",
    TWO_COMPONENT: "ages angles",
}
FREE_RATES: dict[Model, str] = {
    STATIC_FREE: "ages",
    STRETCHED_FREE: "ages ring",
    LAMINAR_FLOW_FREE: "ages flow",
}
"""Models that are tried where the usual ones fail, with what they need, the cheapest first."""


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

    models: models or their names; by default brownian, power_law, static, stretched (for several rings
        stretched_q) and, if the store or `gap` gives the distance between the plates and there are three or
        more angles, laminar_flow; of a table of g2 brownian, cumulant and stretched, or of several q
        cumulant_q and stretched_q. If free offsets are above 1 (finding `offset-far-from-1`), also all with a
        frozen part and a prior of the offset: 1 ± 0.5 % of the contrast. If none but stretched describes the
        data, all built-in models with a formula that the data allow, and where it is the rates that differ,
        models of rates without a formula. `not_compared` of the comparison says which were left out, and why.
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
    if models is not None:
        return compare_fits(results)
    results, left_out = _with_further_models(scan, compared, results, options)
    untried = {name: why for name, why in left_out.items() if name not in results}
    return replace(compare_fits(results), not_compared=untried)


def _fits(scan: Scan, models: Iterable[Model], options: dict[str, Any]) -> dict[str, FitResult]:
    return {model.name: fit(scan, model, **options) for model in models}


def _with_further_models(
    scan: Scan, usual: list[Model], results: dict[str, FitResult], options: dict[str, Any]
) -> tuple[dict[str, FitResult], dict[str, str]]:
    """Return fits of other models, too, where none of the usual ones but stretched describes the data.

    And the models that were not fitted, with the reason."""
    name_of_stretched = _stretched(scan).name
    shaped = _describe(fitted for name, fitted in results.items() if name == name_of_stretched)
    formulas, without_formula, refused = _allowed_and_refused(scan, options, shaped)
    later = dict.fromkeys((model.name for model in (*FORMULAS, *FREE_RATES)), ADEQUATE) | refused
    prior = _prior_of_plateau(results, options)
    if prior and (gel := _with_frozen_part(scan, usual, options | prior)):
        return gel, later
    later[FROZEN.name] = NOT_FROZEN[bool(prior)]
    if _describe(fitted for name, fitted in results.items() if name != name_of_stretched):
        return results, later
    results |= _fits(scan, (model for model in formulas if model.name not in results), options)
    if _describe(results.values()):
        return results, later
    if not _rates_differ(results):
        return results, later | {model.name: RATES_FIT for model in FREE_RATES} | refused
    return results | _fits(scan, without_formula, options), later


def _allowed_and_refused(
    scan: Scan, options: dict[str, Any], shaped: bool
) -> tuple[list[Model], list[Model], dict[str, str]]:
    """Return models with formulas of the rates and without that data allow, and why others are left out."""
    both = [_allowed(scan, options, models, shaped) for models in (FORMULAS, FREE_RATES)]
    refused = {model.name: why for models in both for model, why in models.items() if why}
    if not _flows(scan, options):
        refused[LAMINAR_FLOW.name] = REASONS["flow"]
    formulas, without_formula = ([m for m, why in models.items() if not why] for models in both)
    return formulas, without_formula, refused


def _with_frozen_part(
    scan: Scan, usual: list[Model], options: dict[str, Any]
) -> dict[str, FitResult]:
    """Return fits of models with a part that does not move, and without; {} if none describes the data."""
    stretched = _stretched(scan)
    moving = [model for model in usual if model is not stretched]
    results = _fits(scan, [*usual, *(FROZEN + model for model in moving)], options)
    if not _describe(results.values()) and stretched in usual:
        ageing = [STRETCHED_AGEING] * (stretched is STRETCHED and not scan.is_table)
        frozen = (FROZEN + model for model in (stretched, *ageing))
        results |= _fits(scan, [*ageing, *frozen], options)
    return results if _describe(results.values()) else {}


def _allowed(
    scan: Scan, options: dict[str, Any], models: dict[Model, str], shaped: bool = False
) -> dict[Model, str]:
    """Return for each model why it is left out, '' if it is not; shaped: stretched ones describe the data."""
    lacking = {
        "shape": shaped,
        "ages": scan.is_table,
        "flow": not _flows(scan, options),
        "angles": not _has_angles(scan),
        "rings": _stretched(scan) is STRETCHED,
        "ring": _stretched(scan) is STRETCHED_Q,
        "all": _of_transport_alone(options),
    }
    needed = {model: [*needs.split(), "all"] for model, needs in models.items()}
    return {
        model: next((REASONS[need] for need in needs if lacking[need]), "")
        for model, needs in needed.items()
    }


def _closest(results: dict[str, FitResult]) -> FitResult | None:
    try:
        return results[compare_fits(results).chosen]
    except OptionError:  # none has a score
        return None


def _rates_differ(results: dict[str, FitResult]) -> bool:
    """Return whether c2 deviates from the closest model as if rates changed otherwise, or none is close."""
    findings = () if (closest := _closest(results)) is None else closest.findings
    changing = ("rate-changes", "rate-jumps")
    return closest is None or any(
        each.code in changing or each.numbers.get("depends_on") == "age" for each in findings
    )


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
        stretched = _stretched(scan)
        return [BROWNIAN, CUMULANT if stretched is STRETCHED else CUMULANT_Q, stretched]
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
    findings = () if (closest := _closest(results)) is None else closest.findings
    far = [finding.numbers for finding in findings if finding.code == "offset-far-from-1"]
    return {"offset": {"prior": (1.0, far[0]["deviation"])}} if far and far[0]["size"] > 0 else {}


def _has_angles(scan: Scan) -> bool:
    return bool(len(np.unique(scan.phi)) >= FEWEST and np.isfinite(scan.phi).all())


def _stretched(scan: Scan) -> Model:
    several = len(np.unique(scan.q)) > 1 and np.isfinite(scan.q).all()
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
