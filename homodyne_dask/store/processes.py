"""The commands of our child processes: none of them imports from the working folder.

Python puts the working folder first on the path of a program that is started with -m or -c: a file
json.py or dask.py that lies there, of a stranger's data perhaps, would be run.
"""

import sys

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The same as -P in the environment of a job, whatever command starts its Python."""


def python_command(*words: str) -> list[str]:
    """Return the command of this Python with arguments; its own child processes get -P, too."""
    return [sys.executable, "-P", *words]
