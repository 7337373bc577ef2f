"""A fit of every ring or window of a scan, one after the other on the same workers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from homodyne_dask import lm
from homodyne_dask.cluster import local_cluster
from homodyne_dask.dataset import Scan, open_dataset
from homodyne_dask.ended import Ended
from homodyne_dask.errors import ClusterError, HomodyneDaskError
from homodyne_dask.fitting import fit
from homodyne_dask.models import Model
from homodyne_dask.parts import Windows, options_of, parts_of
from homodyne_dask.planning import IN_PROCESS_PAIRS
from homodyne_dask.request import prepare, require_gap
from homodyne_dask.series import FitSeries


def fit_each(
    data: Scan | str | Path,
    model: Model,
    *,
    over: str,
    windows: Windows = None,
    client: Client | None = None,
    progress: Callable[[lm.State], None] | None = None,
    **options: Any,
) -> FitSeries:
    """Fit a model to each ring (over='q') or each window of age (over='age') of a scan by itself.

    windows, for age: how many of equal numbers of frames, or a list of (from, to) in s. Times keep
    their origin, and a window counts the pairs with both frames in it. Options are those of `fit`; a
    mistake in them raises a HomodyneDaskError at once. A part that cannot be fitted is a row with its
    message, and the others go on. Workers are started once. The parts share no data but those of
    overlapping windows, so each fit makes its own passes and nothing is read twice.
    """
    scan = data if isinstance(data, Scan) else open_dataset(data)
    parts = parts_of(scan, over, windows)
    require_gap(prepare(scan, model, **options))
    with workers_for([part.scan for part in parts], client) as connected:
        ended = []
        for part in parts:
            own = options_of(part, scan, options)
            try:
                result = fit(part.scan, model, **own, client=connected, progress=progress)
            except ClusterError:
                raise
            except HomodyneDaskError as e:
                ended.append(Ended(part.name, None, None, str(e), part.at))
            else:
                ended.append(Ended(part.name, None, result, "", part.at))
    return FitSeries(over, tuple(ended))


@contextmanager
def workers_for(scans: Sequence[Scan], client: Client | None) -> Iterator[Client | None]:
    """Yield the client to fit all these scans with: the one given, or workers started for them all.

    None where each is small enough to be fitted in this process.
    """
    if client is not None or all(_pairs(scan) < IN_PROCESS_PAIRS for scan in scans):
        yield client
        return
    with local_cluster() as started:
        yield started


def _pairs(scan: Scan) -> int:
    frames = int(scan.use.sum())
    return frames * (frames - 1) // 2 * len(scan.bins)
