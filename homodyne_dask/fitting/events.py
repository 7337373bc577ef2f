"""Progress of a running fit, built up from events: small dicts that any process can apply.

The driver publishes them; the page on Dask's dashboard, Prometheus, the log, a terminal and a
notebook show the result of `apply_event`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

Event = Mapping[str, Any]
"""'what' (see `_APPLY`), 'fit' (its id), 'at' (seconds since 1970), and further keys by 'what'."""
TOPIC = "homodyne_dask"
"""The topic of the events among Dask's structured events: `client.get_events(TOPIC)` returns them."""
RUNNING = "RUNNING"


@dataclass(frozen=True)
class Pass:
    """A completed pass, at one trial step."""

    number: int
    """Counted from 1 at each resolution; a resumed fit continues the count."""
    factor: int
    """Frames averaged into one: 1 for all data, more for coarse passes."""
    chisqr: float
    per_pair: float
    """χ²/N."""
    distance: float
    """Estimated distance to the minimum √(gᵀH⁻¹g/s²), in standard errors; inf if unknown."""
    damping: float
    accepted: bool
    seconds: float
    theta: tuple[float, ...]
    stderr: tuple[float, ...]
    """Best known standard errors at theta; for coarse passes those of the block means; NaN if unknown."""


@dataclass(frozen=True)
class CurrentPass:
    """The pass in progress."""

    words: str
    factor: int
    tiles: int
    began: float
    done: int = 0
    """Tiles completed."""
    pairs: int = 0
    bytes: int = 0
    """Decoded bytes of the tiles whose data were needed."""
    seconds: float = 0.0
    """Time of all threads in tasks."""
    last: float = 0.0
    """Time at which the latest tiles were completed."""


@dataclass(frozen=True)
class Progress:
    """Progress of a fit: what `watch` functions receive."""

    fit: str
    title: str
    where: str
    """The workers: where and how many."""
    names: tuple[str, ...]
    units: tuple[str, ...]
    pairs: int
    bins: int
    threads: int
    began: float
    at: float
    """Time of the last event."""
    page: str = ""
    """Address of the live page; "" if there is none."""
    store: str = ""
    """Path of the data; "" where they are in no store."""
    doing: str = "searching initial values"
    now: CurrentPass | None = None
    done: tuple[Pass, ...] = ()
    theta: tuple[float, ...] = ()
    stderr: tuple[float, ...] = ()
    """Best known standard errors at theta; NaN if unknown."""
    rate: float = math.nan
    """Pairs per second in the current pass, or the last one."""
    byte_rate: float = math.nan
    target: float = math.nan
    """Pairs per second of the same tiles if no thread ever waited."""
    byte_target: float = math.nan
    pairs_total: int = 0
    tiles_total: int = 0
    tiles_skipped: int = 0
    """Tiles whose data were not needed because f has decayed to zero."""
    busy: float = 0.0
    """Time of all threads in tasks [s]."""
    compilations: int = 0
    outcome: str = RUNNING
    sentence: str = "the fit is still running"
    reservations: tuple[str, ...] = ()
    """Reservations about the result."""
    refused: tuple[str, ...] = ()
    """Reasons why workers that joined were refused."""

    @property
    def running(self) -> bool:
        """Whether the fit is still running."""
        return self.outcome == RUNNING

    @property
    def passes(self) -> int:
        """Completed passes over all data, including those before a resume."""
        return max((one.number for one in self.done if one.factor == 1), default=0)

    def seconds_left(self, at: float) -> float:
        """Return the expected remaining time of the current pass [s]; NaN if unknown."""
        if self.now is None:
            return math.nan
        share = self.now.done / max(self.now.tiles, 1)
        if share > 0:
            return max((self.now.last - self.now.began) / share - (at - self.now.began), 0.0)
        before = [one.seconds for one in self.done if one.factor == self.now.factor]
        return max(before[-1] - (at - self.now.began), 0.0) if before else math.nan


def apply_event(before: Progress | None, event: Event) -> Progress | None:
    """Return the progress after one more event; None for a fit whose first event was not seen."""
    what = event["what"]
    if what == "begun":
        return _begun(event)
    if before is None:
        return None
    progress = replace(before, at=event["at"])
    return _APPLY[what](progress, event)


def _begun(event: Event) -> Progress:
    same_keys = ("fit", "title", "where", "pairs", "bins", "threads", "at", "page")
    return Progress(
        names=tuple(event["names"]),
        units=tuple(event["units"]),
        began=event["at"],
        store=event.get("store", ""),  # an earlier program sends none
        **{key: event[key] for key in same_keys},
    )


def _doing(progress: Progress, event: Event) -> Progress:
    return replace(progress, doing=event["words"], now=None)


def _pass(progress: Progress, event: Event) -> Progress:
    words, at = event["words"], event["at"]
    now = CurrentPass(words, event["factor"], event["tiles"], at, last=at)
    return replace(progress, doing=words, now=now)


def _tiles(progress: Progress, event: Event) -> Progress:
    """Add completed tiles: numbers are of the current pass, except the totals."""
    if progress.now is None:
        return progress
    done, here = {key: event[key] for key in ("done", "pairs", "bytes", "seconds")}, event["at"]
    now = replace(progress.now, **done, last=here)
    took, busy = max(here - now.began, 1e-6), max(now.seconds, 1e-6) / progress.threads
    return replace(
        progress,
        now=now,
        rate=now.pairs / took,
        byte_rate=now.bytes / took,
        target=now.pairs / busy,
        byte_target=now.bytes / busy,
        pairs_total=event["pairs_total"],
        tiles_total=event["tiles_total"],
        tiles_skipped=event["tiles_skipped"],
        busy=event["busy"],
    )


def _state(progress: Progress, event: Event) -> Progress:
    """Add a completed pass."""
    keys = ("number", "factor", "chisqr", "per_pair", "distance", "damping", "accepted", "seconds")
    theta, stderr = tuple(event["theta"]), tuple(event["stderr"])
    one = Pass(**{key: event[key] for key in keys}, theta=theta, stderr=stderr)
    return replace(progress, done=(*progress.done, one), theta=theta, stderr=stderr)


def _ended(progress: Progress, event: Event) -> Progress:
    theta, stderr = tuple(event["theta"]), tuple(event["stderr"])
    return replace(
        progress,
        doing="ended",
        now=None,
        theta=theta or progress.theta,
        stderr=stderr or progress.stderr,
        compilations=event["compilations"],
        outcome=event["outcome"],
        sentence=event["sentence"],
        reservations=tuple(event["reservations"]),
    )


def _refused(progress: Progress, event: Event) -> Progress:
    return replace(progress, refused=(*progress.refused, event["words"]))


_APPLY: dict[str, Callable[[Progress, Event], Progress]] = {
    "pass": _pass,
    "tiles": _tiles,
    "state": _state,
    "doing": _doing,
    "refused": _refused,
    "ended": _ended,
}


def pass_line(one: Pass, elapsed: float) -> str:
    """Return a completed pass as a line: χ²/N, estimated distance to the minimum in standard errors, time."""
    distance = f"{one.distance:.2g}" if math.isfinite(one.distance) else "-"
    words = (
        f"{pass_name(one.factor, one.number):<26}χ²/N {one.per_pair:<12.7g} distance {distance:<9}"
    )
    return f"{words}{elapsed:7.1f} s" + ("" if one.accepted else "   (rejected)")


def pass_name(factor: int, number: int) -> str:
    """Return the name of a pass: 'pass 3', or 'pass 2 over 4×4 means'."""
    return f"pass {number:3d}" + ("" if factor == 1 else f" over {factor}×{factor} means")
