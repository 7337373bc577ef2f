"""A scheduler that outlives one fit, a fit that is a job itself, and one that is the tasks of an srun."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from homodyne_dask.cli import main
from homodyne_dask.cluster.connect import connect, connect_by_file
from homodyne_dask.errors import ClusterError
from homodyne_dask.models import LAMINAR_FLOW
from tests.apps.slurm.loopback import POOR
from tests.deploy.small_fit import fit_on_tasks
from tests.result_bits import folder_bits

pytestmark = [
    pytest.mark.cluster, pytest.mark.timeout(280), pytest.mark.usefixtures("no_pictures")
]  # fmt: skip


def run(*words: str | Path, folder: Path, status: int = 0) -> str:
    with contextlib.chdir(folder):
        ended = CliRunner().invoke(main, [str(word) for word in words])
    assert ended.exit_code == status, ended.output
    return ended.output


@contextlib.contextmanager
def standing(file: Path, *words: str) -> Iterator[str]:
    """Run `cluster start` until its `with` ends; yields what it prints when it can be used."""
    command = [sys.executable, "-m", "homodyne_dask.cli", "cluster", "start", *words]
    command += ["--scheduler-file", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield "".join(islice(process.stdout or (), 3))
        finally:
            assert "stopped" in run("cluster", "stop", "--scheduler-file", file, folder=file.parent)
    assert process.returncode == 0
    assert not [*file.parent.iterdir()]


def written(folder: Path, scan, **more) -> Path:
    asked = {
        "data": scan.path, "model": LAMINAR_FLOW.name, "gap": "200 um", "initial": POOR,
        "memory": "stream", "output": str(folder / "result"),
    }  # fmt: skip
    plain = json.loads(json.dumps(asked | more, default=float))
    (folder / "fit.yaml").write_text(yaml.safe_dump(plain))
    return folder / "fit.yaml"


def jobs_of(folder: Path) -> set[str]:
    history = json.loads((folder / "summary.json").read_text())["history"]
    return {entry["job"] for entry in history if "job" in entry}


@pytest.fixture(scope="session")
def alone(quiet, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    quiet.to_json(folder / "summary.json")
    return folder


@pytest.mark.slow
def test_a_persistent_scheduler_serves_fits_until_it_is_stopped(
    slurm, small, small_quiet, tmp_path
):
    file, here = tmp_path / "standing" / "scheduler.json", {"folder": tmp_path}
    with standing(file, "--site", "loopback") as said:
        assert "tls://127.0.0.1" in said
        assert file.parent.stat().st_mode & 0o777 == 0o700
        run("fit", written(tmp_path, small), "--scheduler-file", file, **here)
        small_quiet.to_json(tmp_path / "summary.json")
        assert folder_bits(tmp_path / "result") == folder_bits(tmp_path)
        told = run("cluster", "status", "--scheduler-file", file, **here)
        assert "1, with 1 thread" in told
        again = run("cluster", "start", "--scheduler-file", file, status=2, **here)
        assert "belongs to a scheduler on" in again
    gone = run("cluster", "status", "--scheduler-file", file, status=2, **here)
    assert "check that the scheduler is running" in gone


def test_a_persistent_scheduler_on_this_machine_is_for_who_has_its_key(tmp_path):
    file = tmp_path / "standing" / "scheduler.json"
    with standing(file) as said:
        assert "tls://127.0.0.1" in said
        with pytest.raises(ClusterError), connect(json.loads(file.read_text())["address"]):
            pass
        with connect_by_file(file) as client:
            assert client.submit(sum, [1, 2]).result(timeout=120) == 3


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_when_it_is_submitted_again(slurm, scan, alone, tmp_path):
    config = written(tmp_path, scan)
    numbers = []
    for _ in range(2):
        said = run("submit", config, "--site", "loopback", "--jobs", "1:2", folder=tmp_path)
        numbers.append(said.split()[1])
        if len(numbers) == 1:
            checkpoint = tmp_path / "result" / "checkpoint.json"
            assert slurm.wait_for(checkpoint.exists, 120), slurm.logs()
            slurm.call("scancel", "--full", "--signal=KILL", numbers[0])
            # its workers leave by themselves
            assert slurm.wait_for(lambda: not slurm.jobs(), 90)
    assert slurm.wait_for((tmp_path / "result" / "summary.json").exists, 100), slurm.logs()
    assert folder_bits(tmp_path / "result") == folder_bits(alone)
    assert jobs_of(tmp_path / "result") == set(numbers)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_driver_that_reaches_its_walltime_stops_before_goes_on_in_the_next_job_and_tells_of_both(
    slurm, scan, alone, tmp_path, monkeypatch
):
    """Nobody signals but SLURM: it lets the fit wait for workers until the walltime of its job is near."""
    short = {"walltime": "00:02:00", "notice": 30}
    monkeypatch.setitem(slurm.section, "driver", slurm.section["driver"] | short)
    config = written(tmp_path, scan)
    number = run("submit", config, "--site", "loopback", folder=tmp_path).split()[1]
    result, nodes = tmp_path / "result", "NodeName=n1,n2,n3"
    try:
        assert slurm.wait_for(lambda: len(slurm.running()) == 2, 120), slurm.logs()
        slurm.call("scontrol", "update", nodes, "State=DRAIN", "Reason=test")
        assert slurm.wait_for((result / "checkpoint.json").exists, 120), slurm.logs()
        (worker,) = set(slurm.running()) - {number}
        slurm.call("scancel", "--signal=KILL", worker)  # there is no place for another
        log = next((slurm.folder / "logs").glob(f"*-driver-{number}.out"))
        assert slurm.wait_for(lambda: "ended with status" in log.read_text(), 200), log.read_text()
        assert "TIME LIMIT" not in log.read_text()
        assert slurm.wait_for(lambda: number in slurm.pending(), 120)
    finally:
        slurm.call("scontrol", "update", nodes, "State=RESUME")
    slurm.call("scontrol", "update", f"JobId={number}", "StartTime=now")  # SLURM lets it wait 2 min
    assert slurm.wait_for((result / "summary.json").exists, 100), log.read_text()
    assert folder_bits(result) == folder_bits(alone)
    assert jobs_of(result) == {number, f"{number}.1"}


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_two_workers_of_one_srun_give_the_bits_of_a_fit_in_this_process(tmp_path):
    fit_on_tasks(["srun", "--ntasks=4", "--mem-per-cpu=2000"], "srun", tmp_path)
