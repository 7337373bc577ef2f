"""Which directions and parameters the data determine at a state of a fit."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.convergence import MAX_SLOW_STEPS
from homodyne_dask.solver.eigendirections import parameter_scales
from homodyne_dask.solver.normal_equations import JointEquations
from homodyne_dask.solver.state import State
from homodyne_dask.text import joined_with_and

_WEAK_EIGENVALUE = 1e-7
"""Eigenvalue of the scaled Hessian below which a direction is called weak."""
_STRONG_CORRELATION = 0.99


class Determined(NamedTuple):
    """What the data determine at a state."""

    undetermined: list[tuple[str, ...]]
    """The parameters of every direction that they do not determine: those whose errors along it are wide."""
    determined: tuple[str, ...]
    """The other free parameters: whose errors are below their scale, or mostly along other directions."""


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


def hidden_by_rounding(names: str) -> str:
    """Return the sentence on parameters that sums of float64 may determine, and those of float32 do not."""
    return (
        f"the rounding of precision 'mixed' hides whether the data determine {names}: fit with precision "
        f"'float64'"
    )


def undetermined(
    names: list[str], joint: JointEquations, hidden: Bool[np.ndarray, " m"]
) -> tuple[str, ...]:
    """Return a sentence for each direction; hidden: those that sums of float64 may determine."""
    words = [_combination(names, vector) for vector in joint.vectors.T]
    return tuple(
        hidden_by_rounding(words[n]) if hidden[n] else f"the data do not determine {words[n]}"
        for n in np.flatnonzero(~joint.determined)
    )


def weakly_determined(
    names: tuple[str, ...], joint: JointEquations, smoothed: Bool[np.ndarray, " p"]
) -> tuple[str, ...]:
    """Return what is weakly determined; a coefficient of a spline says nothing by itself."""
    plain, inverse = ~smoothed[joint.which], joint.inverse[: joint.moved, : joint.moved]
    chosen = [name for name, which in zip(names, joint.which & ~smoothed, strict=True) if which]
    if not plain.any():
        return ()
    if not plain.all():
        return tuple(_strongly_correlated(chosen, inverse[np.ix_(plain, plain)]))
    weak = [joint.vectors[:, n] for n in np.flatnonzero(joint.values <= _WEAK_EIGENVALUE)]
    named = [set(np.flatnonzero(np.abs(vector) > 0.3).tolist()) for vector in weak]
    sentences = [
        f"{_combination(chosen, vector)} is almost undetermined: fix it"
        if len(large) == 1
        else f"{_combination(chosen, vector)} are almost undetermined: fix one of them, or report only "
        f"the combination of them that the data determine"
        for vector, large in zip(weak, named, strict=True)
    ]
    return (*sentences, *_strongly_correlated(chosen, inverse, named))


def _strongly_correlated(
    names: list[str], inverse: np.ndarray, named: Sequence[set[int]] = ()
) -> list[str]:
    """Return a sentence for each group of parameters that strong correlations connect.

    named: groups that are already said to be almost undetermined.
    """
    sd = np.sqrt(np.diag(inverse))
    correlation = inverse / np.outer(sd, sd)
    strong = np.abs(correlation) > _STRONG_CORRELATION
    connected = np.linalg.matrix_power(strong + np.eye(len(names)), len(names)) > 0
    member = connected.argmax(axis=1)  # the first of the parameters that each is connected with
    sentences = []
    for of in (np.flatnonzero(member == n) for n in np.unique(member)):
        if len(of) > 1 and not any(set(of) <= group for group in named):
            pairs = [(a, b) for a, b in combinations(of, 2) if strong[a, b]]
            shown = [f"{correlation[a, b]:+.4f}" for a, b in pairs]
            if len(of) > 2:
                shown = [
                    f"{value} of {names[a]} and {names[b]}"
                    for value, (a, b) in zip(shown, pairs, strict=True)
                ]
            sentences.append(
                f"{joined_with_and([names[n] for n in of])} are determined only in combination "
                f"(correlation {', '.join(shown)}): quote them with their covariance"
            )
    return sentences


def _combination(names: list[str], vector: np.ndarray) -> str:
    parts = zip(names, vector, strict=True)
    return joined_with_and([name for name, part in parts if abs(part) > 0.3])
