"""The fit by homodyne_dask from homodyne's YAML file and cache, by the commands of docs/migration.md.

Called as `python -m tests.benchmarks.peers.homodyne_dask_yaml DATA RESULT SCALING`.
"""

import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.benchmarks.peers import data
from tests.benchmarks.peers.homodyne_dask import errors_of
from tests.benchmarks.peers.homodyne_yaml import CONFIG, folder_of


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "homodyne_dask.cli", *words], check=True)


def main(source: str, target: str, scaling: str) -> None:
    import homodyne_dask as hd

    os.chdir(folder_of(source, scaling))
    run("from-homodyne", CONFIG, "--output", "fit.yaml")
    run(*shlex.split(hd.from_homodyne_yaml(CONFIG).ingest)[1:])
    run("fit", "fit.yaml", "--output", "fit")
    result = hd.load_result("fit/summary.json")
    data.report(
        Path(target),
        data.Estimate(result.parameters.value.values.tolist(), [], [], errors_of(result)),
        status=result.outcome.name.lower(),
        version=metadata.version("homodyne-dask"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
