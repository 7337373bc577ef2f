"""`doctor` names what is wrong, its exit status says whether anything is; threads that JAX computes on."""

import json
import time

import pytest

from homodyne_dask.cli import doctor_checks as checks
from homodyne_dask.cluster import memory, workers
from homodyne_dask.kernels.cache_folder import FOLDER
from homodyne_dask.machine.cores_and_cgroup_limits import cores, jax_threads
from homodyne_dask.surroundings import Finding
from tests.run_command import run

WRONG = "--xla_cpu_max_iso=AVX2"


def doctor(monkeypatch, findings: list[Finding], *words: str):
    monkeypatch.setattr(checks, "examine", lambda: iter(findings))
    return run("doctor", *words)


GOOD, BAD = Finding("cores", "2 of 2"), Finding("memory", "0.1 GB", "buy some")


@pytest.mark.parametrize(
    ("findings", "status"), [([GOOD, GOOD], 0), ([GOOD, BAD], 1)], ids=["good", "bad"]
)
def test_the_exit_status_and_the_json_say_whether_anything_has_to_be_done(
    monkeypatch, findings, status
):
    printed = doctor(monkeypatch, findings)
    assert printed.exit_code == status
    assert ("to do: buy some" in printed.output) is bool(status)
    printed = doctor(monkeypatch, findings, "--json")
    assert printed.exit_code == status
    report = json.loads(printed.stdout)
    assert report["ok"] is (status == 0)
    assert [line["ok"] for line in report["lines"]] == [finding.ok for finding in findings]


def test_a_flag_that_ends_every_process_is_named_and_nothing_is_measured(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{WRONG} --xla_cpu_max_isa=SSE4_2")
    monkeypatch.setattr(checks, "kernel_rate", lambda: pytest.fail("measured"))
    _, harmful, fatal = [one for one in checks.examine() if one.what == "XLA_FLAGS"]
    assert WRONG in fatal.value
    assert not harmful.ok
    assert not fatal.ok


ENVIRONMENTS = {
    "nothing": ({}, ""),
    "NPROC as it should be": ({"NPROC": "1"}, ""),
    "NPROC no number": ({"NPROC": "all"}, "not a number"),
    "NPROC of no thread": ({"NPROC": "0"}, "not a number"),
    "NPROC above the cores": ({"NPROC": "100000"}, "more threads"),
    "a variable nobody reads": ({"JAX_NUM_THREADS": "4"}, "unset it"),
    "NumPy's threads": ({"OMP_NUM_THREADS": "4"}, ""),
    "a variable misspelt": ({"JAX_ENABLE_X46": "1"}, "JAX_ENABLE_X64"),
    "float64 off": ({"JAX_ENABLE_X64": "0"}, ""),
    "no compilation": ({"JAX_DISABLE_JIT": "true"}, "unset it"),
    "compilation": ({"JAX_DISABLE_JIT": "0"}, ""),
    "graphics processors": ({"JAX_PLATFORMS": "cuda"}, "set it to cpu"),
    "the processor": ({"JAX_PLATFORMS": "cpu"}, ""),
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_a_variable_is_explained(case):
    variables, advice = ENVIRONMENTS[case]
    (finding,) = checks.environment_findings(variables)
    assert advice in finding.advice
    assert finding.ok is (advice == "")


@pytest.mark.long
def test_a_bound_process_and_little_memory_are_seen(monkeypatch):
    monkeypatch.setattr(checks, "cores", lambda: 1)
    monkeypatch.setattr(checks.os, "cpu_count", lambda: 64)
    assert "batch system" in checks.processors().advice
    monkeypatch.setattr(checks, "cores", lambda: 64)
    assert checks.processors().ok
    monkeypatch.setattr(checks, "cpu_quota", lambda: 4.0)
    assert "a quota of 4" in checks.processors().value
    monkeypatch.setattr(memory, "available_memory", lambda: 1e8)
    monkeypatch.setattr(checks, "MEASUREMENT_SECONDS", 0.0)
    (found,) = [one for one in checks.examine() if one.what == "memory"]
    assert not found.ok


def test_an_old_library_is_named_with_the_command_that_upgrades_it(monkeypatch):
    assert all(finding.ok for finding in checks.library_versions())
    monkeypatch.setattr(checks.metadata, "version", lambda name: "0.1")
    advice = {finding.what: finding.advice for finding in checks.library_versions()}
    assert advice["zarr"].startswith("pip install 'zarr>=")


def test_a_folder_that_cannot_be_written_is_seen(tmp_path, monkeypatch):
    assert str(tmp_path) in checks.writable_folder("working folder", tmp_path).value
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr(checks, "fatal_reason", lambda: "it ends here")
    (found,) = [one for one in checks.examine() if one.what == "temporary folder"]
    assert not found.ok


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("slowest", "share", "ok"), [(1.0, 1, True), (1e15, 1, False), (1e15, 1e-12, True)]
)
def test_a_slow_kernel_is_seen_but_not_one_that_waits_for_cores(monkeypatch, slowest, share, ok):
    clock = time.process_time
    monkeypatch.setattr(checks.time, "process_time", lambda: share * clock())
    monkeypatch.setattr(checks, "MEASUREMENT_SECONDS", 0.0)
    monkeypatch.setattr(workers, "SLOWEST_PAIRS_PER_SECOND", slowest)
    found = checks.kernel_rate()
    assert found.ok is ok
    assert ("other programs" in found.value) is (share < 1)


def test_where_compiled_kernels_are_kept_or_why_not_is_shown(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv(FOLDER, str(folder))
    kept = checks.compiled_kernels()
    assert kept.ok
    assert str(folder) in kept.value
    folder.chmod(0o755)
    refused = checks.compiled_kernels()
    assert not refused.ok
    assert "this user alone" in refused.value
    assert f"set {FOLDER} to a new private folder" in refused.advice
    monkeypatch.setenv(FOLDER, "off")
    assert checks.compiled_kernels().ok
    assert "not kept" in checks.compiled_kernels().value


@pytest.mark.parametrize(
    ("given", "threads"),
    [({"NPROC": "3"}, 3), ({"NPROC": "3", "PJRT_NPROC": "2"}, 2), ({"NPROC": "many"}, None)],
    ids=["NPROC", "PJRT_NPROC wins", "no number"],
)
def test_threads_are_what_the_environment_says_or_all_cores(monkeypatch, given, threads):
    for name in ("NPROC", "PJRT_NPROC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert jax_threads() == (threads or cores())
