"""Events of a running fit that callbacks receive, and the progress computed from them.

def log(event: hd.events.Event) -> None:
    match event:
        case hd.events.PassEnded(number=number, chisqr=chisqr):
            print(number, chisqr)

hd.fit(scan, "static", callbacks=[log])
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from homodyne_dask.assessment.assessment import NoiseOfStore
    from homodyne_dask.results.data.findings import Finding
    from homodyne_dask.results.result_classes import FitResult
    from homodyne_dask.solver.levenberg_marquardt import State

RUNNING = "RUNNING"


@dataclass(frozen=True)
class Pass:
    """A completed pass, at one trial step."""

    number: int
    """Counted from 1 at each resolution; a resumed fit continues the count."""
    factor: int
    """Frames averaged into one: 1 for all data, more for coarse passes."""
    chisqr: float
    redchi: float
    """Reduced χ²: over the degrees of freedom."""
    distance: float
    """Estimated distance to the minimum √(gᵀH⁻¹g/s²), in standard errors; inf if unknown."""
    damping: float
    accepted: bool
    seconds: float
    theta: tuple[float, ...]
    stderr: tuple[float, ...]
    """Best known standard errors at theta; for coarse passes those of the block means; NaN if unknown."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a fit."""

    fit: str
    """A random name of the fit."""
    at: float = field(default_factory=time.time)
    """Seconds since 1970, by the clock as it was when the fit began: differences are durations."""


@dataclass(frozen=True, kw_only=True)
class FitSubject:
    """What is fitted: its parameters, and its data."""

    title: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    store: str = ""
    """Path of the data; "" where they are in no store."""
    note: str = ""
    """What is to be known of the data before the fit."""


@dataclass(frozen=True, kw_only=True)
class FitPlanned(FitSubject, Event):
    """The data are opened, the plan is made and the workers are checked: the first event of a fit."""

    where: str
    """On which workers and device."""
    pairs: int
    datum: str
    """What these are: pairs of frames, or points."""
    bins: int
    page: str = ""
    """Address of the live page; "" if there is none."""


@dataclass(frozen=True, kw_only=True)
class WorkerRefused(Event):
    """A worker that joined does not meet the requirements, and gets no tasks."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """The fit does something else than stepping towards the minimum."""

    phase: str
    """As 'estimating the errors'."""


@dataclass(frozen=True, kw_only=True)
class PassStarted(Event):
    """A pass over the data begins."""

    name: str
    """As 'pass 3 over all data', or that of the phase."""
    factor: int
    """Frames averaged into one: 1 for all data, more for coarse passes."""
    tiles: int


@dataclass(frozen=True, kw_only=True)
class TilesDone(Event):
    """Tiles of the pass are completed: at most one event in 0.4 s, and one at the end of the pass."""

    done: int
    """Tiles of this pass that are completed."""
    pairs: int
    bytes: int
    """Decoded bytes of those of these tiles whose data were needed."""
    pairs_total: int
    """In all passes of the fit."""
    tiles_total: int
    tiles_skipped: int
    """Tiles whose data were not needed because f has decayed to zero."""


@dataclass(frozen=True, kw_only=True)
class PassEnded(Event, Pass):
    """A pass at a trial step has led to a new state of the solver."""

    resumed: bool = False
    """Whether the state is that of a checkpoint, computed before."""
    state: "State | None" = field(default=None, repr=False, compare=False)
    """That of the solver; None where the event came from another process."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a fit ended, or that it is still running, with its latest parameters."""

    outcome: str = RUNNING
    """Name of the `Outcome`."""
    sentence: str = "the fit is still running"
    findings: "tuple[Finding, ...]" = ()
    theta: tuple[float, ...] = ()
    stderr: tuple[float, ...] = ()
    """NaN if unknown."""
    low: tuple[float, ...] = ()
    """Lower end of the 95 % interval of each parameter (`FitResult.ci`); NaN if unknown."""
    high: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FitEnded(Ending, Event):
    """The fit has its result: the last event."""

    result: "FitResult | None" = field(default=None, repr=False, compare=False)
    """None where the event came from another process, and for data that are not scans."""
    noise: "NoiseOfStore | None" = field(default=None, repr=False, compare=False)
    """Returns that of the bins of the store, by their number there; None where too little is known of it."""


@dataclass(frozen=True, kw_only=True)
class FitFailed(Event):
    """The fit raised an error or was interrupted: the last event."""

    outcome: str
    """FAILED or INTERRUPTED."""
    sentence: str
    error: BaseException | None = field(default=None, repr=False, compare=False)
    """None where the event came from another process."""


Callback = Callable[[Event], None]
"""What receives the events of a fit, one at a time, in their order."""


class Subscriber(NamedTuple):
    """A callback that an installed package registers, instead of the user of a fit."""

    callback: Callback
    page: str = ""
    """Address of the page on which it shows the fit; "" for none."""


