"""The manifests of deploy/kubernetes against the schema of the operator; and their commands, run here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from homodyne_dask.cluster.connect import make_key
from tests.deploy.small_fit import DEPLOY, here, written
from tests.free_ports import free_ports
from tests.result_bits import folder_bits

pytestmark = pytest.mark.timeout(240)
MANIFESTS = DEPLOY / "kubernetes"
CRDS = "operator/deployment/helm/dask-kubernetes-operator/crds"
OPEN = "x-kubernetes-preserve-unknown-fields"


def documents() -> dict[str, dict[str, Any]]:
    texts = [file.read_text() for file in sorted(MANIFESTS.glob("*.yaml"))]
    return {part["kind"]: part for text in texts for part in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """What the operator accepts, by kind; fields that it does not know are refused."""
    operator = pytest.importorskip("dask_kubernetes", reason="make test-deploy installs it")
    found = {}
    for file in (Path(operator.__file__).parent / CRDS).glob("*.yaml"):
        crd = yaml.safe_load(file.read_text())["spec"]
        (version,) = crd["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        described = ("apiVersion", "kind", "metadata")
        schema["properties"] |= {name: {OPEN: True} for name in described}
        found[crd["names"]["kind"]] = closed(schema)
    return found


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get(OPEN):
        made["additionalProperties"] = False
    return made


def mistakes(document: Any, schema: dict[str, Any]) -> list[str]:
    import jsonschema

    return [one.message for one in jsonschema.Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("kind", ["DaskCluster", "DaskWorkerGroup"])
def test_the_operator_accepts_the_manifests(schemas, kind):
    assert mistakes(documents()[kind], schemas[kind]) == []


def test_the_driver_is_a_pod_as_the_operator_knows_them(schemas):
    pod = schemas["DaskCluster"]["properties"]["spec"]["properties"]["worker"]["properties"]["spec"]
    assert mistakes(documents()["Job"]["spec"]["template"]["spec"], pod) == []


def test_all_parts_are_of_one_cluster_and_one_image():
    found = documents()
    cluster = found["DaskCluster"]["metadata"]["name"]
    assert found["DaskWorkerGroup"]["spec"]["cluster"] == cluster
    text = "".join(file.read_text() for file in MANIFESTS.glob("*.yaml"))
    images = {line.split()[-1] for line in text.splitlines() if " image:" in line}
    assert images == {"homodyne-dask:1"}
    address = f"tls://{cluster}-scheduler:8786"
    words = {word for word in text.split() if "tls://" in word}
    assert words == {address, f"--scheduler={address}"}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return only


@contextmanager
def started(command: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A command of a pod as a process of this machine; the volumes are folders here."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = os.environ | {"PATH": path} | environment
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=variables)
        yield process
        process.terminate()
        process.wait(60)


def test_the_commands_of_the_pods_give_the_bits_of_a_fit_in_this_process(tmp_path):
    pytest.importorskip("dask_kubernetes", reason="make test-deploy installs it")
    written(tmp_path)
    make_key(tmp_path / "key")
    tcp, page = (str(free_ports(2) + n) for n in range(2))
    found = documents()

    def local(pod: dict[str, Any], *more: str) -> list[str]:
        here = {
            "homodyne-scheduler:8786": f"127.0.0.1:{tcp}", "--port=8786": f"--port={tcp}",
            "=:8787": f"=127.0.0.1:{page}", "/key": f"{tmp_path}/key", "/data": str(tmp_path),
            "$(DASK_WORKER_NAME)": "one",
        }  # fmt: skip
        words = container(pod)["command"]
        for there, ours in here.items():
            words = [word.replace(there, ours, 1) for word in words]
        return [*words, *more]

    scheduler = found["DaskCluster"]["spec"]["scheduler"]["spec"]
    worker = found["DaskCluster"]["spec"]["worker"]["spec"]
    driver = found["Job"]["spec"]["template"]["spec"]
    settings = {one["name"]: one["value"] for one in container(scheduler)["env"]}
    on_loopback = ("--host", "127.0.0.1")
    with ExitStack() as pods:
        pods.enter_context(started(local(scheduler, *on_loopback), tmp_path, **settings))
        pods.enter_context(started(local(worker, *on_loopback, "--no-nanny"), tmp_path))
        fit = pods.enter_context(started(local(driver, "--no-pictures"), tmp_path))
        assert fit.wait(200) in (0, 3), (tmp_path / "log").read_text()
    assert folder_bits(tmp_path / "result") == here(tmp_path)
