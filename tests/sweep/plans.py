"""Scans that are nowhere on disk, and passes that read the store every time."""

import numpy as np

import homodyne_dask as hd
from homodyne_dask.cluster.workers import this_process
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.store.arrays import Manifest
from homodyne_dask.store.scan import Scan
from homodyne_dask.store.schema import Attributes
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import sweep_of


def scan_to_plan(n, bins=1, frames=None, mask=None, q=None) -> Scan:
    q = np.full(bins, 0.005) if q is None else np.asarray(q, float)
    per_bin = {"q": q, "phi": np.zeros(len(q)), "label": np.arange(len(q))}
    use = np.ones(n, bool) if mask is None else mask
    nothing = Manifest({}, np.zeros((len(q), 0, 0), int), {}, "")
    return Scan(
        path="/nowhere", attributes=Attributes.model_construct(sigma_source="counts"), manifest=nothing,
        time=np.arange(n) * 1.0, frame_mask=use,
        bins=tuple(range(len(q))), frames=frames or (0, n), all_bins=per_bin,
    )  # fmt: skip


def streaming_sweep(scan, **options):
    request = prepare(scan, hd.LAMINAR_FLOW, gap="200 um", **options)
    plan = make_plan(
        layout(request.scan, request.problem.min_lag), this_process(), "flow", 7, 3, "stream"
    )
    return sweep_of(plan, request.scan.selection, request.problem, None)