@dataclass(frozen=True)
class CurrentPass:
    """The pass in progress."""

    name: str
    factor: int
    tiles: int
    began: float
    done: int = 0
    pairs: int = 0
    bytes: int = 0
    last: float = 0.0
    """Time at which the latest tiles were completed."""


@dataclass(frozen=True, kw_only=True)
class Progress(Ending, FitPlanned):
    """Progress of a fit, as its events so far say; `at` is the time of the last one."""

    began: float
    seen: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When this process had it, by a clock that nobody sets [s]."""
    doing: str = "searching for initial values"
    now: CurrentPass | None = None
    done: tuple[Pass, ...] = ()
    rate: float = math.nan
    """Pairs per second in the current pass, or the last one."""
    byte_rate: float = math.nan
    pairs_total: int = 0
    tiles_total: int = 0
    tiles_skipped: int = 0
    refused: tuple[str, ...] = ()
    """Reasons why workers that joined were refused; on the page /fit also which workers were lost."""

    @property
    def running(self) -> bool:
        """Whether the fit is still running."""
        return self.outcome == RUNNING

    @property
    def passes(self) -> int:
        """Completed passes over all data, including those before a resume."""
        return max((ended.number for ended in self.done if ended.factor == 1), default=0)

    def seconds_left(self, at: float) -> float:
        """Return the expected remaining time of the current pass [s]; NaN if unknown."""
        if self.now is None:
            return math.nan
        share = self.now.done / max(self.now.tiles, 1)
        if share > 0:
            return max((self.now.last - self.now.began) / share - (at - self.now.began), 0.0)
        seconds = [ended.seconds for ended in self.done if ended.factor == self.now.factor]
        return max(seconds[-1] - (at - self.now.began), 0.0) if seconds else math.nan


_LATEST = ("pairs_total", "tiles_total", "tiles_skipped", *(field.name for field in fields(Ending)))
"""What progress takes from the latest event that has it."""


def on_progress(show: Callable[[Progress], None]) -> Callback:
    """Return a callback that calls a function with the progress of the fit after each event."""
    progress: Progress | None = None

    def update(event: Event) -> None:
        nonlocal progress
        progress = apply_event(progress, event)
        if progress is not None:
            show(progress)

    return update


def on_pass(call: Callable[[PassEnded], None]) -> Callback:
    """Return a callback that calls a function after each pass over all data."""

    def select(event: Event) -> None:
        if isinstance(event, PassEnded) and event.factor == 1:
            call(event)

    return select


def apply_event(before: Progress | None, event: Event) -> Progress | None:
    """Return the progress after one more event; None for a fit whose first event was not seen."""
    if isinstance(event, FitPlanned):
        return Progress(began=event.at, **vars(event))
    if before is None:
        return None
    progress = replace(before, at=event.at, seen=time.monotonic())
    match event:
        case PassStarted():
            now = CurrentPass(event.name, event.factor, event.tiles, event.at, last=event.at)
            return replace(progress, doing=event.name, now=now)
        case TilesDone() if progress.now is not None:
            tiles = {"done": event.done, "pairs": event.pairs, "bytes": event.bytes}
            now, took = replace(progress.now, **tiles, last=event.at), event.at - progress.now.began
            rate, byte_rate = (n / max(took, 1e-6) for n in (event.pairs, event.bytes))
            progress = replace(progress, now=now, rate=rate, byte_rate=byte_rate)
        case PassEnded():
            ended = Pass(**{field.name: getattr(event, field.name) for field in fields(Pass)})
            progress = replace(progress, done=(*progress.done, ended))
        case PhaseStarted():
            return replace(progress, doing=event.phase, now=None)
        case WorkerRefused():
            return replace(progress, refused=(*progress.refused, event.reason))
        case FitEnded() | FitFailed():
            progress = replace(progress, doing="ended", now=None)
    latest = {name: vars(event).get(name) for name in _LATEST}
    return replace(progress, **{name: value for name, value in latest.items() if value})


def pass_line(ended: Pass, elapsed: float) -> str:
    """Return a completed pass as a line: reduced χ², distance to the minimum in errors, time."""
    distance = f"{ended.distance:.2g}" if math.isfinite(ended.distance) else "-"
    words = f"{pass_name(ended.factor, ended.number):<26}reduced χ² {ended.redchi:<12.7g} distance"
    return f"{words} {distance:<9}{elapsed:7.1f} s" + ("" if ended.accepted else "   (rejected)")


def pass_name(factor: int, number: int) -> str:
    """Return the name of a pass: 'pass 3', or 'pass 2 over 4×4 means'."""
    return f"pass {number:3d}" + ("" if factor == 1 else f" over {factor}×{factor} means")
