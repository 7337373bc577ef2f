"""`doctor` names what is wrong, and its exit status says whether anything is."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from homodyne_dask.apps.doctor import Finding, environment, kernel_process, machine
from homodyne_dask.apps.doctor import doctor_command as doctor
from homodyne_dask.apps.doctor import measured_speed as rates
from homodyne_dask.apps.doctor import workload as workloads
from homodyne_dask.apps.doctor.kernel_process import KernelProcess, KernelProcessError
from homodyne_dask.cli import main
from homodyne_dask.cluster import local
from homodyne_dask.kernels.cache_folder import FOLDER
from homodyne_dask.kernels.gram import Gram
from tests.apps.doctor.fake_kernel_process import FakeKernelProcess

WRONG = "--xla_cpu_max_iso=AVX2"


@pytest.fixture(scope="module")
def small() -> workloads.Workload:
    return workloads.Workload(bins=2, side=64)


def run(monkeypatch, findings: list[Finding], *words: str):
    monkeypatch.setattr(doctor, "examine", lambda cluster: iter(findings))
    return CliRunner().invoke(main, ["doctor", *words])


GOOD, BAD = Finding("cores", "2 of 2"), Finding("memory", "0.1 GB", "buy some")


@pytest.mark.parametrize(
    ("findings", "status"), [([GOOD, GOOD], 0), ([GOOD, BAD], 1)], ids=["good", "bad"]
)
def test_the_exit_status_and_the_json_say_whether_anything_has_to_be_done(
    monkeypatch, findings, status
):
    printed = run(monkeypatch, findings)
    assert printed.exit_code == status
    assert ("to do: buy some" in printed.output) is bool(status)
    printed = run(monkeypatch, findings, "--json")
    assert printed.exit_code == status
    report = json.loads(printed.stdout)
    assert report["ok"] is (status == 0)
    assert [line["ok"] for line in report["lines"]] == [finding.ok for finding in findings]


@pytest.mark.long
def test_a_wrong_flag_is_named_with_the_right_one():
    ((word, reason),) = environment.fatal_flags(f"--xla_cpu_enable_fast_math=false {WRONG}")
    assert word == WRONG
    assert "Unknown flag" in reason
    assert "--xla_cpu_max_isa?" in environment.advice_on_flag(WRONG)
    flags = {"XLA_FLAGS": f"{WRONG} intra_op_parallelism_threads=1"}
    findings = list(environment.environment_findings(flags))
    assert WRONG in findings[0].value
    assert not any(finding.ok for finding in findings)


def test_a_deprecated_flag_is_named():
    (finding,) = environment.environment_findings(
        {"XLA_FLAGS": "--xla_cpu_use_thunk_runtime=false"}
    )
    assert "future release" in finding.advice


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
    (finding,) = environment.environment_findings(variables)
    assert advice in finding.advice
    assert finding.ok is (advice == "")


def test_a_bound_process_little_memory_and_an_old_processor_are_seen(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 64)
    assert "batch system" in machine.processors().advice
    monkeypatch.setattr(machine, "cores", lambda: 64)
    assert machine.processors().ok
    monkeypatch.setattr(machine, "_quota", lambda: 4.0)
    assert "quota" in machine.processors().advice
    monkeypatch.setattr(machine, "available_memory", lambda: 1e8)
    assert not machine.memory().ok
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    assert not machine.instructions({"sse4_2"}).ok
    assert machine.instructions({"avx2", "avx512f"}).value == "AVX2, AVX-512"


def test_an_old_library_is_named_with_the_command_that_upgrades_it(monkeypatch):
    assert all(finding.ok for finding in machine.library_versions())
    monkeypatch.setattr(machine.metadata, "version", lambda name: "0.1")
    advice = {finding.what: finding.advice for finding in machine.library_versions()}
    assert advice["zarr"].startswith("pip install 'zarr>=")


def test_a_folder_that_cannot_be_written_is_seen(tmp_path):
    assert str(tmp_path) in machine.writable_folder("working folder", tmp_path).value
    assert not machine.writable_folder("working folder", tmp_path / "none").ok


def test_the_kernel_agrees_with_numpy_and_a_wrong_one_is_seen(small, monkeypatch):
    assert small.error() < rates.MAX_KERNEL_DIFFERENCE
    assert small.gram().pairs.sum() > 0

    def not_a_number(*_):
        return Gram(np.full((2, 10, 10), np.nan), np.zeros(2, int)), None

    monkeypatch.setattr(workloads, "transport_gram", not_a_number)
    assert small.error() == np.inf


def test_the_rate_of_the_kernel_is_printed_and_a_kernel_that_does_not_run_is_seen(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(rates, "KernelProcess", FakeKernelProcess)
    monkeypatch.setattr(rates, "MEASUREMENT_SECONDS", 0.0)
    float64, kernel = rates.kernel_findings()
    assert float64.ok
    assert kernel.value.startswith("100 M pairs/s")
    monkeypatch.setenv("HARM", "1")
    wrong, _, refused = rates.kernel_findings()
    assert not wrong.ok
    assert "xla_new is refused by XLA: No such option" in refused.value
    monkeypatch.setenv("XLA_FLAGS", "--gone")
    (finding,) = rates.kernel_findings()
    assert "Unknown flag" in finding.value


def test_decoding_is_measured_on_a_chunk_of_the_schema(monkeypatch):
    monkeypatch.setattr(rates, "MEASUREMENT_SECONDS", 0.0)
    assert "GB/s" in rates.decoding().value


def test_a_cluster_that_does_not_start_is_seen(monkeypatch):
    def broken(**_):
        raise RuntimeError("no port")

    monkeypatch.setattr(local, "local_cluster", broken)
    assert "no port" in rates.local_cluster_start().value


def test_a_process_that_dies_leaves_its_reason():
    environment = kernel_process.plain_environment() | {"XLA_FLAGS": WRONG}
    with KernelProcess(environment) as dying, pytest.raises(KernelProcessError, match=WRONG):
        dying.answer()


def test_where_compiled_kernels_are_kept_or_why_not_is_shown(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv(FOLDER, str(folder))
    kept = machine.compiled_kernels()
    assert kept.ok
    assert str(folder) in kept.value
    folder.chmod(0o755)
    refused = machine.compiled_kernels()
    assert not refused.ok
    assert "others can access it" in refused.value
    assert "chmod" not in refused.value + refused.advice
    assert f"set {FOLDER} to a new private folder" in refused.advice
    monkeypatch.setenv(FOLDER, "off")
    assert machine.compiled_kernels().ok
    assert "not kept" in machine.compiled_kernels().value
