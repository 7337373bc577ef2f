"""Which fits are small, and workers for many of them.

Apart from the fits themselves, which take longer to import than workers take to be asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distributed import Client

from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.kernels.processors import cores
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.plan import IN_PROCESS_PAIRS

MIN_FITS_FOR_WORKERS = 16
"""Number of small fits from which workers are started: fewer are faster in the process of the caller."""
MIN_DRAWN_FITS_FOR_WORKERS = 8
"""The same number if figures are drawn, too."""


def is_small(scan: Scan) -> bool:
    """Return whether a fit of the scan is small enough for one process."""
    frames = int(scan.use.sum())
    return frames * (frames - 1) // 2 * len(scan.bins) < IN_PROCESS_PAIRS


@contextmanager
def workers_for(scans: Sequence[Scan], client: Client | None, many: int) -> Iterator[Client | None]:
    """Yield the client for fits of all these scans: the one given, or one of workers started for them.

    None if they are fewer than `many` and each is small enough to be fitted in this process. Many small
    scans get processes of one thread: a search for initial values occupies a whole process.
    """
    small = all(map(is_small, scans))
    if client is not None or (small and len(scans) < many):
        yield client
        return
    with local_cluster(min(cores(), len(scans)) if small else None) as started:
        yield started
