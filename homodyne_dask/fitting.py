"""A fit: scan and model in, result out. It introduces the solver to the cluster."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import Client
from jaxtyping import Float

from homodyne_dask import checkpoint as checkpoints
from homodyne_dask import lm, scaling
from homodyne_dask.cluster import local_cluster, local_workers, this_process, workers_of
from homodyne_dask.dataset import Scan
from homodyne_dask.errors import OptionError
from homodyne_dask.gram import Gram
from homodyne_dask.models import Model
from homodyne_dask.planning import IN_PROCESS_PAIRS, Plan, coarse_levels, layout, make_plan
from homodyne_dask.request import Request, prepare, require_gap
from homodyne_dask.verify import without_unreadable

if TYPE_CHECKING:
    from homodyne_dask.result import FitResult
    from homodyne_dask.sweep import Sweep


def fit(
    data: Scan | str | Path,
    model: Model,
    *,
    gap: str | float | None = None,
    convention: str = "physical",
    scaling: str = "individual",
    contrast: float | Sequence[float] | None = None,
    offset: float | Sequence[float] | None = None,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    min_lag: int = 1,
    loss: str = "linear",
    precision: str = "float64",
    memory: str = "auto",
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    starts: int | None = None,
    profile: tuple[str, ...] = (),
    max_passes: int = 100,
    on_bad_tile: str = "raise",
    progress: Callable[[lm.State, Plan], None] | None = None,
) -> "FitResult":
    """Fit a model to all selected pairs t1 < t2 of a scan, each counted once.

    data: a scan, or the path of a store. gap: the distance of the plates, '200 um' or in Å;
    by default the store's own. convention: 'physical' or 'homodyne' (see `Convention`).
    scaling: contrast and offset per bin ('individual'), one of each ('shared'), each a Fourier series
    in φ ('fourier1' to 'fourier3'), or given values ('fixed', with contrast and offset: one number,
    or one per bin).
    initial, fixed, bounds: by parameter name; what is not given is searched in the data.
    min_lag: pairs closer than this many frames are left out. precision: 'float64', or 'mixed'
    (float32 on the plane, float64 sums). memory: keep decoded data with the workers ('resident'),
    read them in every pass ('stream'), or what fits ('auto'). client: a Dask client; None starts
    workers on this machine, or none for fewer than a million pairs. checkpoint: a file written
    after each pass, from which resume=True goes on to the same bits. starts: how many points of
    the scan for first values are refined. profile: parameters along which χ² is followed at one and
    two standard errors on both sides, the others fitted anew. on_bad_tile: a chunk of the store that
    is needed and cannot be read ends the fit ('raise'), or all that cannot be read are found before
    the first pass, left out and reported ('skip'). progress: called with each state and the plan.

    Raises a HomodyneDaskError for every mistake in these; how the fit ended is `result.outcome`.
    """
    began = time.perf_counter()
    request = prepare(
        data, model, gap=gap, convention=convention, scaling=scaling, contrast=contrast,
        offset=offset, initial=initial, fixed=fixed, bounds=bounds, min_lag=min_lag, loss=loss,
        precision=precision, memory=memory, starts=starts, profile=profile, max_passes=max_passes,
        on_bad_tile=on_bad_tile,
    )  # fmt: skip
    require_gap(request)
    path = None if checkpoint is None else Path(checkpoint)
    if resume and path is None:
        raise OptionError("resume needs the checkpoint to resume from: give checkpoint=PATH")
    if path is not None and not resume:
        checkpoints.check_target(path)
    work = plan_of(request, client)
    with local_cluster() if work.workers.to_start else nullcontext(client) as connected:
        if on_bad_tile == "skip":
            layouts = (work.layout, *work.levels)
            request = replace(request, scan=without_unreadable(request.scan, layouts, connected))
        # JAX and tables load while workers start
        from homodyne_dask.certainty import certainty
        from homodyne_dask.outcome import result_of
        from homodyne_dask.sweep import level_sweeps, sweep_of

        sweep = sweep_of(work, request.scan.selection, request.problem, connected)
        levels = level_sweeps(work, request.scan.selection, request.problem, connected)
        sweep.warm_up()
        record = _Record(began)
        state = None
        for state in iterate(request, sweep, path, resume, record, levels):
            if progress is not None:
                progress(state, work)
        assert state is not None  # there is at least one pass
        ended = time.perf_counter()
        more = certainty(request, sweep, state)
        record.timings["errors"] = time.perf_counter() - ended
        compilations = sweep.compilations()  # asks the workers, so before they are let go
    record.timings["total"] = time.perf_counter() - began
    return result_of(request, state, record.history, record.timings, compilations, more)


def plan(
    data: Scan | str | Path,
    model: Model,
    *,
    gap: str | float | None = None,
    convention: str = "physical",
    min_lag: int = 1,
    memory: str = "auto",
    client: Client | None = None,
) -> Plan:
    """Return what `fit` would read and hold with these options; `print` it.

    Raises the same mistakes as `fit`, but for a missing gap, and PlanError where the workers' memory
    is too small.
    """
    request = prepare(data, model, gap=gap, convention=convention, min_lag=min_lag, memory=memory)
    return plan_of(request, client)


def plan_of(request: Request, client: Client | None) -> Plan:
    """Return the plan for the client's workers, or for this process or the workers to be started."""
    work = layout(request.scan, request.problem.min_lag)
    if client is not None:
        workers = workers_of(client)
    else:
        workers = this_process() if work.pairs < IN_PROCESS_PAIRS else local_workers()
    name = request.problem.model.name
    levels = coarse_levels(request.scan, work, request.problem.min_lag)
    return make_plan(work, workers, name, len(request.scan.bins), request.memory, levels)


