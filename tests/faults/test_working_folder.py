"""A file in the working folder with the name of a library is not run by any process of ours."""

import importlib
import pickle
import subprocess
import sys
import time
from pathlib import Path

import dask.config
import pytest

import ingest
from homodyne_dask.cluster.local import local_cluster
from tests.faults.local_workers import workers
from tests.faults.processes import ENVIRONMENT, first_import_folder
from tests.ingest_files import simulated

SCRIPT = Path(sys.executable).with_name("homodyne-dask")


def test_ingest_looks_into_a_file_without_it(hostile_folder):
    ingest.ingest(simulated(Path("A.hdf"), n=12))


@pytest.mark.cluster
def test_workers_start_without_it(hostile_folder):
    with workers(1) as client:
        assert [*client.run(lambda: sys.flags.safe_path).values()] == [True]


@pytest.mark.cluster
def test_the_folder_dask_imports_from_is_entered_by_its_user_alone(tmp_path):
    (tmp_path / "dask-scratch-space").mkdir(mode=0o777)  # a stranger was here first
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        with local_cluster(processes=1, threads=1, dashboard=None) as client:
            client.wait_for_workers(1, timeout=120)
            of_worker = [*client.run(first_import_folder).values()]
            of_nanny = [*client.run(first_import_folder, nanny=True).values()]
            assert of_worker == of_nanny == [first_import_folder()]
            folder, permissions = first_import_folder()
            assert Path(folder).parent == tmp_path
            assert permissions == 0o700
        assert [path.name for path in tmp_path.iterdir()] == ["dask-scratch-space"]
        assert not list((tmp_path / "dask-scratch-space").iterdir())


MODULES = {
    "parts/laws.py": "def rate(a, lag):\n    return a * lag\n",
    "my_helper.py": "from parts import laws\ndef decay(a, lag):\n    return -laws.rate(a, lag)\n",
    "my_model.py": """
import homodyne_dask as hd
import my_helper
from my_helper import decay
def f(theta, t1, t2, bin):
    return my_helper.decay(theta[0], t2 - t1) + decay(theta[0], t2 - t1)
MODEL = hd.separable(f, [hd.Parameter("a")])
""",
}
"""A model with what it uses: a module, and a package without __init__.py."""


def test_a_model_takes_along_what_it_uses_of_the_working_folder(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        packed = pickle.dumps(importlib.import_module("my_model").MODEL)
        for name in ("my_model", "my_helper", "parts.laws", "parts"):
            here.delitem(sys.modules, name)
    for name in ("my_model", "my_helper", "parts.laws", "parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert pickle.loads(packed).f([2.0], 1.0, 4.0, None) == -12.0


@pytest.mark.slow
def test_no_command_and_no_process_it_starts_runs_it(hostile_folder):
    def run(*words: str) -> None:
        environment = ENVIRONMENT | {"PYTHONSAFEPATH": ""}
        ended = subprocess.run([SCRIPT, *words], env=environment, capture_output=True, text=True)
        assert "bug" not in ended.stderr, ended.stderr
        assert ended.returncode in (0, 1), ended.stderr  # doctor: something has to be done

    file, store = "A_results.hdf", "A_c2.zarr"
    run("simulate", file, "--scenario", "creep", "--angles", "5", "--frames", "700")
    run("ingest", file)
    run("info", store)
    run("plan", store, "--model", "laminar_flow")
    run("fit", store, "--model", "static")
    run("show", "A_fit")
    run("doctor")
    standing = Path("standing/scheduler.json")
    start = [SCRIPT, "cluster", "start", "--scheduler-file", standing]
    with subprocess.Popen(start, env=ENVIRONMENT | {"PYTHONSAFEPATH": ""}) as started:
        while not standing.exists():
            assert started.poll() is None
            time.sleep(0.1)
        try:
            run("fit", store, "--model", "static", "--scheduler-file", str(standing), "--overwrite")
        finally:
            run("cluster", "stop", "--scheduler-file", str(standing))
    assert started.returncode == 0
