"""The algebra of normal matrices against dense NumPy and known parts; one BLAS thread."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import random_correlation

from homodyne_dask.errors import SelectionError
from homodyne_dask.fitting.start import initial_values
from homodyne_dask.solver import _numpy_internals
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.normal_matrix import (
    SINGULAR,
    SINGULAR_OF_MEANS,
    eigensystem,
    inverse_of,
    pseudoinverse,
    root_of,
    sizes,
    solved,
)

UNITS = {
    "alike": np.ones(5),
    "1e-15 to 1e15": np.geomspace(1e-15, 1e15, 5),
    "1e15 to 1e-15": np.geomspace(1e15, 1e-15, 5),
    "tiny": np.full(5, 1e-100),
    "huge": np.full(5, 1e100),
}
"""Of parameters: the diagonal of the normal matrix has their squares, 1e-30 to 1e30."""


def with_values(values) -> np.ndarray:
    return random_correlation.rvs(values, random_state=0)


WELL = with_values([0.05, 0.3, 0.65, 1.5, 2.5])


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_inverse_and_solution_are_exact_in_any_units(unit):
    normal = WELL * np.outer(unit, unit)
    exact, scale = np.linalg.inv(WELL), np.outer(unit, unit)
    right = np.random.default_rng(1).standard_normal((5, 2)) * unit[:, None]
    np.testing.assert_array_equal(sizes(normal), np.sqrt(np.diag(normal)))
    root = eigensystem(normal).inverse_root
    for inverse in (inverse_of(normal), pseudoinverse(normal), root @ root.T):
        np.testing.assert_allclose(inverse * scale, exact, rtol=0, atol=1e-12)
    for of in (right, right[:, 0]):
        x = np.linalg.solve(WELL, (of.T / unit).T)
        np.testing.assert_allclose((solved(normal, of).T * unit).T, x, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize("null", [1, 2])
def test_null_directions_are_found_in_any_units(unit, null):
    values = [0.0] * null + [5 / (5 - null)] * (5 - null)
    scaled = with_values(values)
    system = eigensystem(scaled * np.outer(unit, unit))
    assert system.above(SINGULAR_OF_MEANS).sum() == 5 - null
    assert not system.above_rounding(np.zeros(5))[0]
    inverse = system.pseudoinverse(SINGULAR_OF_MEANS) * np.outer(unit, unit)
    np.testing.assert_allclose(inverse, np.linalg.pinv(scaled, 1e-9, hermitian=True), atol=1e-11)
    np.testing.assert_array_less(system.determined(SINGULAR_OF_MEANS), 0.5)


@pytest.mark.parametrize("limit", [SINGULAR, SINGULAR_OF_MEANS])
@pytest.mark.parametrize(("over", "known"), [(0.5, False), (2.0, True)])
def test_an_eigenvalue_counts_from_its_limit_on(limit, over, known):
    small = 2 * limit * over
    system = eigensystem(np.array([[1, 1 - small], [1 - small, 1]]))  # eigenvalues small and 2
    assert system.above(limit).tolist() == [known, True]
    assert system.determined(limit).tolist() == [known, known]
    largest = np.abs(system.pseudoinverse(limit)).max()
    np.testing.assert_allclose(largest, 0.5 / small if known else 0.25, rtol=0.1)


def test_eigenvalues_of_the_inverse_are_no_less_than_rounding():
    inverse = inverse_of(np.ones((2, 2)))
    np.testing.assert_allclose(np.linalg.eigvalsh(inverse), [0.5, 1 / SINGULAR], rtol=1e-2)
    assert np.isfinite(eigensystem(-np.ones((2, 2))).inverse_root).all()


@pytest.mark.parametrize(
    ("rounding", "known"),
    [([0, 0], True), ([0, 1e-3], True), ([0, 0.3], False), ([np.inf, 0], False)],
)
def test_an_eigenvalue_counts_from_the_rounding_of_the_diagonal_on(rounding, known):
    system = eigensystem(np.array([[1, 0.9], [0.9, 1]]))  # eigenvalues 0.1 and 1.9
    assert system.above_rounding(np.array(rounding, float))[0] == known


def test_a_parameter_without_information_takes_none_of_the_others():
    normal = np.zeros((6, 6))
    normal[:5, :5] = WELL
    system = eigensystem(normal)
    assert system.size[5] == 1
    assert system.determined(SINGULAR_OF_MEANS).tolist() == [True] * 5 + [False]
    expected = np.zeros((6, 6))
    expected[:5, :5] = np.linalg.inv(WELL)
    np.testing.assert_allclose(pseudoinverse(normal), expected, atol=1e-12)
    np.testing.assert_array_equal(solved(np.zeros((2, 2)), np.zeros(2)), np.zeros(2))


def test_another_scale_is_kept():
    size = np.array([2.0, 0.5])
    system = eigensystem(np.array([[4.0, 0.3], [0.3, 0.75]]), size)
    np.testing.assert_allclose(system.values, np.linalg.eigvalsh([[1, 0.3], [0.3, 3]]))
    np.testing.assert_array_equal(system.size, size)


def test_one_parameter_and_none():
    one = np.array([[4e-30]])
    for inverse in (inverse_of(one), pseudoinverse(one), solved(one, np.eye(1))):
        np.testing.assert_allclose(inverse, [[0.25e30]], rtol=1e-13)
    assert pseudoinverse(np.zeros((1, 1))).tolist() == [[0.0]]
    none = np.zeros((0, 0))
    for empty in (inverse_of(none), pseudoinverse(none), solved(none, none), root_of(none)):
        assert empty.shape == (0, 0)
    assert eigensystem(none).determined(SINGULAR).shape == (0,)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (1, 0)])
def test_what_is_not_finite_gives_no_number(wrong, place):
    normal = np.eye(2)
    normal[place] = normal[place[::-1]] = wrong
    try:
        system = eigensystem(normal)
    except np.linalg.LinAlgError:
        return
    assert not np.isfinite(system.inverse).any()
    assert not np.isfinite(system.pseudoinverse(SINGULAR)).any()
    assert not system.determined(SINGULAR).any()


def test_the_square_of_a_root_is_the_matrix_without_its_negative_part():
    matrix = np.diag([4.0, 1e-30, -1e-17])
    np.testing.assert_allclose(root_of(matrix) @ root_of(matrix).T, np.diag([4.0, 1e-30, 0.0]))


@pytest.fixture
def threads():
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
    request = Mock(problem=Mock(model=Mock(start="transport")))
    with pytest.raises(SelectionError, match="1 threads"):
        initial_values.find_initial_values(request)
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
