"""What is wrong around a process is named, with the variable or the limit that sets it."""

import sys

import pytest

from homodyne_dask import surroundings
from homodyne_dask.cli.exit_status import error_sentence
from homodyne_dask.surroundings import blamed

OUTSIDE = {
    "a value": ("JAX_ENABLE_X64", "maybe", ValueError("invalid 'maybe' for 'JAX_ENABLE_X64'")),
    "a flag": ("JAX_LOGGING_LEVEL", "loud", ValueError('"loud" for JAX flag jax_logging_level')),
    "quoted": ("DASK_X__TTL", "soon", ValueError("Could not interpret 'soon' as a number")),
    "of a library": ("SOURCE_DATE_EPOCH", "abc", ValueError("invalid literal for int(): 'abc'")),
    "missing": ("NOTHING", "", KeyError("JUPYTERHUB_SERVICE_PREFIX")),
    "not ours": ("JAX_ENABLE_X64", "1", ValueError("operands could not be broadcast")),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_an_error_names_the_variable_it_comes_from(case, monkeypatch):
    name, value, error = OUTSIDE[case]
    monkeypatch.setenv(name, value)
    named = {"missing": "JUPYTERHUB_SERVICE_PREFIX, which is not set", "not ours": ""}
    assert named.get(case, f"sets {name}='{value}'") in blamed(error)
    assert ("this is a bug" in error_sentence(error)) is (case == "not ours")


def test_packages_that_hide_those_of_the_environment_are_named(tmp_path, monkeypatch):
    for name in ("numpy", "random", "of_the_site"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path}:")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    said = blamed(ImportError("Importing the numpy C-extensions failed"))
    assert f"PYTHONPATH: {tmp_path} hides numpy, random of" in said


def test_shared_memory_and_threads_that_are_missing_are_named(tmp_path, monkeypatch):
    assert surroundings.shared_memory().ok
    assert surroundings.loopback().ok
    monkeypatch.setattr(surroundings, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(surroundings.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(surroundings.resource, "getrlimit", lambda _: (50, 50))
    monkeypatch.setattr(surroundings, "_threads_of_user", lambda: 45)
    words = surroundings.in_words(surroundings.examined())
    assert "--shm-size" in words
    assert "open files: at most 50, raise ulimit -n" in words
    said = error_sentence(RuntimeError("can't start new thread"))
    assert "no more processes or threads" in said
    assert "5 of 50 left" in said
    assert "ulimit -u" in said
