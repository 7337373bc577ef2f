"""Kernels are known without tracing them: by the code and the values that this process has, and all
else that a trace depends on."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask
from homodyne_dask.fitting.start.averages import _cell_moments
from homodyne_dask.kernels import compiled
from homodyne_dask.kernels import compiled as loaded_code
from homodyne_dask.kernels.cache_folder import FOLDER
from homodyne_dask.kernels.compiled import Kernel, known_options, made_of
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.subblock_loop import MeasuredBlock
from homodyne_dask.kernels.transport_backend import (
    TRANSPORT,
    transport_candidate_grams,
    transport_cell_sums,
    transport_gram,
    transport_robust_gram,
    transport_wide_gram,
)
from homodyne_dask.kernels.transport_evaluation import f_at, transport_point
from homodyne_dask.kernels.transport_kernels import robust_kernel
from homodyne_dask.models import BROWNIAN, Convention, shear_factor
from homodyne_dask.models import shear_factor as sincos
from tests.synthetic import FLOW, blocks, measured, summary

PACKAGE = Path(homodyne_dask.__file__).parent
TIMES = np.linspace(0.1, 3, 8).reshape(2, 4)
SHEAR = {"shear": True, "convention": Convention.PHYSICAL}


def f_known_by(*args, function=f_at, **static):
    """What tells the program of f at some times from others."""
    with float64_on_cpu():
        return made_of(function, args or (TIMES, TIMES, TIMES, TIMES), SHEAR | static)


def f_of_times(scale=1.0):
    """The bits of f by a new Kernel, and how often it was compiled."""
    new = Kernel(f_at, tuple(SHEAR), {})
    with float64_on_cpu():
        values = np.asarray(new(TIMES, TIMES, TIMES, scale * TIMES, **SHEAR))
    return values.tobytes(), new.compilations()


def test_a_function_that_was_made_outside_of_any_module_is_not_known():
    made = FunctionType((lambda: called()).__code__, {"called": f_at})  # noqa: F821
    assert made.__module__ is None
    assert f_known_by(function=made) is None


class CalledError(Exception):
    """A kernel was called."""


@pytest.fixture(scope="module")
def calls():
    """Each kernel of the transport models with arguments of its: (kernel, args, static arguments)."""
    found = []

    def called(kernel, *args, **static):
        found.append((kernel, args, static))
        raise CalledError

    scans = measured(FLOW, 40, (-40.0, 3.0))
    block, problem = blocks(scans)[0][1], scans.problem(loss="huber", loss_scale=1.3)
    at = transport_point(problem, FLOW, scans.time)
    uses = [
        lambda: transport_gram(at, block),
        lambda: transport_robust_gram(at, block, np.full((2, 2), 0.2)),
        lambda: transport_candidate_grams([at, at], block),
        lambda: transport_wide_gram([at, at], block, None),
        lambda: transport_cell_sums(at, block, np.zeros((64, 64), int), np.zeros((2, 1, 8))),
        lambda: summary(scans)(FLOW),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "__call__", called)
        for use in uses:
            with pytest.raises(CalledError):
                use()
    return found


@pytest.mark.long
def test_every_function_of_ours_that_is_traced_is_in_the_code(calls, monkeypatch):
    """Nothing is reached in a way that the walk does not see."""
    walks = []
    walked = loaded_code.walked
    monkeypatch.setattr(
        loaded_code, "walked", lambda *args: walks.append(walked(*args)) or walks[-1]
    )
    assert {*TRANSPORT.kernels.values(), _cell_moments} == {one for one, *_ in calls}
    known_options()
    for kernel, args, static in calls:
        with float64_on_cpu():
            assert made_of(kernel.function, args, static)
            run = code_run_by(partial(kernel._lowered, *args, **static))
        known = {code for f in walks[-1].functions for code in nested(f.__code__)}
        assert kernel.function.__code__ in run
        assert {code for code in run if code.co_filename != compiled.__file__} <= known


def code_run_by(action):
    """The code of this package that runs while JAX, which remembers nothing, does something."""
    run, tool = set(), sys.monitoring.PROFILER_ID

    def note(code, _):
        if Path(code.co_filename).is_relative_to(PACKAGE):
            run.add(code)
        return sys.monitoring.DISABLE

    jax.clear_caches()
    sys.monitoring.use_tool_id(tool, "code_run_by")
    try:
        sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, note)
        sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)
        sys.monitoring.restart_events()
        action()
    finally:
        sys.monitoring.set_events(tool, sys.monitoring.events.NO_EVENTS)
        sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, None)
        sys.monitoring.free_tool_id(tool)
    return run


def nested(code):
    """Code with that of the functions made in it."""
    return {code}.union(*(nested(c) for c in code.co_consts if isinstance(c, type(code))))


def test_a_kernel_whose_executable_is_kept_is_not_traced_and_has_the_same_bits(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(FOLDER, "off")
    wanted = f_of_times()
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    assert f_of_times() == wanted
    monkeypatch.setattr(Kernel, "_lowered", lambda *_, **__: pytest.fail("traced"))
    assert f_of_times() == (wanted[0], 0)


def test_two_processes_say_the_same():
    script = """import numpy as np
