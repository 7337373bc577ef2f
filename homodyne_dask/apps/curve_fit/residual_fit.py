"""A least-squares fit of a `ResidualModel` to any dataset, with the sweep and the solver of `fit`."""

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from distributed import Client
from jaxtyping import Bool, Float

from homodyne_dask.apps.curve_fit.curve_fit_result import CurveFit
from homodyne_dask.apps.curve_fit.points import Points, points_of
from homodyne_dask.apps.curve_fit.residual_checks import check_residual
from homodyne_dask.apps.curve_fit.residual_kernel import POINTS_PER_STEP, columns_gram
from homodyne_dask.cluster.local import require_client, workers_of
from homodyne_dask.cluster.workers import this_process
from homodyne_dask.errors import OptionError, require_count, require_type
from homodyne_dask.fitting.callbacks import require_callbacks
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.fit_observer import FitDescription, FitObserver
from homodyne_dask.fitting.minimize import FitRecord, SolverRequest, minimize
from homodyne_dask.fitting.run import followed, run, run_to_completion
from homodyne_dask.kernels.gram import Gram, merge_tree
from homodyne_dask.kernels.problem import SUM_ROUNDING
from homodyne_dask.models.parameters import search
from homodyne_dask.models.user_defined import ResidualModel
from homodyne_dask.results._xarray_internals import in_memory
from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import determined_at
from homodyne_dask.solver.normal_matrix import eigensystem
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.sweep.blocks import NO_COST, Cost
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.plan import Device, Plan, make_plan, workers_here
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import AtTheta, Directions, Task

OPTIONS = lm.Options(
    decrement=1e-10, relative_step=1e-10, relative_rounding=1e-9, trust_region=True
)
"""More than the eight digits that are promised; with a trust region, because the user's initial values
may be far from the optimum: of the 54 fits of NIST StRD 53 end at the certified values, 49 without it."""


class ResidualContext(NamedTuple):
    """The arguments common to all tasks of a residual fit."""

    points: Points
    model: ResidualModel
    budget: int
    """Bytes of columns a worker process may keep."""


def residuals_of(context: ResidualContext, run: Run, at: AtTheta | Directions) -> tuple[Gram, Cost]:
    """Return the merged Gram of the residuals of a run of chunks."""
    points, vectors = context.points, at.vectors if isinstance(at, Directions) else []
    rows = np.stack([at.theta, *vectors])
    leaves = [
        columns_gram(context.model, rows, points.columns(number, context.budget))
        for number, _ in run.tiles
    ]
    return merge_tree(leaves), NO_COST


RESIDUALS = Task(residuals_of, "residuals")


def fit(
    data: Any,
    model: ResidualModel,
    *,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    absolute_sigma: bool = True,
    client: Client | None = None,
    max_passes: int = 1000,
    callbacks: Sequence[Callback] = (),
) -> CurveFit:
    """Fit a model made by `hd.model` to a dataset, or to the path of a Zarr store.

    absolute_sigma: residuals are divided by their standard deviations; if False, their scatter gives it.
    client, callbacks: as for scans. max_passes: maximum number of passes over the data. Raises a
    HomodyneDaskError for mistakes.
    """
    record = FitRecord(time.perf_counter())
    require_count("max_passes", max_passes)
    require_type("absolute_sigma", absolute_sigma, bool, "True or False")
    require_callbacks(callbacks)
    model = model.current()
    # nothing is eliminated: y is the residual, f is 0
    scaling = Scaling("fixed", fixed_params=np.array([[0.0, 1.0]]))
    chosen = search(model.parameters, initial, fixed, bounds)
    solver = replace(OPTIONS, max_passes=max_passes)
    request = SolverRequest(chosen, solver, scaling, SUM_ROUNDING["float64"])
    for name, value in zip(chosen.names, chosen.start, strict=True):
        if np.isnan(value):
            raise OptionError(f"{name} has no initial value: give initial={{{name!r}: ...}}")
    points = points_of(data, model.variables)
    check_residual(model, chosen.start, points.columns(0)[:, :POINTS_PER_STEP])
    plan = _plan(points, model, client)
    description = FitDescription(
        f"{model.name} fitted to {plan.layout.pairs:,} points",
        chosen.names,
        tuple(p.unit for p in model.parameters),
        errors=lambda _: np.full(model.size, np.nan),
        free=int(chosen.free.sum()),
    )
    context = ResidualContext(points, model, plan.budget)
    passes = partial(_passes, context, request, plan, absolute_sigma)
    return run_to_completion(run(passes, description, plan, client, callbacks, record))


def _passes(
    context: ResidualContext,
    request: SolverRequest,
    plan: Plan,
    absolute: bool,
    client: Client | None,
    observer: FitObserver,
    record: FitRecord,
) -> Generator[lm.State, None, CurveFit]:
    threads = plan.workers.threads
    sweep = observer.observed(Sweep(context, plan.layout, plan.tasks, client, threads, RESIDUALS))
    start = lm.Trial(request.search.start)
    state = yield from followed(minimize(request, sweep, lambda _: start, record), observer, record)
    result = _result(context.model, request, sweep, state, absolute)
    observer.ended(state.outcome, result.findings, state.theta, result.stderr)
    return result


def _plan(points: Points, model: ResidualModel, client: Client | None) -> Plan:
    require_client(client)
    layout = points.layout
    in_process = all(in_memory(points.dataset, name) for name in points.variables)
    if in_process and client is not None:
        raise OptionError(
            "the data are in the memory of this process, where workers cannot read them: leave client out, "
            "or write them with to_zarr and give the path"
        )
    if client is None:
        workers = this_process(layout.blocks) if in_process else workers_here(layout)
    else:
        workers = workers_of(client)
    device = Device("cpu", "residuals of other data than scans")
    return make_plan(layout, workers, model.name, model.size, 1, device=device)


def _result(
    model: ResidualModel, request: SolverRequest, sweep: Sweep, state: lm.State, absolute: bool
) -> CurveFit:
    """Return the result of a fit; its covariance takes one more pass."""
    search, reduced = request.search, state.reduced
    inverse = _inverse(sweep, state, search.free_inside_bounds(state.theta))
    freedom = reduced.ndata - int(search.free.sum())
    redchi = reduced.chisqr / freedom if freedom > 0 else np.nan
    scale = 1.0 if absolute else redchi
    unknown = determined_at(search, state).undetermined
    return CurveFit(
        names=search.names,
        popt=state.theta.copy(),
        pcov=None if inverse is None or np.isnan(scale) else inverse * scale,
        outcome=state.outcome,
        chisqr=reduced.chisqr,
        redchi=redchi,
        ndata=reduced.ndata,
        passes=state.passes,
        findings=Findings(finding("undetermined", names) for names in unknown),
        model=model.name,
        units=tuple(p.unit for p in model.parameters),
        compilations=sweep.compilations(),
    )


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
    scaled = eigensystem(H)
    if not scaled.above_rounding(state.reduced.relative_hessian_rounding[moved]).all():
        return None
    n = int(moved.sum())
    directions = np.zeros((len(moved), len(moved)))
    directions[np.flatnonzero(moved), :n] = scaled.inverse_root
    gram = sweep.over(RESIDUALS, Directions(state.theta, directions))
    nearly_one = gram.moments[0, 3 : 3 + n, 3 : 3 + n]
    inverse = directions[:, :n] @ np.linalg.solve(nearly_one, directions[:, :n].T)
    inverse[~moved] = inverse[:, ~moved] = np.nan
    return inverse
