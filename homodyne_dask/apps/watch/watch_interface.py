"""What a watched folder needs of fits, and how it is watched."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from homodyne_dask.apps.watch.watched_files import PATTERNS, Stamp
from homodyne_dask.results.data.series_entry import SeriesEntry


class FitsOfScan(Protocol):
    """The fits of one scan that were begun."""

    def ended(self) -> bool:
        """Return whether `entries` need not wait for other processes."""
        ...

    def entries(self) -> list[SeriesEntry]:
        """Return the fits; raises what made them fail."""
        ...

    def close(self) -> None:
        """Give them up."""
        ...


class ScanFitter(Protocol):
    """How scans are ingested and fitted."""

    @property
    def at_once(self) -> int:
        """Number of scans that are worked on at the same time."""
        ...

    def connect(self, expected: int) -> None:
        """Start or find the workers, once, if so many scans need any."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...

    def ingest(self, source: Path, store: Path) -> str:
        """Write a store, or go on with it; return the SHA-256 of the source as it was read."""
        ...

    def begin(self, store: Path, folder: Path) -> FitsOfScan:
        """Begin the fits of a store, whose results go into a folder."""
        ...

    def load(self, folder: Path) -> Sequence[SeriesEntry]:
        """Return the fits in a folder of results; raises HomodyneDaskError."""
        ...


class WatchOptions(NamedTuple):
    """How a folder is watched."""

    patterns: tuple[str, ...] = PATTERNS
    interval: float = 1.0
    """Seconds between two looks."""
    once: bool = False
    """End when all files that stand still are fitted."""
    newest_first: bool = False
    keep_stores: bool = True


class InWork(NamedTuple):
    """A scan whose fits were begun."""

    name: str
    stamp: Stamp
    fits: FitsOfScan
    began: float
