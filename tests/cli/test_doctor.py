"""The doctor names what is wrong, and its exit status says whether anything is."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from homodyne_dask.cli import doctor, main
from homodyne_dask.cli.doctor import (
    audit,
    child,
    environment,
    flags,
    machine,
    rates,
    static,
    workers,
)
from homodyne_dask.cli.doctor import workload as workloads
from homodyne_dask.cli.doctor.child import Child, ChildError
from homodyne_dask.cli.doctor.line import Line
from homodyne_dask.cli.doctor.settings import Setting
from homodyne_dask.kernels.gram import Gram

WRONG = "--xla_cpu_max_iso=AVX2"


@pytest.fixture(scope="module")
def small() -> workloads.Workload:
    return workloads.Workload(bins=2, side=64)


def run(monkeypatch, lines: list[Line], *words: str):
    monkeypatch.setattr(doctor, "examine", lambda cluster: iter(lines))
    return CliRunner().invoke(main, ["doctor", *words])


WELL, ILL = Line("cores", "2 of 2"), Line("memory", "0.1 GB", "buy some")


@pytest.mark.parametrize(
    ("lines", "status"), [([WELL, WELL], 0), ([WELL, ILL], 1)], ids=["well", "not well"]
)
def test_the_exit_status_and_the_json_say_whether_all_is_well(monkeypatch, lines, status):
    printed = run(monkeypatch, lines)
    assert printed.exit_code == status
    assert ("look at this: buy some" in printed.output) is bool(status)
    said = run(monkeypatch, lines, "--json")
    assert said.exit_code == status
    told = json.loads(said.stdout)
    assert told["ok"] is (status == 0)
    assert [line["ok"] for line in told["lines"]] == [line.ok for line in lines]


def test_the_audit_is_printed_and_stands_in_the_json(monkeypatch):
    rows = [{"setting": "--some=1", "known": "known", "rate x1": 1.0, "bits x1": "same"}]
    monkeypatch.setattr(audit, "audit", lambda: iter(rows))
    assert "--some=1" in run(monkeypatch, [WELL], "--flags").output
    assert json.loads(run(monkeypatch, [WELL], "--flags", "--json").stdout)["flags"] == rows


def test_a_wrong_flag_is_named_with_the_right_one():
    (bad,) = flags.bad(f"--xla_cpu_enable_fast_math=false {WRONG}")
    assert bad[0] == WRONG
    assert "Unknown flag" in bad[1]
    assert "--xla_cpu_max_isa?" in flags.advice(WRONG)
    found = list(environment.lines({"XLA_FLAGS": f"{WRONG} intra_op_parallelism_threads=1"}))
    assert WRONG in found[0].value
    assert not any(line.ok for line in found)


def test_a_flag_about_to_go_is_named():
    (line,) = environment.lines({"XLA_FLAGS": "--xla_cpu_use_thunk_runtime=false"})
    assert "next releases" in line.advice


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
    given, advice = ENVIRONMENTS[case]
    (line,) = environment.lines(given)
    assert advice in line.advice
    assert line.ok is (advice == "")


def test_a_bound_process_little_memory_and_an_old_processor_are_seen(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 64)
    assert "batch system" in machine.processors().advice
    monkeypatch.setattr(machine, "cores", lambda: 64)
    assert machine.processors().ok
    monkeypatch.setattr(machine, "_quota", lambda: 4.0)
    assert "quota" in machine.processors().advice
    little = SimpleNamespace(available=1e8, total=1e9)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: little)
    assert not machine.memory().ok
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    assert not machine.instructions({"sse4_2"}).ok
    assert machine.instructions({"avx2", "avx512f"}).value == "AVX2, AVX-512"


def test_an_old_library_is_named_with_the_command_that_mends_it(monkeypatch):
    assert all(line.ok for line in machine.versions())
    monkeypatch.setattr(machine.metadata, "version", lambda name: "0.1")
    found = {line.what: line.advice for line in machine.versions()}
    assert found["zarr"].startswith("pip install 'zarr>=")


def test_a_folder_that_cannot_be_written_is_seen(tmp_path):
    assert str(tmp_path) in machine.folder("working folder", tmp_path).value
    assert not machine.folder("working folder", tmp_path / "none").ok


def test_the_kernel_is_what_numpy_says_and_a_wrong_one_is_seen(small, monkeypatch):
    assert small.wrong() < rates.TOLERANCE
    assert small.gram().pairs.sum() > 0

    def silent(*_):
        return Gram(np.full((2, 10, 10), np.nan), np.zeros(2, int)), None

    monkeypatch.setattr(workloads, "block_gram", silent)
    assert small.wrong() == np.inf


class Fake:
    """A child that says what it is told to."""

    def __init__(self, environment):
        self.environment = environment

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self):
        if "XLA_FLAGS" in self.environment:
            raise ChildError("Unknown flag in XLA_FLAGS: --gone")
        apart = 1.0 if self.environment.get("HARM") else 1e-16
        moments = "AAAAAAAA8D8=" if self.environment.get("HARM") else "AAAAAAAAAEA="
        return {"first": 1.0, "pairs": 10**7, "moments": moments, "wrong": apart, "pool": 1}

    def seconds(self, threads, passes):
        return threads * passes * (0.2 if self.environment.get("HARM") else 0.1)


def test_a_rate_is_given_and_a_kernel_that_does_not_run_is_seen(monkeypatch):
    monkeypatch.setattr(rates, "Child", Fake)
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    float64, kernel = rates.kernel()
    assert float64.ok
    assert kernel.value.startswith("100 M pairs/s")
    monkeypatch.setenv("HARM", "1")
    assert not next(rates.kernel()).ok
    monkeypatch.setenv("XLA_FLAGS", "--gone")
    (line,) = rates.kernel()
    assert "Unknown flag" in line.value


def test_decoding_is_measured_on_a_chunk_of_the_schema(monkeypatch):
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    assert "GB/s" in rates.decoding().value


def test_a_cluster_that_does_not_start_is_seen(monkeypatch):
    def broken(**_):
        raise RuntimeError("no port")

    monkeypatch.setattr(workers, "local_cluster", broken)
    assert "no port" in workers.line().value


def test_the_audit_compares_each_setting_with_the_plain_environment(monkeypatch):
    monkeypatch.setattr(audit, "Child", Fake)
    monkeypatch.setattr(flags, "state", lambda words: "ends the process")
    harm, gone = (
        Setting("HARM=1", {"HARM": "1"}, ""),
        Setting("--gone", {"XLA_FLAGS": "--gone"}, ""),
    )
    good = Setting("OMP_NUM_THREADS=1", {"OMP_NUM_THREADS": "1"}, "")
    rows = list(audit.flag_rows([good, harm, gone], rounds=3))
    assert [row.get("rate x2") for row in rows] == [1.0, 0.5, None]
    assert [row.get("bits x1") for row in rows] == ["same", "WRONG", None]
    assert rows[2]["ends with"].endswith("--gone")
    rows += audit.thread_rows([good, harm], rounds=3)
    assert rows[-2]["M pairs/s, 2 calling"] == pytest.approx(100)
    text = "\n".join(audit.table(rows))
    assert "ends the process: Unknown flag" in text
    assert text.count("NPROC=1") == 1


def test_a_child_that_dies_leaves_its_reason():
    given = child.plain_environment() | {"XLA_FLAGS": WRONG}
    with Child(given) as dying, pytest.raises(ChildError, match=WRONG):
        dying.answer()


def test_static_constants_compile_for_every_theta_and_traced_ones_once(small, monkeypatch):
    monkeypatch.setattr(static, "THETAS", 2)
    monkeypatch.setattr(static, "CALLS", 1)
    traced, constant = static.rows(small)
    assert traced["compilations"] == 1
    assert constant["compilations"] == 2
