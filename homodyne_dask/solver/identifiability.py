"""Which directions and parameters the data determine at a state of a fit."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.convergence import MAX_SLOW_STEPS
from homodyne_dask.solver.eigendirections import parameter_scales
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.state import State

_WEAK_EIGENVALUE = 1e-7
"""Eigenvalue of the scaled Hessian below which a direction is called weak."""
_STRONG_CORRELATION = 0.99


class Determined(NamedTuple):
    """What the data determine at a state."""

    undetermined: list[tuple[str, ...]]
    """The parameters of every direction that they do not determine: those whose errors along it are wide."""
    determined: tuple[str, ...]
    """The other free parameters: whose errors are below their scale, or mostly along other directions."""


class Doubt(NamedTuple):
    """What the data do not determine, or only weakly."""

    code: str
    """Of the finding: undetermined, hidden-by-rounding, almost-undetermined, strongly-correlated or
    mostly-outliers."""
    names: tuple[str, ...] = ()
    """The parameters."""
    numbers: Mapping[str, float] = MappingProxyType({})
    """The largest correlation of strongly correlated parameters."""


def determined_at(search: Search, state: State) -> Determined:
    """Return what the data determine at the state.

    After MAX_SLOW_STEPS the valley that the steps follow is not. It is curved, so that all parameters whose
    variance is mostly along it belong to it.
    """
    free = state.movable(search)
    if not (free.any() and state.reduced.finite):
        return Determined([], ())
    slow = state.slow_steps >= MAX_SLOW_STEPS
    directions = state.directions(search, free)
    directions = directions.without_valley() if slow else directions
    known, large = directions.parameters_determined(), np.abs(directions.vectors.T) > 0.3
    if slow:
        unknown = (large[~directions.determined].any(0) | ~known)[None]
    else:
        variance = state.reduced.variance(int(search.free.sum()))
        lengths = np.sqrt(variance / np.maximum(directions.values, np.finfo(float).eps))
        scale = parameter_scales(search, state.theta)[free] * directions.size
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.abs(directions.vectors * lengths).T / scale  # in units of the scales
        known |= np.sqrt((errors**2).sum(0)) < 1
        wide = errors > 1
        named = [large & wide, wide, large]
        any_of = [some.any(1, keepdims=True) for some in named]
        unknown = np.select(any_of, named, default=False)
        unknown = unknown[~directions.determined]
    names = np.array(search.names)[free]
    groups = dict.fromkeys(tuple(names[some].tolist()) for some in unknown)
    return Determined(
        [of for of in groups if not any(set(of) < set(other) for other in groups)],
        tuple(str(name) for name in names[known & ~unknown.any(0)]),
    )


def undetermined(
    names: list[str], joint: JointEquations, hidden: Bool[np.ndarray, " m"]
) -> tuple[Doubt, ...]:
    """Return what each direction leaves undetermined; hidden: which sums of float64 may determine."""
    codes = np.where(hidden, "hidden-by-rounding", "undetermined").tolist()
    unknown = np.flatnonzero(~joint.determined)
    return tuple(Doubt(codes[n], _combination(names, joint.vectors[:, n])) for n in unknown)


def weakly_determined(
    names: tuple[str, ...], joint: JointEquations, smoothed: Bool[np.ndarray, " p"]
) -> tuple[Doubt, ...]:
    """Return what is weakly determined; a coefficient of a spline says nothing by itself."""
    plain, inverse = ~smoothed[joint.which], joint.inverse[: joint.moved, : joint.moved]
    chosen = [name for name, which in zip(names, joint.which & ~smoothed, strict=True) if which]
    if not plain.any():
        return ()
    weak = joint.vectors[:, joint.values <= _WEAK_EIGENVALUE].T if plain.all() else ()
    almost = [Doubt("almost-undetermined", _combination(chosen, vector)) for vector in weak]
    correlated = _strongly_correlated(chosen, inverse[np.ix_(plain, plain)])
    named = [set(doubt.names) for doubt in almost]
    return (*almost, *(one for one in correlated if not any(set(one.names) <= of for of in named)))


def _strongly_correlated(names: Sequence[str], inverse: np.ndarray) -> list[Doubt]:
    """Return the groups of parameters that strong correlations connect."""
    sd = np.sqrt(np.diag(inverse))
    correlation = inverse / np.outer(sd, sd)
    np.fill_diagonal(correlation, 0.0)
    strong = np.abs(correlation) > _STRONG_CORRELATION
    connected = np.linalg.matrix_power(strong + np.eye(len(names)), len(names)) > 0
    member = connected.argmax(axis=1)  # the first of the parameters that each is connected with
    doubts = []
    for group in (np.flatnonzero(member == n) for n in np.unique(member)):
        if len(group) > 1:
            among = correlation[np.ix_(group, group)]
            largest = {"correlation": float(among.flat[np.abs(among).argmax()])}
            about = tuple(names[int(n)] for n in group)
            doubts.append(Doubt("strongly-correlated", about, largest))
    return doubts


def _combination(names: Sequence[str], vector: np.ndarray) -> tuple[str, ...]:
    return tuple(name for name, part in zip(names, vector, strict=True) if abs(part) > 0.3)
