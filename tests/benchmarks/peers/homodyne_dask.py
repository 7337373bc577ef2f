"""The fit by homodyne_dask: arrays to a Zarr store, then `hd.fit`, as in a script of a user.

Called as `python -m tests.benchmarks.peers.homodyne_dask DATA RESULT SCALING [ready] [gpu]`; with `ready`
the time of the fit begins when the workers run and have imported what they need; without `gpu` processors
compute, wherever it runs.
"""

import sys
import time
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path

from tests.benchmarks.peers import data


def load() -> None:
    """Import in a worker what a fit needs."""
    import jax.numpy as jnp

    import homodyne_dask.sweep.sweep  # noqa: F401

    jnp.zeros(1).block_until_ready()


@contextmanager
def workers():
    import homodyne_dask as hd

    with hd.local_cluster() as client:
        client.wait_for_workers(1)
        client.run(load)
        yield client


def main(source: str, target: str, scaling: str, *words: str) -> None:
    import homodyne_dask as hd
    import ingest

    store = Path(target).with_suffix(".zarr")
    began = time.perf_counter()
    ingest.ingest(source, store)
    ingested = time.perf_counter() - began
    names = hd.LAMINAR_FLOW.names
    bounds = zip(data.LOWER, data.UPPER, strict=True)
    with workers() if "ready" in words else nullcontext() as client:
        began = time.perf_counter()
        result = hd.fit(
            store,
            hd.LAMINAR_FLOW,
            gap=data.GAP,
            convention="homodyne",
            scaling=scaling,
            initial=dict(zip(names, data.START, strict=True)),
            bounds=dict(zip(names, bounds, strict=True)),
            client=client,
            device="gpu" if "gpu" in words else "cpu",
        )
        seconds = time.perf_counter() - began
    covariance = result.errors.covariance_naive
    data.report(
        Path(target),
        data.Estimate(
            result.parameters.value.values.tolist(),
            result.scaling.contrast.values.tolist(),
            result.scaling.offset.values.tolist(),
            None if covariance is None else covariance.values.tolist(),
        ),
        status=result.outcome.name.lower(),
        note=f"{result.passes} passes; ingest of the arrays {ingested:.1f} s of the process",
        fit_seconds=seconds,
        version=metadata.version("homodyne-dask"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
