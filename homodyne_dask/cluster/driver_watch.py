"""The nanny of a worker on this machine: it ends soon after the driver, however that ended.

Its worker ends with it: workers of Dask watch a pipe to their nanny. A closed connection is no such
sign: a worker that has not connected yet would wait for its scheduler for ever.
"""

import os
import threading
import time
from typing import Any

from distributed import Nanny

from homodyne_dask.cluster.scratch import remove_scratch

SECONDS_BETWEEN_LOOKS = 1.0


class WatchedNanny(Nanny):
    """A nanny that watches the process that started it."""

    def __init__(self, *args: Any, driver: int, **options: Any) -> None:
        """Take the arguments of a nanny, and the number of the process that starts it."""
        threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
        super().__init__(*args, **options)


def _end_with(driver: int) -> None:
    """End this process, and remove its folder, when the driver is no longer its parent."""
    while os.getppid() == driver:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    remove_scratch()
    os._exit(1)