from homodyne_dask.kernels.compiled import made_of
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.transport_kernels import robust_kernel
with float64_on_cpu():
    print(made_of(robust_kernel.function, (np.zeros(3), 1.0), {"loss": "huber"}))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    with float64_on_cpu():
        here = made_of(robust_kernel.function, (np.zeros(3), 1.0), {"loss": "huber"})
    assert ran.stdout.strip() == here, ran.stderr


def other_file(patch):
    known = loaded_code._file_hash
    patch.setattr(loaded_code, "_file_hash", lambda m: f"{known(m)}{m is sincos}")


CHANGES = {
    "a constant of a module": lambda patch: patch.setattr(sincos, "NEAR", 0.25),
    "a value in a table": lambda patch: patch.setitem(sincos._TERMS, "float64", 12),
    "a function": lambda patch: patch.setattr(shear_factor, "sin_cos", sincos.sinc_and_slope),
    "the code of a function": lambda patch: patch.setattr(
        sincos.sin_cos, "__code__", sincos.sin_cos.__code__.replace(co_consts=(None, 2))
    ),
    "a method": lambda patch: patch.setattr(MeasuredBlock, "data_sums", MeasuredBlock.summed),
    "a file": other_file,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_code_does_is_part_of_what_a_program_is_known_by(monkeypatch, change):
    block = MeasuredBlock(*[jnp.asarray(TIMES)] * 9)
    before = f_known_by(block)
    CHANGES[change](monkeypatch)
    after = f_known_by(block)
    assert None not in (before, after)
    assert before != after


def test_a_changed_constant_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    before, _ = f_of_times()
    monkeypatch.setattr(sincos, "NEAR", 1e9)  # everywhere the series of few terms
    jax.clear_caches()
    after, compilations = f_of_times()
    monkeypatch.undo()
    jax.clear_caches()
    assert compilations == 1
    assert before != after


def test_shapes_types_and_static_arguments_are_part_of_it():
    x = TIMES
    known = [
        f_known_by(),
        f_known_by(x, x, x, x[:1]),
        f_known_by(x, x, x, x.astype(np.float32)),
        f_known_by(x, x, x, 1.0),
        f_known_by(x, x, x, np.float64(1)),
        f_known_by(x, x, x, (x, x)),
        f_known_by(shear=False),
        f_known_by(convention=Convention.HOMODYNE),
        f_known_by(function=_cell_moments.function),
    ]
    assert None not in known
    assert len(set(known)) == len(known)


CONTEXTS = {
    "float32": lambda: jax.enable_x64(False),
    "precision of products": lambda: jax.default_matmul_precision("float32"),
    "promotion of types": lambda: jax.numpy_dtype_promotion("strict"),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_settings_of_the_thread_are_part_of_it(context):
    with float64_on_cpu():
        before = made_of(f_at, (TIMES,), SHEAR)
        with CONTEXTS[context]():
            assert made_of(f_at, (TIMES,), SHEAR) != before


def test_what_depends_on_more_than_this_package_is_known_by_its_text_only(monkeypatch):
    def of_a_user(x):
        return 2 * x

    assert f_known_by(function=of_a_user) is None
    assert made_of(f_at, (TIMES,), {"model": BROWNIAN}) is None
    monkeypatch.setattr(shear_factor, "sin_cos", of_a_user)
    assert f_known_by() is None
    monkeypatch.setattr(shear_factor, "sin_cos", np.testing.assert_allclose)
    assert f_known_by()
    monkeypatch.setattr(shear_factor, "sin_cos", pytest.approx)
    assert f_known_by() is None
    monkeypatch.undo()
    monkeypatch.setattr(loaded_code, "trace_context", lambda: None)
    assert f_known_by() is None


@pytest.mark.slow
def test_one_byte_of_a_file_is_another_entry(tmp_path):
    """A copy of the package whose file differs in a comment shares no executable with the first."""
    script = "from tests.kernels.test_loaded_code import *; print(f_of_times()[1])"
    for name in ("homodyne_dask", "ingest", "tests"):
        shutil.copytree(PACKAGE.parent / name, tmp_path / name)
    changed = tmp_path / "homodyne_dask/models/shear_factor.py"
    compilations = []
    for comment in ("", "#", "#"):
        changed.write_text((PACKAGE / "models/shear_factor.py").read_text() + comment)
        ran = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), FOLDER: str(tmp_path / "cache")},
        )  # fmt: skip
        assert not ran.returncode, ran.stderr
        compilations.append(int(ran.stdout))
    assert compilations == [1, 1, 0]
