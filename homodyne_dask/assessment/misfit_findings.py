"""Whether the model describes the data, as findings: the evidence, and what to try next."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.models.spline_rates import free_forms
from homodyne_dask.request.request import Request
from homodyne_dask.results.data.findings import Finding, finding
from homodyne_dask.results.data.misfit import Alternative

if TYPE_CHECKING:
    from homodyne_dask.assessment.assess import Assessment

MAX_REDCHI = {"counts": 2.0, "constant": 1.5, "scatter": 1.5, "tested": 3.0}
"""χ²/N above which it is named first: by the source of σ, and where means of residuals were tested."""
_AGE_WINDOWS = "--over age --windows 4"


def misfit_findings(
    request: Request,
    known: "Assessment",
    bounded: Sequence[str],
    moved: Sequence[str],
    redchi: float,
) -> Iterator[Finding]:
    """Yield what speaks against the model, all of severity error.

    bounded: parameters that ended at a default bound. moved: those that did not end at one. The advice of
    the power of q is not repeated by that of the averages.
    """
    check, power, hausman = known.check, known.power_of_q, known.hausman
    config, source = request.config, request.scan.attrs["sigma_source"]
    if power is not None and power.differs:
        numbers = {"power": [power.power, power.stderr], "p": power.p}
        advice = f"{command_of(request)} --over q"
        yield finding("power-of-q", (), advice, **numbers, model=config["model"])
    if check is None or not check.misfit:
        if redchi > MAX_REDCHI[source if check is None else "tested"]:
            yield finding("chisqr-too-high", (), "--model auto", redchi=redchi, sigma_source=source)
        if hausman is not None and hausman.differs:
            size = np.abs(hausman.difference)
            most = int(size.argmax())
            yield finding("weightings-disagree", [moved[most]], p=hausman.p, largest=size[most])
        return
    found = check.alternative
    if check.deviating:
        keys = ("deviating", "tests", "threshold", "age", "lag", "where", "share", "largest")
        yield finding("model-misfit", **{key: getattr(check, key) for key in keys})
    if found is not None and found.name == "power_of_q" and power is not None and power.differs:
        return
    if found is not None and not check.deviating:
        yield finding("model-misfit-shape", share=found.share, p=found.p_value)
    if bounded:
        yield finding("default-bounds-reached", bounded, "--model auto")
    elif found is not None and config["scaling"] == "individual":
        yield _of_alternative(request, found)
    else:
        yield _of_deviations(request, check.depends_on)


def command_of(request: Request) -> str:
    """Return the command that fits this model to these data, without the other options."""
    gap, ties = request.config["gap_angstrom"], (request.config["tie"] or {}).items()
    words = f"homodyne-dask fit {_store(request)} --model {quote(request.config['model'])}"
    words += "".join(f' --tie "{name} = {expression}"' for name, expression in ties)
    return words if gap is None else f'{words} --gap "{gap / 1e4:g} um"'


def _store(request: Request) -> str:
    """Return the store with the options of its selection, as a command has them."""
    return f"{Path(request.scan.path).name} {request.scan.selection_options}".strip()


def _of_deviations(request: Request, depends_on: str) -> Finding:
    """Return the advice by what the means of residuals depend on."""
    config, scan = request.config, request.scan
    further = {"q": "--over q", "bin": "--phi -30:30", "age": _AGE_WINDOWS, "lag": _AGE_WINDOWS}
    option = further[depends_on]
    if depends_on == "age" and free_forms(request.problem.model):
        option = "--rates spline"
    if depends_on == "bin":
        if config["scaling"] != "individual":
            option = "--scaling individual"
        elif not np.isfinite(scan.phi).all():
            option = "--label N"
        elif np.isfinite(scan.q).all() and request.problem.model.isotropic:
            return _motion(request)
    return finding("misfit-pattern", (), f"{command_of(request)} {option}", depends_on=depends_on)


def _motion(request: Request) -> Finding:
    command = f'homodyne-dask fit {_store(request)} --model laminar_flow --gap "200 um"'
    return finding("one-direction", (), command)


def _of_alternative(request: Request, found: Alternative) -> Finding:
    """Return the advice by what explains the deviations."""
    command, numbers = command_of(request), dict[str, Any](size=found.size)
    match found.name:
        case "stretching":
            model = "--model stretched" if request.problem.model.isotropic else ""
            return finding("other-exponent", (), model, **numbers)
        case "power_of_q":
            return _of_deviations(request, "q")
        case "smoothness":
            (rate,) = found.place
            return finding("rate-too-smooth", [rate], f"--smoothness {rate}=...")
        case "shear":
            return _motion(request)
        case "contrast_drift":
            return finding("contrast-drift", (), f"{command} {_AGE_WINDOWS}", **numbers)
        case "bin":
            label, *scan = found.place
            option = "--over scan" if scan else f"--exclude-label {label}"
            about = " of scan ".join(map(str, found.place))
            numbers |= {"of_scan": bool(scan)}
            return finding("bin-differs", [about], f"{command} {option}", **numbers)
    first, last = found.place
    numbers |= {"frames": [first, last], "alone": first == last}
    return finding(
        "frames-differ", (), f"{command} --exclude-frames {first}:{int(last) + 1}", **numbers
    )
