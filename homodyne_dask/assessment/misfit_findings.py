"""What speaks against the model at the end of a fit, and what to try: by the check of residuals."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from homodyne_dask.assessment.assessment import AGE_WINDOWS, FitEnd
from homodyne_dask.assessment.rate_errors_and_limits import names_of_rates
from homodyne_dask.models.transport import Convention
from homodyne_dask.results.data.findings import Finding, finding
from homodyne_dask.results.data.fit_result import LARGEST_P, Alternative, ModelCheck
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.cluster_robust import LEVEL_OF_MISFIT, MIN_CLUSTERS
from homodyne_dask.store.rings_and_clusters import rings_of

MAX_REDCHI = {"counts": 2.0, "constant": 1.5, "scatter": 1.5, "table": 1.5, "tested": 3.0}
MAX_REDCHI |= {"residuals": 100.0}
"""Reduced χ² above which it is named first: by the source of σ, and where means of residuals were tested.

In units of the scatter of neighbours, it was up to 63 for curves of photons, whose noise is alike there."""
EITHER_SIGN = "-0.1:0.1"
"""Bounds of a shear rate that reverses [1/s]."""
ALONG_FLOW = 30
"""Angles [degree] up to which a bin is along the flow."""


def misfit(end: FitEnd) -> Iterator[Finding]:
    """Yield what speaks against the model, all of severity error, or that it was not checked.

    The advice of the power of q is not repeated by that of the averages.
    """
    request, known, reduced = end.request, end.known, end.state.reduced
    if not known.decay:
        return
    check, power, source = known.check, known.power_of_q, request.scan.attrs["sigma_source"]
    if power is not None and power.differs:
        numbers = {"power": [power.power, power.stderr], "p": power.p, "level": LARGEST_P}
        advice = end.command("--over q")
        yield finding("power-of-q", (), advice, **numbers, model=request.config["model"])
    if request.scan.is_table:
        few = None if known.errors.robust is not None else MIN_CLUSTERS
        yield finding("points-correlated", few=few)
    elif check is None and end.state.outcome is lm.Outcome.CONVERGED:
        yield finding("not-checked")
    if check is not None and check.misfit:
        level = {"p": check.p, "level": LEVEL_OF_MISFIT}
        for of_check in _of_check(end, check):
            yield replace(of_check, numbers={**of_check.numbers, **level})
        return
    redchi = reduced.redchi(int(request.search.free.sum()))
    if redchi > MAX_REDCHI.get(source if check is None else "tested", np.inf):
        code = "table-misfit" if request.scan.is_table else "chisqr-too-high"
        yield finding(code, (), end.compared, redchi=redchi, sigma_source=source)


def _of_check(end: FitEnd, check: ModelCheck) -> Iterator[Finding]:
    request, known = end.request, end.known
    alternative, power = check.alternative, known.power_of_q
    if check.deviating:
        keys = ("deviating", "tests", "threshold", "age", "lag", "where", "share", "largest")
        yield finding("model-misfit", **{key: getattr(check, key) for key in keys})
    if alternative is not None:
        if alternative.name == "power_of_q" and power is not None and power.differs:
            return
        if not check.deviating:
            yield finding("model-misfit-shape", share=alternative.share)
    chosen = list(request.config["bounds"] or {})
    yield from _other_flow(end, chosen)
    ended = np.flatnonzero(known.at_bound & ~end.of_constant & ~end.held_offsets)
    ended = names_of_rates(request, ended.tolist())
    bounded = [name for name in ended if name not in (*chosen, "gamma_dot")]
    if bounded:
        yield finding("default-bounds-reached", bounded, end.compared)
    elif alternative is not None and request.config["scaling"] == "individual":
        yield _of_alternative(end, alternative)
    else:
        yield _of_pattern(end, check.depends_on)


def _other_flow(end: FitEnd, chosen: list[str]) -> Iterator[Finding]:
    """Yield what may be wrong about the shear by default; chosen: names of which bounds were given."""
    problem = end.request.problem
    if problem.convention is Convention.HOMODYNE:
        if problem.model.shear:
            yield finding("other-convention", (), end.command(convention=Convention.PHYSICAL))
    elif "gamma_dot" in problem.model.splines and "gamma_dot" not in chosen:
        command = end.command(f"--bounds gamma_dot={EITHER_SIGN}")
        yield finding("flow-may-reverse", ["gamma_dot"], command)


def _of_pattern(end: FitEnd, depends_on: str) -> Finding:
    """Return the advice by what the means of residuals depend on."""
    scan, option = end.request.scan, "--over q"
    along = np.abs(scan.phi) <= ALONG_FLOW
    advice = {"age": lambda: end.free_rates, "lag": lambda: end.compared}.get(depends_on)
    if advice is None and depends_on == "bin":
        if end.request.config["scaling"] != "individual":
            option = "--scaling individual"
        elif not along.any() or along.all():
            option = "--over label" if len(set(scan.label.tolist())) > 1 else "--over scan"
        elif end.request.problem.model.isotropic and np.isfinite(scan.q + scan.phi).all():
            return _one_direction(end)
        else:
            option = f"--phi -{ALONG_FLOW}:{ALONG_FLOW}"
    command = end.command(option) if advice is None else advice()
    return finding("misfit-pattern", (), command, depends_on=depends_on)


def _one_direction(end: FitEnd) -> Finding:
    gap = '--gap "200 um"' * (end.request.config["gap_angstrom"] is None)
    return finding("one-direction", (), end.command(gap, "laminar_flow"))


def _with_exponent(end: FitEnd) -> str:
    """Return the command for a model with an exponent that also has the powers of q or age of this one."""
    search = end.request.search
    if not end.request.problem.model.isotropic:
        return ""
    if len(rings_of(end.request.scan.q)) > 1:
        return end.command(model="stretched_q")
    ages = "alpha" in search.names and search.free[search.names.index("alpha")]
    return end.command(model="stretched" + "_ageing" * bool(ages))


def _of_alternative(end: FitEnd, alternative: Alternative) -> Finding:
    scan, place, numbers = (
        end.request.scan,
        alternative.place,
        dict[str, Any](size=alternative.size),
    )
    match alternative.name:
        case "stretching":
            return finding("other-exponent", (), _with_exponent(end), **numbers)
        case "power_of_q" | "lag":
            return _of_pattern(end, "q" if alternative.name == "power_of_q" else "lag")
        case "smoothness":
            given = f"--smoothness {place[0]}={end.request.config['smoothness'][place[0]]:g}"
            return finding("rate-too-smooth", place, given)
        case "shear":
            known = np.isfinite(scan.q + scan.phi).all()
            return _one_direction(end) if known else _of_pattern(end, "bin")
        case "rate":
            return finding("rate-changes", (), end.free_rates)
        case "jump":
            moment = scan.time[place[0]]
            return finding("rate-jumps", (), end.free_rates, **numbers, moment=moment)
        case "contrast_drift":
            return finding("contrast-drift", (), end.command(AGE_WINDOWS), **numbers)
        case "baseline":
            return finding("baseline", **numbers)
        case "own_average":
            return finding("own-average", **numbers)
        case "bin":
            label, *number = place
            several = bool(number) and len(set(scan.scan_number.tolist())) > 1
            option = "--over scan" if several else f"--exclude-label {label}"
            about = " of scan ".join(map(str, place))
            command = end.command(option)
            return finding("bin-differs", [about], command, **numbers, of_scan=several)
    first, last = place
    numbers |= {"frames": [first, last], "alone": first == last}
    option = f"--exclude-frames {first}:{int(last) + 1}"
    return finding("frames-differ", (), end.command(option), **numbers)
