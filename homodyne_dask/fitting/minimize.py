"""The way down to the optimum: one state per pass, written down and saved as it goes."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.options import Request
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.solver import (
    levenberg_marquardt as lm,
)
from homodyne_dask.solver import (
    robust_step as carried,
)
from homodyne_dask.solver import (
    variable_projection as scaling,
)
from homodyne_dask.solver.trust_region import Trust
from homodyne_dask.store.memory import trim_memory

if TYPE_CHECKING:
    from homodyne_dask.fitting.start.minima import Minimum
    from homodyne_dask.sweep.sweep import Sweep


class FitRecord:
    """What is written down while a fit runs, and who is told of passes over block means."""

    def __init__(
        self, began: float, told: Callable[[lm.State, int], None] = lambda *_: None
    ) -> None:
        self.began, self.told = began, told
        self.history: list[dict[str, Any]] = []
        self.minima: list[dict[str, Any]] = []
        self.timings: dict[str, float] = {"passes": 0.0}


def minimize(
    request: Any,
    evaluate: Callable[..., Gram],
    checkpoint: Path | None = None,
    resume: bool = False,
    record: FitRecord | None = None,
    levels: Sequence["Sweep"] = (),
    first: "First | None" = None,
    identity_of: Callable[[Any], dict[str, Any]] | None = None,
) -> Iterator[lm.State]:
    """Yield one state per pass over the data; the last one says how it ended.

    `evaluate` gives the Gram of all data at theta, and with a loss at (offset - 1, contrast) of the
    bins: a sweep over a cluster, or a few lines of NumPy.
    `levels` do the same on block means, the coarsest first: the fit comes down through them. A
    request of other data than a scan says itself where it starts (`first`) and what it is.
    """
    record = record or FitRecord(time.perf_counter())
    search, options = request.search, request.options
    identity = (identity_of or _identity)(request)

    def measured(
        theta: Float[np.ndarray, " p"], beta: Float[np.ndarray, "bin 2"] | None
    ) -> scaling.Reduced:
        began = time.perf_counter()
        gram = evaluate(theta, beta)
        seconds = time.perf_counter() - began
        record.timings["passes"] += seconds
        cost = getattr(evaluate, "cost", None)
        entry = {"seconds": seconds, "theta": theta.tolist()} | _shares(cost) | _job()
        if peak := getattr(evaluate, "peak", 0):
            entry["peak_bytes"] = peak
        record.history.append(entry)
        return carried.reduced(gram, request.scaling, beta)

    if resume:
        assert checkpoint is not None
        state = _resumed(request, checkpoint, identity, record)
        record.timings["start"] = time.perf_counter() - record.began
    else:
        theta, beta, coarse = (first or _first)(request, levels, record)
        record.history.extend(coarse)
        reduced = measured(theta, beta)
        # at the optimum of the means damping would only slow the weak directions
        undamped = replace(options, damping=0.0) if coarse else options
        state = lm.start(search, theta, reduced, undamped)
        _note(record, state, reduced)
        _save(checkpoint, identity, state, record)
    yield state
    while state.outcome is lm.Outcome.RUNNING:
        trial = lm.propose(search, state)
        reduced = measured(trial.theta, trial.beta)
        state = lm.judge(search, state, trial, reduced, options)
        _note(record, state, reduced)
        _save(checkpoint, identity, state, record)
        yield state


def run_to_completion[Result](
    passes: Generator[lm.State, None, Result], progress: Callable[[lm.State], None] | None = None
) -> Result:
    """Return what a fit ends with, `progress` called with the state after each of its passes."""
    with closing(passes):  # what `progress` raises ends the fit at once
        while True:
            try:
                state = next(passes)
            except StopIteration as end:
                return end.value
            if progress is not None:
                progress(state)


class StartingPoint(NamedTuple):
    """Where the first pass over all data is made."""

    theta: Float[np.ndarray, " p"]
    beta: Float[np.ndarray, "bin 2"] | None
    """(offset - 1, contrast) of the bins, where a loss asks for them."""
    coarse: list[dict[str, Any]]
    """A record of each level above."""


First = Callable[[Any, Sequence["Sweep"], FitRecord], StartingPoint]


def _first(request: Request, levels: Sequence["Sweep"], record: FitRecord) -> StartingPoint:
    """Return the lowest of the minima that the averages and the levels show."""
    from homodyne_dask.fitting.start.coarse_to_fine import coarse_to_fine
    from homodyne_dask.fitting.start.initial_values import averages_of, find_initial_values
    from homodyne_dask.fitting.start.minima import competing_minima

    minima = find_initial_values(request)
    trim_memory()
    record.minima = [_by_name(request.search.names, at) for at in minima]
    record.timings["start"] = time.perf_counter() - record.began
    theta, coarse = coarse_to_fine(request, competing_minima(minima), levels, record.told)
    if request.problem.loss == "linear":
        return StartingPoint(theta, None, coarse)
    beta = scaling.reduce(averages_of(request)(theta), request.scaling).beta
    return StartingPoint(theta, beta, coarse)


def _by_name(names: Sequence[str], at: "Minimum") -> dict[str, Any]:
    """Return a minimum as it is reported; χ² is None where the user gave the point."""
    theta = dict(zip(names, at.theta.tolist(), strict=True))
    chisqr = at.chisqr if np.isfinite(at.chisqr) else None
    return {"theta": theta, "chisqr": chisqr, "starts": at.starts}


def _shares(cost: Any) -> dict[str, float]:
    """Return which share of sub-blocks a pass computed, and of blocks it needed the data of."""
    if cost is None or not cost.blocks:
        return {}
    return {
        "computed": cost.computed / max(cost.sub_blocks, 1),
        "read": cost.read / cost.blocks,
    }


def _job() -> dict[str, str]:
    """Return which job of SLURM this program is, as 123 or, started for the third time, 123.2."""
    number, again = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT")
    return {"job": f"{number}.{again}" if again else number} if number else {}


def _note(record: FitRecord, state: lm.State, reduced: scaling.Reduced) -> None:
    """Complete the history entry of the pass that led to this state."""
    record.history[-1] |= {
        "pass": state.passes,
        "chisqr": reduced.chisqr if np.isfinite(reduced.chisqr) else None,
        "damping": state.damping,
        "accepted": state.accepted,
        "decrement": state.decrement if np.isfinite(state.decrement) else None,
    }


def _save(path: Path | None, identity: dict[str, Any], state: lm.State, record: FitRecord) -> None:
    if path is None or not state.reduced.finite:
        return
    point, fallback = _point(state), state.fallback and _point(state.fallback)
    saved = checkpoints.Checkpoint(
        identity, state.passes, point, fallback, record.history, record.minima
    )
    try:
        checkpoints.save(path, saved)
    except OSError as e:
        raise OptionError(
            f"the checkpoint {path} cannot be written ({e.strerror}): "
            f"free space or give another path"
        ) from e


def _point(state: lm.State) -> checkpoints.Point:
    return checkpoints.Point(
        state.theta.tolist(), state.damping, state.accepted, state.reduced.gram,
        (state.uphill, state.rejections),
        None if state.reduced.move is None else state.reduced.beta.tolist(),
        state.trust and (state.trust.size.tolist(), state.trust.radius),
    )  # fmt: skip


def _resumed(request: Any, path: Path, identity: dict[str, Any], record: FitRecord) -> lm.State:
    """Return the state a checkpoint holds, as it was when it was written."""
    saved = checkpoints.load(path, identity)
    record.history.extend(saved.history)
    record.minima = list(saved.minima)

    def state(point: checkpoints.Point, fallback: lm.State | None = None) -> lm.State:
        beta = None if point.beta is None else np.array(point.beta)
        reduced = carried.reduced(point.gram, request.scaling, beta)
        theta = np.array(point.theta)
        trust = point.trust and Trust(np.array(point.trust[0]), point.trust[1])
        return lm.restored(
            request.search, theta, reduced, point.damping, saved.passes, point.accepted, point.counts,
            fallback, request.options, trust,
        )  # fmt: skip

    return state(saved.point, saved.fallback and state(saved.fallback))


def _identity(request: Request) -> dict[str, Any]:
    """Return what must be the same for a fit to be resumed."""
    given = (
        "model",
        "convention",
        "gap_angstrom",
        "scaling",
        "contrast",
        "offset",
        "contrast_bounds",
        "offset_bounds",
        "contrast_prior",
        "offset_prior",
        "min_lag",
        "loss",
        "loss_scale",
        "precision",
    )
    names = request.search.names
    return {
        "data": request.scan.digest,
        "bins": list(request.scan.bins),
        "frames": list(request.scan.frames),
        "chunks left out": [list(chunk) for chunk in request.scan.excluded],
        **{key: request.config[key] for key in given},
        "free": [n for n, free in zip(names, request.search.free, strict=True) if free],
        "start": [None if np.isnan(v) else float(v) for v in request.search.start],
        "lower": request.search.lower.tolist(),
        "upper": request.search.upper.tolist(),
        "starts": request.starts,
        "code of the model": request.problem.model.digest,
        "power laws of the model": [list(law) for law in request.problem.model.power_laws],
        # other versions round differently, and the bits would not be those of one run
        **{f"version of {name}": version(name) for name in ("homodyne-dask", "jaxlib", "numpy")},
    }