class _Record:
    """What is written down while a fit runs."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.history: list[dict[str, Any]] = []
        self.timings: dict[str, float] = {"passes": 0.0}


def iterate(
    request: Any,
    evaluate: Callable[[Float[np.ndarray, " p"]], Gram],
    checkpoint: Path | None = None,
    resume: bool = False,
    record: _Record | None = None,
    levels: Sequence["Sweep"] = (),
    first: "First | None" = None,
    identity_of: Callable[[Any], dict[str, Any]] | None = None,
) -> Iterator[lm.State]:
    """Yield one state per pass over the data; the last one says how it ended.

    `evaluate` gives the Gram of all data at theta: a sweep over a cluster, or a few lines of NumPy.
    `levels` do the same on block means, the coarsest first: the fit comes down through them. A
    request of other data than a scan says itself where it starts (`first`) and what it is.
    """
    record = record or _Record(time.perf_counter())
    search, options = request.search, request.options
    identity = (identity_of or _identity)(request)

    def measured(theta: Float[np.ndarray, " p"]) -> scaling.Reduced:
        began = time.perf_counter()
        gram = evaluate(theta)
        seconds = time.perf_counter() - began
        record.timings["passes"] += seconds
        cost = getattr(evaluate, "cost", None)
        entry = {"seconds": seconds, "theta": theta.tolist()} | _shares(cost)
        if peak := getattr(evaluate, "peak", 0):
            entry["peak_bytes"] = peak
        record.history.append(entry)
        return scaling.reduce(gram, request.scaling)

    if resume:
        assert checkpoint is not None
        state = _resumed(request, checkpoint, identity, record)
        record.timings["start"] = time.perf_counter() - record.began
    else:
        theta, coarse = (first or _first)(request, levels, record)
        record.history.extend(coarse)
        reduced = measured(theta)
        # at the optimum of the means damping would only slow the weak directions
        first = replace(options, damping=0.0) if coarse else options
        state = lm.start(search, theta, reduced, first)
        _note(record, state, reduced)
        _save(checkpoint, identity, state, record)
    yield state
    while state.outcome is lm.Outcome.RUNNING:
        trial = lm.propose(search, state)
        reduced = measured(trial.theta)
        state = lm.judge(search, state, trial, reduced, options)
        _note(record, state, reduced)
        _save(checkpoint, identity, state, record)
        yield state


First = Callable[[Any, Sequence["Sweep"], _Record], tuple[np.ndarray, list[dict[str, Any]]]]


def _first(
    request: Request, levels: Sequence["Sweep"], record: _Record
) -> tuple[Float[np.ndarray, " p"], list[dict[str, Any]]]:
    """Return where the first pass over all data is made, and a record of each level above."""
    from homodyne_dask.guesses import first_values
    from homodyne_dask.levels import descend

    starts = first_values(request)
    record.timings["start"] = time.perf_counter() - record.began
    return descend(request, starts, levels)


def _shares(cost: Any) -> dict[str, float]:
    """Return which share of sub-blocks a pass computed, and of blocks it needed the data of."""
    if cost is None or not cost.blocks:
        return {}
    return {
        "computed": cost.computed / max(cost.sub_blocks, 1),
        "read": cost.read / cost.blocks,
    }


def _note(record: _Record, state: lm.State, reduced: scaling.Reduced) -> None:
    """Complete the history entry of the pass that led to this state."""
    record.history[-1] |= {
        "pass": state.passes,
        "chisqr": reduced.chisqr if np.isfinite(reduced.chisqr) else None,
        "damping": state.damping,
        "accepted": state.accepted,
        "decrement": state.decrement if np.isfinite(state.decrement) else None,
    }


def _save(path: Path | None, identity: dict[str, Any], state: lm.State, record: _Record) -> None:
    if path is None or not state.reduced.finite:
        return
    point, fallback = _point(state), state.fallback and _point(state.fallback)
    saved = checkpoints.Checkpoint(identity, state.passes, point, fallback, record.history)
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
        (state.uphill, state.rejections), None if state.largest is None else state.largest.tolist(),
    )  # fmt: skip


def _resumed(request: Request, path: Path, identity: dict[str, Any], record: _Record) -> lm.State:
    """Return the state a checkpoint holds, as it was when it was written."""
    saved = checkpoints.load(path, identity)
    record.history.extend(saved.history)

    def state(point: checkpoints.Point, fallback: lm.State | None = None) -> lm.State:
        reduced = scaling.reduce(point.gram, request.scaling)
        theta = np.array(point.theta)
        return lm.restored(
            request.search, theta, reduced, point.damping, saved.passes, point.accepted, point.counts,
            fallback, request.options, None if point.largest is None else np.array(point.largest),
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
        "min_lag",
        "loss",
    )
    given += ("precision",)
    names = request.search.names
    return {
        "data": request.scan.digest,
        "bins": list(request.scan.bins),
        "frames": list(request.scan.frames),
        "chunks left out": [list(chunk) for chunk in request.scan.left_out],
        **{key: request.config[key] for key in given},
        "free": [n for n, free in zip(names, request.search.free, strict=True) if free],
        "start": [None if np.isnan(v) else float(v) for v in request.search.start],
        "lower": request.search.lower.tolist(),
        "upper": request.search.upper.tolist(),
        "starts": request.starts,
        "code of the model": request.problem.model.digest,
        # other versions round differently, and the bits would not be those of one run
        **{f"version of {name}": version(name) for name in ("homodyne-dask", "jaxlib", "numpy")},
    }
