"""The callbacks of a fit, and its observer, which turns its steps into events for them."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.metadata import EntryPoint
from itertools import product
from logging import INFO
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import require_function, require_type
from homodyne_dask.fitting import events
from homodyne_dask.plugins import loaded, offered_in, passed_over, unusable
from homodyne_dask.solver import levenberg_marquardt as lm

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.kernels.gram import AnyGram, Gram
    from homodyne_dask.results.data.findings import Findings
    from homodyne_dask.sweep.plan import Plan
    from homodyne_dask.sweep.sweep import Sweep
    from homodyne_dask.sweep.tasks import Report, Task


LOG = logging.getLogger(__name__)
GROUP = "homodyne_dask.callbacks"
PAGE = "page"
PAIRS_FOR_PAGE = 4_000_000
"""Fewest pairs of a fit without a client that has a page: others end before anybody opens it."""
Subscribe = Callable[["Client | None"], events.Subscriber | None]
"""Called as a fit begins, with its Dask client; returns None for a fit that it does not follow."""


def subscribers(client: "Client | None", pairs: int) -> list[events.Subscriber]:
    following: list[events.Subscriber] = []
    for point in offered_in(GROUP):
        if point.name == PAGE and client is None and pairs < PAIRS_FOR_PAGE:
            continue
        with passed_over(point):
            subscriber = loaded(point, callable, "a function")(client)
            if not isinstance(subscriber, events.Subscriber | None):
                raise unusable(point, f"it returned {type(subscriber).__name__}, not a Subscriber")
            if subscriber is not None:
                following.append(subscriber._replace(callback=_guarded(point, subscriber.callback)))
    return following


def show_on_page(client: "Client", seen: Sequence[events.Event]) -> None:
    for point in offered_in(GROUP):
        if point.name == PAGE:
            with passed_over(point):
                page = loaded(point, callable, "a function")(client)
                for event in seen:
                    page.callback(event)


def _guarded(point: EntryPoint, callback: events.Callback) -> events.Callback:
    """Return the callback of a package; once it has failed, it gets no further event of the fit."""
    works = True

    def pass_on(event: events.Event) -> None:
        nonlocal works
        if works:
            failed = True
            with passed_over(point):
                callback(event)
                failed = False
            works = works and not failed

    return pass_on


def require_callbacks(callbacks: Sequence[events.Callback]) -> None:
    require_type("callbacks", callbacks, list | tuple, "a list of functions")
    for n, callback in enumerate(callbacks):
        require_function(f"callbacks[{n}]", callback, needed=True)


def log_callback() -> events.Callback:
    began = 0.0

    def log(event: events.Event) -> None:
        nonlocal began
        match event:
            case events.FitPlanned():
                began = event.at
            case events.WorkerRefused():
                LOG.warning("fit %s: %s", event.fit, event.reason)
            case events.PassEnded():
                LOG.info("fit %s: %s", event.fit, events.pass_line(event, event.at - began))
            case events.FitEnded() | events.FitFailed():
                LOG.info("fit %s: %s", event.fit, event.sentence)

    return log


EVENT_INTERVAL = 0.4
"""Least time between two events of completed tiles [s]."""


@dataclass(frozen=True, kw_only=True)
class FitDescription(events.FitSubject):
    errors: Callable[[lm.State], Float[np.ndarray, " p"]]
    """Standard errors of theta at a state; NaN if unknown."""
    free: int


class FitObserver:
    def __init__(
        self,
        description: FitDescription,
        plan: "Plan",
        client: "Client | None",
        callbacks: Sequence[events.Callback] = (),
        refused: Sequence[str] = (),
    ) -> None:
        self.description, self.refused = description, refused
        registered = subscribers(client, plan.layout.pairs)
        subscribed = [subscriber.callback for subscriber in registered]
        self.callbacks = [log_callback(), *subscribed, *callbacks]
        self.silent = len(self.callbacks) == 1 and not LOG.isEnabledFor(INFO)
        """Whether nobody sees the state of a pass, whose errors take time."""
        self.fit = os.urandom(3).hex()
        self.n_refused = 0
        self.totals = {"pairs_total": 0, "tiles_total": 0, "tiles_skipped": 0}
        self.done: dict[int, int] = {}
        """Completed passes at each resolution, including those before a resume."""
        self.clocks = time.time(), time.monotonic()
        """Both when the fit began: whoever sets the clock of the machine changes no duration."""
        self.pass_began = self.clocks[0]
        self.phase = ""
        """What the fit does after its last step; passes have numbers before."""
        self._call_callbacks(
            events.FitPlanned(
                fit=self.fit,
                at=self.clocks[0],
                where=plan.workers.in_words + (f", on {plan.device.gpus}" if plan.gpus else ""),
                pairs=plan.layout.pairs,
                datum=plan.layout.datum,
                bins=plan.bins,
                page=next((subscriber.page for subscriber in registered if subscriber.page), ""),
                **{
                    field.name: getattr(description, field.name)
                    for field in fields(events.FitSubject)
                },
            )
        )

    def emit(self, event: events.Event) -> None:
        """Pass an event to the callbacks, after those of workers that were refused meanwhile."""
        for untimed in (*self._new_refusals(), event):
            self._call_callbacks(replace(untimed, at=self.now()))

    def _call_callbacks(self, event: events.Event) -> None:
        """Call the callbacks; what one raises ends the fit, of which only the others learn."""
        for callback in tuple(self.callbacks):
            try:
                callback(event)
            except BaseException:  # whatever it is, Ctrl-C too: it is passed on
                self.callbacks.remove(callback)
                raise

    def now(self) -> float:
        return self.clocks[0] + time.monotonic() - self.clocks[1]

    def _new_refusals(self) -> list[events.WorkerRefused]:
        reasons = self.refused[self.n_refused :]
        self.n_refused += len(reasons)
        return [events.WorkerRefused(fit=self.fit, reason=reason) for reason in reasons]

    def observed(self, sweep: "Sweep") -> "Sweep":
        unobserved = sweep.execute

        def execute(
            sweep: "Sweep", task: "Task[Any]", argument: Any
        ) -> "Iterator[tuple[int, AnyGram, Report]]":
            tiles = sweep.layout.blocks
            self.start_pass(task.label, sweep.factor, tiles)
            emitted, done = time.perf_counter(), {"done": 0, "pairs": 0, "bytes": 0}
            for n, gram, report in unobserved(sweep, task, argument):
                tiles_of_task = len(sweep.tasks[n].tiles)
                skipped = report.cost.blocks - report.cost.read
                read = (tiles_of_task - skipped) * sweep.layout.block_bytes
                self._count(done, tiles_of_task, gram, read, skipped)
                if done["done"] == tiles or time.perf_counter() - emitted > EVENT_INTERVAL:
                    emitted = time.perf_counter()
                    self.emit(events.TilesDone(fit=self.fit, **done, **self.totals))
                yield n, gram, report

        return replace(sweep, execute=execute)

    def start_pass(self, label: str | None = None, factor: int = 1, tiles: int = 1) -> None:
        means = f" over {factor}×{factor} means" if factor > 1 else ""
        name = f"pass {label}{means}"
        if label is None:
            number = self.done.get(factor, 0) + 1
            name = self.phase or f"pass {number}{means or ' over all data'}"
        self.pass_began = self.now()
        self.emit(events.PassStarted(fit=self.fit, name=name, factor=factor, tiles=tiles))

    def end_pass(self, gram: "Gram") -> None:
        done = {"done": 0, "pairs": 0, "bytes": 0}
        self._count(done, 1, gram)
        self.emit(events.TilesDone(fit=self.fit, **done, **self.totals))

    def _count(
        self, done: dict[str, int], tiles: int, gram: "AnyGram", read: int = 0, skipped: int = 0
    ) -> None:
        pairs = int(gram.pairs.sum())
        for key, number in zip(done, (tiles, pairs, read), strict=True):
            done[key] += number
        for key, number in zip(self.totals, (pairs, tiles, skipped), strict=True):
            self.totals[key] += number

    def state(self, state: lm.State, factor: int = 1, *, resumed: bool = False) -> None:
        self.done[factor] = state.passes
        if self.silent:
            return
        self.emit(
            events.PassEnded(
                fit=self.fit,
                number=state.passes,
                factor=factor,
                chisqr=float(state.reduced.chisqr),
                redchi=state.reduced.redchi(self.description.free),
                distance=float(state.decrement),
                damping=float(state.damping),
                accepted=bool(state.accepted),
                seconds=self.now() - self.pass_began,
                theta=tuple(state.theta.tolist()),
                stderr=tuple(self.description.errors(state).tolist()),
                resumed=resumed,
                state=state,
            )
        )

    def start_phase(self, phase: str) -> None:
        self.phase = phase
        self.emit(events.PhaseStarted(fit=self.fit, phase=phase))

    def ended(
        self,
        outcome: lm.Outcome,
        findings: "Findings",
        theta: Float[np.ndarray, " p"],
        stderr: Float[np.ndarray, " p"],
        **fields_of_scan: Any,
    ) -> None:
        """Emit the end of the fit; fields_of_scan: those of `FitEnded` that only a fit of a scan has."""
        fields = {"sentence": outcome.value, "findings": findings, "theta": tuple(theta.tolist())}
        fields |= {"stderr": tuple(stderr.tolist())} | fields_of_scan
        self.emit(events.FitEnded(fit=self.fit, outcome=outcome.name, **fields))

    @contextmanager
    def failures_emitted(self) -> Iterator[None]:
        try:
            yield
        except BaseException as e:  # Ctrl-C and a loop that is left end a fit, too
            outcome, sentence = "FAILED", f"failed: {e}"
            if isinstance(e, KeyboardInterrupt | GeneratorExit):
                outcome, sentence = "INTERRUPTED", lm.Outcome.INTERRUPTED.value
            failed = events.FitFailed(fit=self.fit, outcome=outcome, sentence=sentence, error=e)
            last = [replace(event, at=self.now()) for event in (*self._new_refusals(), failed)]
            for event, callback in product(last, self.callbacks):
                try:
                    callback(event)
                except Exception as failure:  # it must not hide why the fit failed
                    LOG.warning("a callback also failed: %s: %s", type(failure).__name__, failure)
            raise
