"""`doctor` names what is wrong around a process, and its exit status says whether anything is."""

import json

import pytest

from homodyne_dask import surroundings
from homodyne_dask.cli.commands import doctor
from homodyne_dask.cli.exit_status import blamed, error_sentence
from homodyne_dask.cluster import workers as memory
from homodyne_dask.machine.cores_and_cgroup_limits import cores, jax_threads
from tests.run_command import run


@pytest.mark.parametrize("free", [1e9, 64e9])
def test_the_exit_status_and_the_json_say_whether_anything_has_to_be_done(monkeypatch, free):
    monkeypatch.setattr(memory, "available_memory", lambda: free)
    printed = run("doctor")
    assert printed.exit_code == (free < 2e9)
    assert ("to do: workers need 2 GB" in printed.output) is (free < 2e9)
    report = json.loads(run("doctor", "--json").stdout)
    assert report["ok"] is (free > 2e9)
    assert [line["what"] for line in report["lines"] if not line["ok"]] == ["memory"] * (free < 2e9)


def test_an_old_library_and_a_process_bound_to_a_core_are_named_with_the_remedy(monkeypatch):
    assert not any(finding.advice for finding in doctor._versions())
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.1")
    advice = {finding.what: finding.advice for finding in doctor._versions()}
    assert advice["zarr"].startswith("pip install 'zarr")
    monkeypatch.setattr(doctor, "cores", lambda: 1)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 64)
    assert "taskset" in next(doctor._machine()).advice


@pytest.mark.parametrize(
    ("name", "value", "ok"),
    [
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=true", False),
        ("JAX_DISABLE_JIT", "true", False),
        ("JAX_DISABLE_JIT", "0", True),
        ("JAX_PLATFORMS", "cpu", True),
    ],
)
def test_variables_that_slow_jax_are_named(monkeypatch, name, value, ok):
    for given in [n for n in doctor.os.environ if n.startswith(("JAX_", "XLA_"))]:
        monkeypatch.delenv(given)
    monkeypatch.setenv(name, value)
    assert any(finding.advice for finding in doctor._variables()) is not ok


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


OUTSIDE = {
    "a value": ("JAX_ENABLE_X64", "maybe", ValueError("invalid 'maybe' for 'JAX_ENABLE_X64'")),
    "a flag": ("JAX_LOGGING_LEVEL", "loud", ValueError('"loud" for JAX flag jax_logging_level')),
    "quoted": ("DASK_X__TTL", "soon", ValueError("Could not interpret 'soon' as a number")),
    "not ours": ("JAX_ENABLE_X64", "1", ValueError("operands could not be broadcast")),
    "not ours, of a shell": ("_", "/bin/sh", ValueError("too many values in (_, x)")),
    "not ours, in small letters": ("min_lag", "2", ValueError("min_lag is no number")),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_an_error_names_the_variable_it_comes_from(case, monkeypatch):
    name, value, error = OUTSIDE[case]
    monkeypatch.setenv(name, value)
    ours = case.startswith("not ours")
    assert blamed(error) == "" if ours else f"sets {name}='{value}'" in blamed(error)
    assert ("this is a bug" in error_sentence(error)) is ours


def test_shared_memory_and_threads_that_are_missing_are_named(tmp_path, monkeypatch):
    assert surroundings.in_words(surroundings.examined()) == ""
    monkeypatch.setattr(surroundings, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(surroundings.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(surroundings.resource, "getrlimit", lambda _: (40, 40))
    assert "--shm-size" in surroundings.in_words(surroundings.examined())
    said = error_sentence(RuntimeError("can't start new thread"))
    assert "no more processes or threads" in said
    assert "at most 40" in said
    assert "ulimit -u" in said
