"""From the last state of a fit to its result."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.fitting.errors.profile import ProfilePoint
from homodyne_dask.fitting.request import Request
from homodyne_dask.models.parameters import joined_with_and
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.tables import (
    covariance_table,
    directions_table,
    influence_table,
    parameter_table,
    profile_table,
    scaling_table,
    scalings_table,
)
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import (
    MIN_CLUSTERS,
    Uncertainty,
    uncertainty,
)
from homodyne_dask.solver.influence import compared_scalings, leave_one_out
from homodyne_dask.solver.normal_equations import deviation
from homodyne_dask.solver.robust_step import mean_weight
from homodyne_dask.solver.variable_projection import ReducedProblem
from homodyne_dask.store.rings import friedel_clusters
from homodyne_dask.sweep.unreadable import excluded_sentence


class ErrorEstimates(NamedTuple):
    """What passes beyond those of the fit found."""

    lower: Float[np.ndarray, "p p"] | None = None
    """Dyadic-robust covariance, a lower bound; None where there are bins enough for CR2."""
    profiles: Mapping[str, list[ProfilePoint]] = MappingProxyType({})


NOTHING_MORE = ErrorEstimates()

FAR_OFF = 10.0
"""χ² per pair of a bin from which it is said: data and model differ by more than 3 σ on average."""

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "zarr", "dask", "distributed", "xarray")


def assemble_result(
    request: Request,
    state: lm.State,
    history: list[dict[str, Any]],
    timings: dict[str, float],
    compilations: dict[str, int],
    more: ErrorEstimates = NOTHING_MORE,
    minima: Sequence[dict[str, Any]] = (),
) -> FitResult:
    """Return the result of a fit that ended in `state`; `more` is what further passes found."""
    scan, search, reduced = request.scan, request.search, state.reduced
    moved = free_inside_bounds(request, state)
    at_bound = search.free & ~moved
    clusters = friedel_clusters(scan.q, scan.phi)
    errors = uncertainty(search.names, reduced, moved, clusters)
    freedom = reduced.freedom(int(search.free.sum()))
    names = list(search.names)
    return FitResult(
        outcome=state.outcome,
        parameters=parameter_table(
            {
                "param": names,
                "value": state.theta,
                "stderr": _deviation(errors.robust, len(names)),
                "stderr_naive": _deviation(errors.naive, len(names)),
                "dof": errors.dof,
                "at_bound": at_bound,
                "fixed": ~search.free,
                "unit": [p.unit for p in request.parameters],
            }
        ),
        covariance=covariance_table(errors.robust, names),
        covariance_naive=covariance_table(errors.naive, names),
        scaling=scaling_table(
            {
                "label": scan.label,
                "q": scan.q,
                "phi": scan.phi,
                "contrast": reduced.contrast,
                "offset": reduced.offset,
                "redchi": _redchi_per_bin(request, state),
                "ndata": reduced.count,
                "undetermined": reduced.undetermined,
                "contrast_stderr": errors.scaling_robust[:, 1],
                "offset_stderr": errors.scaling_robust[:, 0],
                "contrast_stderr_naive": errors.scaling_naive[:, 1],
                "offset_stderr_naive": errors.scaling_naive[:, 0],
            }
        ),
        chisqr=reduced.chisqr,
        redchi=reduced.chisqr / freedom,
        ndata=reduced.ndata,
        nbins=int((reduced.count > 0).sum()),
        passes=state.passes,
        mean_weight=None if reduced.noise is None else mean_weight(reduced.gram),
        history=tuple(history),
        compilations=compilations,
        timings=timings,
        undetermined=_undetermined(request, state) + errors.sentences,
        warnings=_warnings(request, state, at_bound, clusters),
        config=request.config,
        inputs=_inputs(request),
        minima=tuple(minima),
        truth=scan.attrs["truth"],
        version=version("homodyne-dask"),
        versions=_versions(),
        covariance_lower=covariance_table(more.lower, names),
        identifiability=directions_table(errors.eigenvalues, errors.directions, names),
        profiles=_profiles(request, state, errors, more),
        **_what_if(request, state, moved, errors, _best_known(errors, more.lower)),
    )


def free_inside_bounds(request: Request, state: lm.State) -> Bool[np.ndarray, " p"]:
    """Return the parameters that are neither fixed nor stand at a bound."""
    search = request.search
    at_bound = (state.theta <= search.lower) | (state.theta >= search.upper)
    return search.free & (np.isfinite(search.period) | ~at_bound)


def standard_errors(
    request: Request, state: lm.State, lower: Float[np.ndarray, "p p"] | None
) -> Float[np.ndarray, " p"]:
    """Return the best known errors: CR2, else the lower bound, else the naive ones."""
    scan = request.scan
    clusters = friedel_clusters(scan.q, scan.phi)
    errors = uncertainty(
        request.search.names, state.reduced, free_inside_bounds(request, state), clusters
    )
    return _best_known(errors, lower)


def _best_known(
    errors: Uncertainty, lower: Float[np.ndarray, "p p"] | None
) -> Float[np.ndarray, " p"]:
    known = (errors.robust, lower, errors.naive)
    best = next((covariance for covariance in known if covariance is not None), None)
    return _deviation(best, len(errors.dof))


def _what_if(
    request: Request,
    state: lm.State,
    moved: Bool[np.ndarray, " p"],
    errors: Uncertainty,
    error: Float[np.ndarray, " p"],
) -> dict[str, Any]:
    """Return the tables of what single bins and the scaling mode do to the result."""
    if not (moved.any() and state.reduced.finite):
        return {}
    names, scan = list(request.search.names), request.scan
    change = leave_one_out(state.reduced, moved) / error
    ratio = (error / _deviation(errors.naive, len(names)))[moved] ** 2
    effect = float(ratio.mean()) if np.isfinite(ratio).all() else 1.0
    tables = {"influence": influence_table(change, names, scan.label)}
    if request.problem.loss != "linear" or request.scaling.prior is not None:
        return tables  # another mode has other weights, or what is known beforehand is not of it
    modes = compared_scalings(state.reduced, request.scaling, scan.phi, moved, max(effect, 1.0))
    return tables | {"scalings": scalings_table(modes, error, names)}


def _profiles(
    request: Request, state: lm.State, errors: Uncertainty, more: ErrorEstimates
) -> dict[str, Any]:
    if errors.naive is None:
        return {}
    names = list(request.search.names)
    tables = {}
    for name, points in more.profiles.items():
        at = names.index(name)
        noise = state.reduced.noise or 1.0  # χ² rises by that at one naive error
        tables[name] = profile_table(points, at, float(errors.naive[at, at]) / noise, names)
    return tables


def _versions() -> dict[str, str]:
    """Return the version of Python and of the packages that read the data and do the arithmetic."""
    return {"Python": python_version()} | {name: version(name) for name in PACKAGES}


def _undetermined(request: Request, state: lm.State) -> tuple[str, ...]:
    """Return a sentence for every direction in which the fit rests without knowing where."""
    return tuple(
        f"the data do not determine {joined_with_and(names)}: one standard error goes beyond "
        + ("their whole size; fix one of them" if len(names) > 1 else "its whole size; fix it")
        for names in dict.fromkeys(lm.undetermined(request.search, state))
    )


def _deviation(covariance: Float[np.ndarray, "p p"] | None, p: int) -> Float[np.ndarray, " p"]:
    return np.full(p, np.nan) if covariance is None else deviation(np.diag(covariance))


def _redchi_per_bin(request: Request, state: lm.State) -> Float[np.ndarray, " bin"]:
    """Return χ² of each bin over its pairs less its own two linear parameters."""
    reduced = state.reduced
    own = 2 if request.scaling.mode == "individual" else 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(reduced.count > own, reduced.chisqr_per_bin / (reduced.count - own), np.nan)


def _flat(reduced: ReducedProblem) -> str | None:
    """Return a sentence where c2 of no bin varies by more than the rounding of its sums."""
    M = reduced.gram.moments[reduced.gram.pairs > 0]
    varies = M[:, 1, 1] - M[:, 0, 1] ** 2 / M[:, 0, 0]
    if varies.sum() > reduced.rounding or not reduced.finite:
        return None
    return "c2 is the same at all pairs: the data show no decay and determine nothing"


def _far_off(request: Request, state: lm.State) -> str | None:
    """Return a sentence where data and model differ by far more than σ, whatever the reason."""
    redchi = _redchi_per_bin(request, state)
    far = np.flatnonzero(redchi > FAR_OFF)
    if not len(far):
        return None
    labels = [str(label) for label in request.scan.label[far]]
    bins = ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")
    return (
        f"χ² per pair is up to {redchi[far].max():.3g} (in the bins labelled {bins}): some pairs lie "
        f"far from all others, sigma is too small, or the model does not hold; maps.png shows where"
    )


def _warnings(
    request: Request, state: lm.State, at_bound: Bool[np.ndarray, " p"], clusters: np.ndarray
) -> tuple[str, ...]:
    scan = request.scan
    said = (
        request.scaling.note,
        excluded_sentence(scan),
        _flat(state.reduced),
        _far_off(request, state),
    )
    sentences = [each for each in said if each]
    for n in np.flatnonzero(at_bound):
        low, high = request.search.lower[n], request.search.upper[n]
        sentences.append(
            f"{request.search.names[n]} stands at its bound {state.theta[n]:g} "
            f"(allowed {low:g} to {high:g}): widen it or fix it; the "
            f"errors of the others hold with it there"
        )
    used = state.reduced.count > 0
    gone = int(state.reduced.undetermined.sum())
    if gone:
        sentences.append(
            f"{gone} of {int(used.sum())} bins show no decay: their contrast is unknown"
        )
    sentences += _held(state.reduced)
    if (~used).any():
        sentences.append(f"{int((~used).sum())} of {len(used)} bins have no known pair")
    groups = len(np.unique(clusters[used]))
    if groups < MIN_CLUSTERS:
        sentences.append(
            f"{groups} independent bins are too few for robust errors ({MIN_CLUSTERS} are needed): "
            f"naive ones are given, too small for correlated speckle, and where the record is long "
            f"enough a lower bound from blocks of frames"
        )
    if np.isnan(request.scan.q).any():
        sentences.append("q is unknown: D0 and D_offset are q² times their values, in 1/s")
    return tuple(sentences)


def _held(reduced: ReducedProblem) -> list[str]:
    """Return sentences on contrasts and offsets that stand at a bound."""
    used = reduced.count > 0
    numbers = [
        (name, int(reduced.at_bound[used, at].sum()))
        for at, name in ((1, "contrast"), (0, "offset"))
    ]
    return [
        f"{name} stands at its bound in {number} of {int(used.sum())} bins: it has no error there, and "
        f"the errors of the others hold with it there"
        for name, number in numbers
        if number
    ]


def _inputs(request: Request) -> dict[str, Any]:
    scan = request.scan
    kept = ("source_file", "source_sha256", "source_format", "frame_time", "sigma_source", "notes")
    first, stop = scan.frames
    return {
        "store": Path(scan.path).name,
        "tiles_sha256": scan.attrs["tiles_sha256"],
        **{key: scan.attrs[key] for key in kept},
        "frames": [first, stop],
        "seconds": [float(scan.time[first]), float(scan.time[stop - 1])],
        "chunks_left_out": [list(chunk) for chunk in scan.excluded],
        "frames_masked": int((~scan.frame_mask[first:stop]).sum()),
        "bins": len(scan.bins),
        "labels": scan.label.tolist(),
    }
