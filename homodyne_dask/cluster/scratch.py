"""A folder that only its user can enter, for what Dask writes beside its work; a nanny removes it at its end.

Dask puts this folder first on the path of imports. Its default, dask-scratch-space in the folder for
temporary files, belongs on a shared machine to whoever made it first: their modules would be run.
"""

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.config

from homodyne_dask.store.files import make_private

SCRATCH = "HOMODYNE_DASK_SCRATCH"
"""Environment variable of workers: the folder, which they remove at their end."""
DRIVER = "HOMODYNE_DASK_DRIVER"
"""Environment variable of workers on this machine: the number of the process that started their nanny."""
_PREFIX = "homodyne-dask-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder below temporary-directory of Dask's configuration, removed afterwards."""
    around = Path(dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    make_private(around.absolute())
    with tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=around.absolute(), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _remove() -> None:
    shutil.rmtree(os.environ[SCRATCH], ignore_errors=True)


def dask_setup(_nanny: Any) -> None:
    """Remove the folder when this process ends; preloaded by nannies.

    One on this machine shares the folder with its driver, and ends soon after it, however that ended; its
    worker ends with it: workers of Dask watch a pipe to their nanny. A closed connection is no such sign: a
    worker that has not connected yet would wait for its scheduler for ever.
    """
    if driver := os.environ.get(DRIVER):
        threading.Thread(target=_end_with, args=(int(driver),), daemon=True).start()
    else:
        atexit.register(_remove)


def _end_with(driver: int) -> None:
    """End this process, and remove its folder, when the driver is no longer its parent."""
    while os.getppid() == driver:
        time.sleep(1.0)
    _remove()
    os._exit(1)


def script_lines(around: str | None) -> list[str]:
    """Return the lines of a job script that make the folder of a job, named by the variable SCRATCH.

    around: folder on the node, in the words of a shell; None: that for temporary files.
    """
    place = around or dask.config.get("temporary-directory", None) or "${TMPDIR:-/tmp}"
    return [
        f"(umask 077; mkdir -p {place})",
        f"{SCRATCH}=$(mktemp -d -p {place} {_PREFIX}XXXXXXXX) || exit 1",
        f"export {SCRATCH}",
    ]
