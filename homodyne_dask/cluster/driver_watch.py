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
        _end_without(driver)  # before anything is written into the folder
        super().__init__(*args, **options)

        def watch() -> None:
            while True:
                _end_without(driver)
                time.sleep(SECONDS_BETWEEN_LOOKS)

        threading.Thread(target=watch, daemon=True).start()


def _end_without(driver: int) -> None:
    """End this process, and remove its folder, when the driver is no longer its parent."""
    if os.getppid() != driver:
        remove_scratch()
        os._exit(1)
