"""Linear algebra computes in the thread that calls it while initial values are searched."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import numpy as np
import pytest

from homodyne_dask.errors import SelectionError
from homodyne_dask.fitting.start import initial_values
from homodyne_dask.solver import _numpy_internals
from homodyne_dask.solver._numpy_internals import one_blas_thread


@pytest.fixture
def threads():
    """A function that returns the threads of OpenBLAS, of each copy in this process: two."""
    _numpy_internals._libraries.cache_clear()
    libraries = _numpy_internals._libraries()
    before = [get() for get, _ in libraries]
    for _, set_threads in libraries:
        set_threads(2)

    def of_all() -> int:
        (number,) = {get() for get, _ in libraries}
        return number

    assert of_all() == 2
    yield of_all
    for (_, set_threads), number in zip(libraries, before, strict=True):
        set_threads(number)


def test_a_search_has_one_thread_and_linear_algebra_its_own_again_after_it(threads, monkeypatch):
    def averages(*_):
        raise SelectionError(f"{threads()} threads")

    monkeypatch.setattr(initial_values, "binned_averages", averages)
    with pytest.raises(SelectionError, match="1 threads"):
        initial_values.find_initial_values(Mock(search=Mock(start=np.full(3, np.nan))))
    assert threads() == 2


def test_the_last_of_several_searches_gives_the_threads_back(threads):
    both = Barrier(2, timeout=30)

    def search(first: bool) -> int:
        with one_blas_thread():
            both.wait()  # both are inside
            if not first:
                both.wait()  # the other one has ended
                return threads()
        both.wait()
        return 1

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(search, (True, False))) == [1, 1]
    assert threads() == 2


def test_without_openblas_nothing_is_set(monkeypatch, tmp_path):
    monkeypatch.setattr(_numpy_internals, "_MAPS", tmp_path / "none")
    _numpy_internals._libraries.cache_clear()
    with one_blas_thread():
        assert _numpy_internals._libraries() == []
    _numpy_internals._libraries.cache_clear()
