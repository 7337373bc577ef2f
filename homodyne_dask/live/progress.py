"""Where a fit stands while it runs, told by events: small dicts that any process can put together.

The driver sends them; the page on Dask's dashboard, Prometheus, the log, a terminal and a notebook
show what `after` makes of them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

Event = Mapping[str, Any]
"""'what' (see `apply_event`), 'fit' (its id), 'at' (seconds since 1970), and what belongs to it."""
TOPIC = "homodyne_dask"
"""The topic of these among Dask's structured events: `client.get_events(TOPIC)` returns them."""
RUNNING = "RUNNING"


@dataclass(frozen=True)
class Pass:
    """A pass that is done; it led to a trial point."""

    number: int
    """Counted from 1 among those of its resolution, on from where a fit was resumed."""
    factor: int
    """Frames averaged into one: 1 is all data, others are coarse passes."""
    chisqr: float
    per_pair: float
    """χ²/N."""
    distance: float
    """The scaled gradient: √(gᵀH⁻¹g/s²), standard errors to the optimum; inf where unknown."""
    damping: float
    accepted: bool
    seconds: float
    theta: tuple[float, ...]
    stderr: tuple[float, ...]
    """The best known errors at theta, of block means those of the means; NaN where unknown."""


@dataclass(frozen=True)
class CurrentPass:
    """The pass that is being made."""

    words: str
    factor: int
    tiles: int
    began: float
    done: int = 0
    """Tiles worked."""
    pairs: int = 0
    bytes: int = 0
    """Decoded bytes of the tiles whose data were needed."""
    seconds: float = 0.0
    """Of all threads together, in tasks."""
    last: float = 0.0
    """When the last tiles came in."""


@dataclass(frozen=True)
class Progress:
    """Where a fit stands."""

    fit: str
    title: str
    where: str
    """The workers, in words."""
    names: tuple[str, ...]
    units: tuple[str, ...]
    pairs: int
    bins: int
    threads: int
    began: float
    at: float
    """Time of the last event."""
    page: str = ""
    """Address of the live page; "" where there is none."""
    doing: str = "searching first values"
    now: CurrentPass | None = None
    done: tuple[Pass, ...] = ()
    theta: tuple[float, ...] = ()
    stderr: tuple[float, ...] = ()
    """The best known errors at theta; NaN where unknown."""
    rate: float = math.nan
    """Pairs per second of the last pass, or of this one."""
    byte_rate: float = math.nan
    target: float = math.nan
    """Pairs per second if no thread ever waited, measured on the tiles that `rate` is of."""
    byte_target: float = math.nan
    pairs_total: int = 0
    tiles_total: int = 0
    tiles_skipped: int = 0
    """Tiles whose data were not needed: nothing is left of f there."""
    busy: float = 0.0
    """Seconds of all threads spent in tasks."""
    compilations: int = 0
    outcome: str = RUNNING
    sentence: str = "the fit is still running"
    said: tuple[str, ...] = ()
    """What is to be said against the result."""
    refused: tuple[str, ...] = ()
    """What was said against workers that joined; they have left again."""

    @property
    def running(self) -> bool:
        """Whether the fit goes on."""
        return self.outcome == RUNNING

    @property
    def passes(self) -> int:
        """Passes over all data that are done, those before a fit was resumed among them."""
        return max((one.number for one in self.done if one.factor == 1), default=0)

    def seconds_left(self, at: float) -> float:
        """Return how long the pass that is being made will still take; NaN before anything is known."""
        if self.now is None:
            return math.nan
        share = self.now.done / max(self.now.tiles, 1)
        if share > 0:
            return max((self.now.last - self.now.began) / share - (at - self.now.began), 0.0)
        before = [one.seconds for one in self.done if one.factor == self.now.factor]
        return max(before[-1] - (at - self.now.began), 0.0) if before else math.nan


def apply_event(before: Progress | None, event: Event) -> Progress | None:
    """Return where a fit stands after one more event; None for one whose beginning was not seen."""
    what = event["what"]
    if what == "begun":
        return _begun(event)
    if before is None:
        return None
    progress = replace(before, at=event["at"])
    return _KINDS[what](progress, event)


def _begun(event: Event) -> Progress:
    given = ("fit", "title", "where", "pairs", "bins", "threads", "at", "page")
    return Progress(
        names=tuple(event["names"]),
        units=tuple(event["units"]),
        began=event["at"],
        **{key: event[key] for key in given},
    )


def _doing(progress: Progress, event: Event) -> Progress:
    return replace(progress, doing=event["words"], now=None)


def _pass(progress: Progress, event: Event) -> Progress:
    words, at = event["words"], event["at"]
    now = CurrentPass(words, event["factor"], event["tiles"], at, last=at)
    return replace(progress, doing=words, now=now)


def _tiles(progress: Progress, event: Event) -> Progress:
    """Add tiles: all numbers but those of totals are of the pass so far."""
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
    """Add a pass that is done."""
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
        said=tuple(event["said"]),
    )


def _refused(progress: Progress, event: Event) -> Progress:
    return replace(progress, refused=(*progress.refused, event["words"]))


_KINDS: dict[str, Callable[[Progress, Event], Progress]] = {
    "pass": _pass,
    "tiles": _tiles,
    "state": _state,
    "doing": _doing,
    "refused": _refused,
    "ended": _ended,
}


def pass_line(one: Pass, elapsed: float) -> str:
    """Return a pass that is done as a line: χ²/N, distance to the optimum in standard errors, time."""
    distance = f"{one.distance:.2g}" if math.isfinite(one.distance) else "-"
    words = (
        f"{pass_name(one.factor, one.number):<26}χ²/N {one.per_pair:<12.7g} distance {distance:<9}"
    )
    return f"{words}{elapsed:7.1f} s" + ("" if one.accepted else "   (not lower)")


def pass_name(factor: int, number: int) -> str:
    """Return which pass it is: 'pass 3', or 'pass 2 over 4×4 means'."""
    return f"pass {number:3d}" + ("" if factor == 1 else f" over {factor}×{factor} means")
