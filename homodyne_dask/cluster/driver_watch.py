"""Preloaded by the nanny of a worker on this machine: it ends soon after the driver, however that ended.

Its worker ends with it: workers of Dask watch a pipe to their nanny. A closed connection is no such
sign: a worker that has not connected yet would wait for its scheduler for ever.
"""

import os
import threading
import time
from typing import Any

from homodyne_dask.cluster.scratch import remove_scratch

DRIVER = "HOMODYNE_DASK_DRIVER"
"""Environment variable: the process number of the driver, which starts the nanny."""
SECONDS_BETWEEN_LOOKS = 1.0


def dask_setup(_nanny: Any) -> None:
    """Start the thread that watches the driver; Dask calls this as the nanny starts."""
    threading.Thread(target=_end_with, args=(int(os.environ[DRIVER]),), daemon=True).start()


def _end_with(driver: int) -> None:
    """End this process, and remove its folder, when the driver is no longer its parent."""
    while os.getppid() == driver:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    remove_scratch()
    os._exit(1)
