"""Fits of every ring or window of a scan on the same workers: small parts at once, others in turn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client

from homodyne_dask.cluster.local import require_client
from homodyne_dask.errors import ClusterError, HomodyneDaskError, require_function
from homodyne_dask.fitting.fit import fit
from homodyne_dask.fitting.options import takes_options
from homodyne_dask.fitting.request import prepare, require_gap
from homodyne_dask.fitting.series.parallel_fits import (
    MIN_FITS_FOR_WORKERS,
    FitOutput,
    FitRequest,
    output_of,
    submitted,
    workers_for,
)
from homodyne_dask.fitting.series.partition import Windows, options_of, parts_of
from homodyne_dask.models import Model, scan_model
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.data.series_entry import SeriesEntry
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.store.scan import Scan, as_scan


@takes_options()
def fit_each(
    data: Scan | str | Path,
    model: Model | str,
    *,
    over: str,
    windows: Windows = None,
    client: Client | None = None,
    progress: Callable[[lm.State], None] | None = None,
    **options: Any,
) -> FitSeries:
    """Fit a model to each ring (over='q') or each window of age (over='age') of a scan by itself.

    over: 'q' or 'age'.
    windows: for 'age', the number of windows of equal length in frames, or a list of (from, to) in s.
        Times keep their origin, and a window counts the pairs with both frames in it.
    client: a Dask client; by default workers are started once for all parts, if any are needed.
    progress: called with the state after each pass over all data; for a small part (below) with all
        its states when its fit has ended.
    {options}

    A part that cannot be fitted is a row with its message, and the others go on. Parts of fewer than
    four million pairs are fitted at the same time, each by one thread of the workers; larger ones in
    turn, by all workers. Every fit has the same bits as that of `fit`.

    Raises a HomodyneDaskError for mistakes in the options.

    >>> hd.fit_each("A0123_c2.zarr", "brownian", over="age", windows=2).converged
    True
    """
    scan, model = as_scan(data), scan_model(model)
    require_client(client)
    require_function("progress", progress)
    parts = parts_of(scan, over, windows)
    require_gap(prepare(scan, model, **options))
    fits = [FitRequest(part.scan, options_of(part, scan, options)) for part in parts]
    entries = []
    with (
        workers_for([part.scan for part in parts], client, MIN_FITS_FOR_WORKERS) as connected,
        submitted(connected, model, fits) as futures,
    ):
        for part, request, future in zip(parts, fits, futures, strict=True):
            try:
                if future is None:
                    given = {"client": connected, "progress": progress, **request.options}
                    result = fit(request.scan, model, **given)
                else:
                    result = _reported(output_of(connected, future), progress)
            except ClusterError:
                raise
            except HomodyneDaskError as e:
                entries.append(SeriesEntry(part.name, None, None, str(e), part.at))
            else:
                entries.append(SeriesEntry(part.name, None, result, "", part.at))
    return FitSeries(over, tuple(entries))


def _reported(output: FitOutput, progress: Callable[[lm.State], None] | None) -> FitResult:
    if progress is not None:
        for state in output.states:
            progress(state)
    return output.result
