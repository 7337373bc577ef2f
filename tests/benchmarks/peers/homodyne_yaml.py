"""The fit by the package homodyne as its users start it: a YAML file, its cache of the data, its command.

Called as `python -m tests.benchmarks.peers.homodyne_yaml write DATA SCALING`, which writes both files to a
folder, and then as `python -m tests.benchmarks.peers.homodyne_yaml DATA RESULT SCALING`.
"""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.benchmarks.peers import data

CONFIG, CACHE = "config.yaml", "scan.npz"


def folder_of(source: str, scaling: str) -> Path:
    """Return the folder with the files of one scaling."""
    return Path(source).parent / f"yaml-{scaling}"


def write(source: str, scaling: str) -> None:
    import numpy as np
    import yaml

    from tests.benchmarks.peers.homodyne import configuration

    case, folder = data.load(Path(source)), folder_of(source, scaling)
    folder.mkdir()
    content = configuration(scaling, len(case.time), exact=True).config
    content["experimental_data"] |= {
        "file_path": None,
        "data_folder_path": str(folder),
        "data_file_name": CACHE,
    }
    content["phi_filtering"] = {"enabled": False}
    (folder / CONFIG).write_text(yaml.safe_dump(content))
    np.savez(
        folder / CACHE, c2_exp=case.c2.astype(float), wavevector_q_list=np.array([data.Q]),
        phi_angles_list=case.phi, t1=case.time, t2=case.time,
    )  # fmt: skip


def main(source: str, target: str, scaling: str) -> None:
    folder, out = folder_of(source, scaling), Path(target).parent / "out"
    program = Path(sys.executable).with_name("homodyne")
    command = [program, "--method", "nlsq", "--config", folder / CONFIG, "--output-dir", out]
    subprocess.run(command, check=True, cwd=folder)  # it writes a log to its working folder
    found = json.loads((out / "nlsq" / "parameters.json").read_text())
    theta = [found["parameters"][name]["value"] for name in data.NAMES]
    data.report(
        Path(target),
        data.Estimate(theta, [], []),
        status=found["convergence_status"],
        version=metadata.version("homodyne"),
    )


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
