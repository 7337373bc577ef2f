"""The threads that JAX computes on."""

import pytest

from homodyne_dask.store.processes import cores, jax_threads


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
