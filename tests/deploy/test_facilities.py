"""Wrappers for facilities, run by the libraries themselves; `make test-deploy` installs these.

Globus Compute: the function is packed as its SDK does, and run as a worker of an endpoint does. What is not
run is the service between them.
"""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.ingest_files import simulated

FACILITIES = Path(__file__).parents[2] / "deploy/facilities"
WORKER = """
import sys, uuid
from pathlib import Path
from globus_compute_common import messagepack
from globus_compute_endpoint.engines.helper import execute_task
from globus_compute_sdk.serialize import ComputeSerializer
packed, folder = Path(sys.argv[1]).read_bytes(), sys.argv[2]
result = messagepack.unpack(execute_task(packed, uuid.uuid4(), run_dir=folder))
print(result.data if result.is_error else ComputeSerializer().deserialize(result.data)["parameters"])
"""


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """A folder with a result file and a fit.yaml that names other data."""
    folder = tmp_path_factory.mktemp("facility")
    simulated(folder / "A0123_results.hdf", n=30)
    (folder / "fit.yaml").write_text("data: elsewhere_c2.zarr\nmodel: static\nframes: [0, 25]\n")
    return folder


def run_by_globus(scan: Path, source: str) -> str:
    """Pack the function as the SDK does, and run it in a process that knows the package alone."""
    pytest.importorskip("globus_compute_endpoint", reason="make test-deploy installs it")
    from globus_compute_common import messagepack
    from globus_compute_common.messagepack.message_types import Task
    from globus_compute_sdk.serialize import ComputeSerializer, PureSourceTextInspect

    serializer = ComputeSerializer(strategy_code=PureSourceTextInspect())
    given = (str(scan / source), str(scan / "fit.yaml"), str(scan / "globus"))
    parts = [serializer.serialize(part) for part in (facility_function(), given, {})]
    task = Task(task_id=uuid.uuid4(), task_buffer=serializer.pack_buffers(parts))
    (scan / "task").write_bytes(messagepack.pack(task))
    worker = [sys.executable, "-c", WORKER, str(scan / "task"), str(scan / "worker")]
    return subprocess.run(worker, check=True, capture_output=True, text=True, cwd=scan).stdout


def facility_function():
    sys.path.insert(0, str(FACILITIES))
    try:
        from fit_result_file import fit_result_file
    finally:
        sys.path.remove(str(FACILITIES))
    return fit_result_file


def test_a_worker_of_globus_compute_returns_the_json_of_the_fit(scan):
    printed = run_by_globus(scan, "A0123_results.hdf")
    summary = json.loads((scan / "globus/A0123_fit/summary.json").read_text())
    assert summary["inputs"]["frames"] == [0, 25]
    assert str(summary["parameters"]) in printed


def test_a_mistake_comes_back_from_globus_compute_as_one_sentence(scan):
    assert "none.hdf is not a file: check the name" in run_by_globus(scan, "none.hdf")


def test_a_workflow_of_ewoks_returns_the_json_of_the_fit(scan, monkeypatch):
    ewokscore = pytest.importorskip("ewokscore", reason="make test-deploy installs it")
    monkeypatch.syspath_prepend(FACILITIES)
    inputs = {"fit_yaml": scan / "fit.yaml", "output": scan / "ewoks"}
    node = {"id": "fit", "task_type": "class", "task_identifier": "ewoks_task.FitResultFile"}
    node["default_inputs"] = [{"name": name, "value": str(path)} for name, path in inputs.items()]

    def executed(source: str):
        given = [{"id": "fit", "name": "source", "value": source}]
        return ewokscore.execute_graph({"graph": {"id": "fit"}, "nodes": [node]}, inputs=given)

    found = executed(str(scan / "A0123_results.hdf"))
    assert found["fit"] == json.loads((scan / "ewoks/A0123_fit/summary.json").read_text())
    with pytest.raises(RuntimeError) as raised:
        executed("none.hdf")
    assert "none.hdf is not a file: check the name" in f"{raised.value} {raised.value.__cause__}"
