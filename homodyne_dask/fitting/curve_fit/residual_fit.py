"""A least-squares fit of a `ResidualModel` to any dataset, with the sweep, solver and checkpoint of `fit`."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributed import Client
from jaxtyping import Bool, Float

from homodyne_dask.cluster.local import local_cluster, require_client, workers_of
from homodyne_dask.cluster.workers import local_workers, this_process, workers_asked
from homodyne_dask.errors import OptionError, require_count, require_type
from homodyne_dask.fitting.callbacks import require_callbacks
from homodyne_dask.fitting.curve_fit.points import Points, columns, digest, points_layout, points_of
from homodyne_dask.fitting.events import Callback, FitEnded
from homodyne_dask.fitting.fit_observer import FitDescription, FitObserver
from homodyne_dask.fitting.minimize import (
    CheckpointFile,
    FitRecord,
    StartingPoint,
    checkpoint_path,
    minimize_from,
)
from homodyne_dask.kernels.backend import compilations
from homodyne_dask.kernels.gram import Gram, merge_tree
from homodyne_dask.kernels.problem import SUM_ROUNDING
from homodyne_dask.kernels.residual_kernel import check_residual, columns_gram
from homodyne_dask.models.parameters import Search, search
from homodyne_dask.models.user_defined import ResidualModel
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.eigendirections import above_rounding
from homodyne_dask.solver.identifiability import determined_at
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.processes import OUR_CODE, code_digest, set_allocator_thresholds
from homodyne_dask.sweep.admission import checked_workers
from homodyne_dask.sweep.blocks import NO_COST
from homodyne_dask.sweep.layout import IN_PROCESS_PAIRS, Run
from homodyne_dask.sweep.plan import Device, Plan, make_plan
from homodyne_dask.sweep.sweep import Sweep, sweep_over
from homodyne_dask.sweep.tasks import AtTheta, Directions, Report, Task, report_of
from homodyne_dask.text import joined_with_and

OPTIONS = lm.Options(
    decrement=1e-10, relative_step=1e-10, relative_rounding=1e-9, trust_region=True
)
"""More than the eight digits that are promised; with a trust region, because the user's initial values
may be far from the optimum: of the 54 fits of NIST StRD 53 end at the certified values, 49 without it."""
MAX_CACHED_BYTES = 64_000_000
"""Most bytes of columns that are cached of data in memory."""
_NO_SCALING = Scaling("fixed", fixed_params=np.array([[0.0, 1.0]]))
"""Nothing is eliminated: y is the residual, f is 0."""


class ResidualContext(NamedTuple):
    """The arguments common to all tasks of a residual fit."""

    points: Points
    model: ResidualModel
    budget: int
    """Bytes of columns a worker process may keep."""


def residuals_of(
    context: ResidualContext, run: Run, at: AtTheta | Directions
) -> tuple[Gram, Report]:
    """Return the merged Gram of the residuals of a run of chunks."""
    set_allocator_thresholds()
    began, before = time.perf_counter(), compilations()
    points, vectors = context.points, at.vectors if isinstance(at, Directions) else []
    rows = np.stack([at.theta, *vectors])
    leaves = [
        columns_gram(context.model, rows, columns(points, number, context.budget), points.step)
        for number, _ in run.tiles
    ]
    return merge_tree(leaves), report_of(began, before, NO_COST)


RESIDUALS = Task(residuals_of, "residuals")


@dataclass(frozen=True)
class ResidualRequest:
    """A checked request for a fit of residuals."""

    points: Points
    model: ResidualModel
    search: Search
    solver: lm.Options
    absolute_sigma: bool
    """Residuals are divided by their σ; if False, their scatter gives it."""
    scaling: Scaling = _NO_SCALING

    @property
    def sum_rounding(self) -> float:
        """Accuracy of the sums."""
        return SUM_ROUNDING["float64"]


_REAL_FIELDS = ("start", "lower", "upper")


def _identity(client: Client | None, request: ResidualRequest) -> dict[str, object]:
    search = request.search
    return {
        "data": digest(request.points, client),
        "model": request.model.name,
        "code of the model": request.model.digest,
        "variables": list(request.model.variables),
        "parameters": list(search.names),
        "free": search.free.tolist(),
        # bounds may be infinite, which JSON cannot hold
        **{name: [repr(float(v)) for v in getattr(search, name)] for name in _REAL_FIELDS},
        **{f"version of {name}": version(name) for name in ("homodyne-dask", "jaxlib", "numpy")},
        f"version of the {OUR_CODE}": code_digest(),
    }


def prepare_residual_fit(
    data: Any,
    model: ResidualModel,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    absolute_sigma: bool = True,
    max_passes: int = 1000,
) -> ResidualRequest:
    """Return the checked fit; raises a HomodyneDaskError for mistakes."""
    code_digest()  # of the files that are loaded now
    require_count("max_passes", max_passes)
    require_type("absolute_sigma", absolute_sigma, bool, "True or False")
    model = model.current()
    chosen = search(model.parameters, initial, fixed, bounds)
    missing = np.array(chosen.names)[np.isnan(chosen.start)]
    if len(missing):
        raise OptionError(
            f"{missing[0]} has no initial value: give initial={{{missing[0]!r}: ...}}"
        )
    points = points_of(data, model.variables)
    check_residual(model, chosen.start, points.columns(0)[:, : points.step])
    options = replace(OPTIONS, max_passes=max_passes)
    return ResidualRequest(points, model, chosen, options, absolute_sigma)


def plan_residual_fit(
    request: ResidualRequest, client: Client | None, asked: int | str | None = None
) -> Plan:
    """Return the plan for the client's workers or, without a client, for this process or new workers.

    asked: workers of a hypothetical cluster, for which it is then.
    """
    cut: Any = points_layout(request.points)
    require_client(client)
    if cut.in_memory and (client is not None or asked is not None):
        raise OptionError(
            f"the data are in the memory of this process, where workers cannot read them: leave "
            f"{'client' if asked is None else 'workers'} out, or write them with to_zarr and give the path"
        )
    if asked is not None:
        workers = workers_asked(asked, client)
    elif client is not None:
        workers = workers_of(client)
    else:
        here = cut.in_memory or cut.pairs < IN_PROCESS_PAIRS
        workers = this_process() if here else local_workers()
    device = Device("cpu", "residuals of other data than scans")
    name, parameters = request.model.name, request.model.size
    return make_plan(cut, workers, name, parameters, 1, device=device)


class ResidualOutput(NamedTuple):
    """The output of a residual fit."""

    state: lm.State
    covariance: Float[np.ndarray, "p p"] | None
    """NaN for parameters that are fixed or at a bound; None where the data do not determine all of them, or
    there are not more points than parameters."""
    redchi: float
    undetermined: tuple[str, ...]
    """Sentences on what the data do not determine."""
    history: list[dict[str, Any]]
    timings: dict[str, float]
    compilations: dict[str, int]


def iterate(
    request: ResidualRequest,
    client: Client | None,
    checkpoint: str | Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
) -> Generator[lm.State, None, ResidualOutput]:
    """Yield the state after each pass and return the output; see `fit` for the options."""
    started = time.perf_counter()
    path = checkpoint_path(checkpoint, resume)
    require_callbacks(callbacks)
    plan = plan_residual_fit(request, client)
    with (
        local_cluster() if plan.workers.to_start else nullcontext(client) as connected,
        nullcontext(()) if connected is None else checked_workers(connected) as refused,
    ):
        budget = plan.layout.resident_bytes if plan.resident else 0
        if request.points.in_memory:  # not kept twice
            budget = min(budget, MAX_CACHED_BYTES)
        context = ResidualContext(request.points, request.model, budget)
        observer = FitObserver(_description(request), plan, connected, callbacks, refused)
        with observer.failures_emitted():
            sweep = observer.observed(sweep_over(context, plan, RESIDUALS, connected))
            start = StartingPoint(request.search.start, None, [])
            record = FitRecord(started)
            file = None if path is None else CheckpointFile(path, _identity(connected, request))
            if file is not None:
                observer.callbacks.prepend(file.callback(record))
            state, resumed = None, file if resume else None
            for state in minimize_from(lambda _: start, request, sweep, resumed, record):
                observer.state(state, resumed=resumed is not None)
                resumed = None
                yield state
            assert state is not None  # there is at least one pass
            output = _output(request, sweep, state, record)
            record.timings["total"] = time.perf_counter() - started
            errors = stderr(output.covariance, request.model.size)
            observer.emit(
                FitEnded(
                    fit=observer.fit,
                    outcome=state.outcome.name,
                    sentence=state.outcome.value,
                    reservations=output.undetermined,
                    theta=tuple(state.theta.tolist()),
                    stderr=tuple(errors.tolist()),
                )
            )
    record.timings["total"] = time.perf_counter() - started
    return output


def _output(
    request: ResidualRequest, sweep: Sweep, state: lm.State, record: FitRecord
) -> ResidualOutput:
    """Return the output of a fit; its covariance takes one more pass."""
    inverse = _inverse(sweep, state, request.search.free_inside_bounds(state.theta))
    freedom = state.reduced.ndata - int(request.search.free.sum())
    redchi = state.reduced.chisqr / freedom if freedom > 0 else np.nan
    scale = 1.0 if request.absolute_sigma else redchi
    return ResidualOutput(
        state=state,
        covariance=None if inverse is None or np.isnan(scale) else inverse * scale,
        redchi=redchi,
        undetermined=tuple(
            f"the data do not determine {joined_with_and(names)}: "
            f"fix {'one of them' if len(names) > 1 else 'it'}, or give bounds"
            for names in determined_at(request.search, state).undetermined
        ),
        history=record.history,
        timings=record.timings,
        compilations=sweep.compilations(),
    )


def stderr(covariance: Float[np.ndarray, "p p"] | None, size: int) -> Float[np.ndarray, " p"]:
    """Return the square roots of the diagonal of a covariance; NaN where it is unknown."""
    return np.full(size, np.nan) if covariance is None else np.sqrt(np.diag(covariance))


def _description(request: ResidualRequest) -> FitDescription:
    model = request.model
    units, unknown = tuple(p.unit for p in model.parameters), np.full(model.size, np.nan)
    title = f"{model.name} fitted to {request.points.number:,} points"
    return FitDescription(title, request.search.names, units, lambda _: unknown)


def _inverse(
    sweep: Sweep, state: lm.State, moved: Bool[np.ndarray, " p"]
) -> Float[np.ndarray, "p p"] | None:
    """Return (JᵀJ)⁻¹ from one more pass, with derivatives along the eigenvectors of JᵀJ.

    Along eigenvectors divided by the square roots of their eigenvalues, JᵀJ is the identity up to the
    rounding of the first sums: the inverse is as accurate as one from an orthogonal factorization of J.
    """
    if not (moved.any() and state.reduced.finite):
        return None
    H = state.reduced.hessian[np.ix_(moved, moved)]
    size = np.sqrt(np.diag(H))
    if not (size > 0).all():
        return None
    values, vectors = np.linalg.eigh(H / np.outer(size, size))
    if not above_rounding(values, vectors, state.reduced.relative_hessian_rounding[moved]).all():
        return None
    n = int(moved.sum())
    directions = np.zeros((len(moved), len(moved)))
    directions[np.flatnonzero(moved), :n] = vectors / np.sqrt(values) / size[:, None]
    gram = sweep.over(RESIDUALS, Directions(state.theta, directions))
    nearly_one = gram.moments[0, 3 : 3 + n, 3 : 3 + n]
    inverse = directions[:, :n] @ np.linalg.solve(nearly_one, directions[:, :n].T)
    inverse[~moved] = inverse[:, ~moved] = np.nan
    return inverse
