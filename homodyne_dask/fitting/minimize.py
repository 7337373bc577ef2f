"""The minimization of χ²: one state per pass over the data, recorded and saved in a checkpoint."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from homodyne_dask.errors import OptionError, require_type
from homodyne_dask.machine.running_code import OUR_CODE, code_digest, version_of
from homodyne_dask.models.parameters import Search
from homodyne_dask.request.options import CHANGEABLE, FitOptions
from homodyne_dask.request.request import Request
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.files import no_room, path_of

if TYPE_CHECKING:
    from homodyne_dask.kernels.gram import Gram
    from homodyne_dask.sweep.sweep import Passes


@dataclass
class FitRecord:
    started: float
    on_level: Callable[[lm.State, int], None] = lambda *_: None
    """Called with each state of a pass over block means and the level of the means."""
    on_phase: Callable[[str], None] = lambda _: None
    history: list[dict[str, Any]] = field(default_factory=list)
    minima: list[dict[str, Any]] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=lambda: {"passes": 0.0})
    """Seconds."""
    last_pass: float = 0.0

    def add_pass(self, seconds: float, theta: np.ndarray, chisqr: float, passes: "Passes") -> None:
        self.timings["passes"] += seconds
        finite, cost = chisqr if np.isfinite(chisqr) else None, passes.cost
        entry = {"seconds": seconds, "theta": theta.tolist(), "chisqr": finite}
        if cost.blocks:  # the share of sub-blocks that were computed, and of blocks that were read
            entry["computed"] = cost.computed / max(cost.sub_blocks, 1)
            entry["read"] = cost.read / cost.blocks
        if passes.peak:
            entry["peak_bytes"] = passes.peak
        if number := os.environ.get("SLURM_JOB_ID"):  # 123, or 123.2 after its second restart
            restarts = os.environ.get("SLURM_RESTART_COUNT")
            entry["job"] = f"{number}.{restarts}" if restarts else number
        self.history.append(entry)


class SolverRequest(NamedTuple):
    """The part of a `Request` that the solver needs, of a fit without a scan."""

    search: Search
    solver: lm.SolverOptions
    scaling: Scaling
    sum_rounding: float


@dataclass
class RecordedPasses:
    """The passes of a fit: the reduced problem at a trial, of which the record keeps time and χ²."""

    request: Request | SolverRequest
    passes: "Passes"
    record: FitRecord
    gram_at: "Callable[..., Gram]"

    def __call__(self, trial: lm.Trial) -> ReducedProblem:
        began, request = time.perf_counter(), self.request
        gram = self.gram_at(trial.theta, trial.linear_params)
        seconds = time.perf_counter() - began
        prior = request.search.prior_terms(trial.theta)
        reduced = reduce(gram, request.scaling, request.sum_rounding, prior, trial.linear_params)
        self.record.add_pass(seconds, trial.theta, reduced.chisqr, self.passes)
        return reduced


def minimize(
    request: Request | SolverRequest,
    passes: "Passes",
    find_start: Callable[[FitRecord], lm.Trial],
    record: FitRecord,
    checkpoint: "CheckpointFile | None" = None,
    resume: bool = False,
    gram_at: "Callable[..., Gram] | None" = None,
) -> Iterator[lm.State]:
    """Yield one state per pass; the last one has the outcome.

    find_start: not called where the fit is resumed; it records the levels of block means. gram_at: makes a
    pass, where parts of the data have their own parameters. A fit that ends above χ² of the initial values
    of a user goes on from there; where these are of all parameters and were no trial, a last pass tells, or
    a few under a loss.
    """
    evaluate = RecordedPasses(request, passes, record, gram_at or passes.gram)
    search, options, before = request.search, request.solver, len(record.history)
    resumed = None
    if checkpoint is not None and resume:
        resumed = _resumed(request, checkpoint, record)
        record.timings["start"] = time.perf_counter() - record.started
        yield resumed
        states = lm.iterate_from(search, evaluate, resumed, options)
    else:
        start = find_start(record)
        if len(record.history) > before:
            # at the optimum of the means damping would only slow the weak directions
            options = replace(options, damping=0.0)
        states = lm.iterate(search, evaluate, start, options)
    for state in _with_initial_values(evaluate, states, resumed, before):
        record.history[-1] |= {
            "pass": state.passes,
            "damping": state.damping,
            "accepted": state.accepted,
            "decrement": state.decrement if np.isfinite(state.decrement) else None,
        }
        if checkpoint is not None:
            checkpoint.save(state, record)
        yield state


def _with_initial_values(
    evaluate: RecordedPasses, states: Iterator[lm.State], end: lm.State | None, before: int
) -> Iterator[lm.State]:
    """Yield states, then those from the initial values of a user, if no trial was there and χ² is lower.

    end: the last state where none follows. before: the length of the history when the fit began.
    """
    for end in states:
        yield end
    assert end is not None
    request, record = evaluate.request, evaluate.record
    passed, theta = len(record.history), request.search.inside(request.search.start)
    was_a_trial = any(entry.get("theta") == theta.tolist() for entry in record.history[before:])
    if was_a_trial or not np.isfinite(theta).all():
        return
    record.on_phase("comparing with the initial values")
    linear_params, lower = None, None
    if end.reduced.linear_step is not None:  # to begin with, those of squares
        linear_params = reduce(evaluate.gram_at(theta, None), request.scaling).linear_params
    trial = lm.Trial(theta, linear_params)
    for lower in lm.iterate_below(request.search, evaluate, end, trial, request.solver):
        yield lower
    if lower is None:
        del record.history[passed:]


def checkpoint_path(checkpoint: str | Path | None, resume: bool) -> Path | None:
    require_type("resume", resume, bool, "True or False")
    if checkpoint is None:
        if resume:
            raise OptionError("resume needs the checkpoint to resume from: give checkpoint=PATH")
        return None
    path = path_of("checkpoint", checkpoint)
    if not resume:
        checkpoints.check_checkpoint_target(path)
    return path


class CheckpointFile(NamedTuple):
    path: Path
    identity: dict[str, Any]

    def save(self, state: lm.State, record: FitRecord) -> None:
        if not state.reduced.finite:
            return
        best = state.best and checkpoints.saved_state(state.best)
        saved = checkpoints.Checkpoint(
            self.identity, state.passes, checkpoints.saved_state(state), best,
            record.history, record.minima,
        )  # fmt: skip
        try:
            checkpoints.save(self.path, saved)
        except OSError as e:
            earlier_exists = checkpoints.checkpoint_exists(self.path)
            way_out = "fit again with --resume: the checkpoint of an earlier pass is kept"
            raise OptionError(
                f"the checkpoint {self.path} cannot be written: {no_room(e, self.path)}, then "
                f"{way_out if earlier_exists else 'fit again, or give another path'}"
            ) from e


def _resumed(
    request: Request | SolverRequest, checkpoint: CheckpointFile, record: FitRecord
) -> lm.State:
    saved, bins = checkpoints.load(*checkpoint), checkpoint.identity["bins"]
    record.history.extend(saved.history)
    record.minima = list(saved.minima)

    def restored(state: checkpoints.SavedState, best: lm.State | None = None) -> lm.State:
        n_bins, p = len(state.gram.pairs), len(request.search.names)
        if len(state.theta) != p or n_bins != len(bins):
            raise ValueError(f"{len(state.theta)} parameters and {n_bins} bins")
        options = request.search, request.scaling, request.sum_rounding, saved.passes, best
        return lm.with_outcome(
            request.search, checkpoints.restored_state(state, *options), request.solver
        )

    with checkpoints.foreign_content(checkpoint.path):
        return restored(saved.state, saved.best and restored(saved.best))


def identity(request: Request) -> dict[str, Any]:
    options, search, scan = request.options, request.search, request.scan
    model = request.problem.model

    def numbers(bounds: np.ndarray) -> list[float | str]:  # JSON holds no infinite number
        return [bound if np.isfinite(bound) else str(bound) for bound in bounds.tolist()]

    return {
        "data": scan.digest,
        "bins": list(scan.bins),
        "frames": list(scan.frames),
        "excluded frames": [list(span) for span in scan.excluded_frames],
        "excluded chunks": [list(chunk) for chunk in scan.excluded],
        "model": model.name,
        "gap_angstrom": request.gap_angstrom,
        **{
            o.name: getattr(options, o.name)
            for o in FitOptions.options().values()
            if CHANGEABLE not in o.use
        },
        "free": [n for n, free in zip(search.names, search.free, strict=True) if free],
        "start": [None if np.isnan(v) else float(v) for v in search.start],
        "lower": numbers(search.lower),
        "upper": numbers(search.upper),
        # sums on a GPU differ in the last bits
        **({"device": "gpu"} if request.notes.get("computed_on", {}).get("name") == "gpu" else {}),
        "code of the model": model.digest,
        "power laws of the model": [list(law) for law in model.power_laws],
        # other versions round differently: the bits would not be those of an uninterrupted fit
        **{f"version of {name}": version_of(name) for name in ("homodyne-dask", "jaxlib", "numpy")},
        f"version of the {OUR_CODE}": code_digest(),
    }
