"""Fits on jobs, disturbed in their middle, and what they come to."""

import threading
import time
from collections.abc import Callable
from typing import Any

import homodyne_dask as hd
from homodyne_dask.fitting.events import PassEnded, on_pass
from tests.synthetic import FLOW

POOR = dict(zip(hd.LAMINAR_FLOW.names, FLOW * [1.6, 0.5, 1, 0.4, 0.5, 1, 1], strict=True))
OPTIONS: dict[str, Any] = {"gap": "200 um", "initial": POOR}


def fit_on(client, scan, disturb: Callable[[], None] | None = None, after: int = 1, **more):
    """Fit; `disturb` is called while a worker computes the pass after pass number `after`.

    more: other options of `fit`.
    """
    threads = []

    def act() -> None:
        until = time.monotonic() + 10
        while not busy(client.cluster.scheduler) and time.monotonic() < until:
            time.sleep(0.001)
        assert disturb is not None
        disturb()

    def seen(event: PassEnded) -> None:
        if disturb is not None and event.number == after:
            threads.append(threading.Thread(target=act))
            threads[0].start()
        elif threads:
            threads[0].join()

    options = OPTIONS | {"memory": "stream"} | more
    callbacks = [on_pass(seen), *options.pop("callbacks", ())]
    result = hd.fit(scan, hd.LAMINAR_FLOW, **options, client=client, callbacks=callbacks)
    assert len(threads) == (disturb is not None)
    for thread in threads:
        thread.join()
    return result


def busy(scheduler) -> bool:
    """Whether a worker holds a task of a pass."""
    workers = list(scheduler.workers.values())
    return any("gram-" in str(task.key) for worker in workers for task in list(worker.processing))
