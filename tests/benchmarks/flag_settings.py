"""The flags and variables that `flag_audit` measures; most are the ones that `doctor` explains."""

from typing import NamedTuple

from homodyne_dask.apps.doctor.environment import FLAG_EFFECTS, VARIABLE_EFFECTS


class Setting(NamedTuple):
    """Environment variables of a process that computes with JAX."""

    text: str
    """As people write it."""
    environment: dict[str, str]
    effect: str
    """On a fit."""


def flag(text: str, effect: str) -> Setting:
    return Setting(text, {"XLA_FLAGS": text}, effect)


def variables(text: str, effect: str) -> Setting:
    return Setting(text, dict(word.split("=") for word in text.split()), effect)


PLAIN = Setting("(nothing)", {}, "a second plain process: the size of the noise")
FLAGS = (
    PLAIN,
    *(flag(text, effect) for text, effect in FLAG_EFFECTS.items()),
    flag(
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "the second word is not a flag and is not read",
    ),
    flag("intra_op_parallelism_threads=1", "is taken for the name of a file"),
    flag(
        "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false",
        "lets the compiler assume that there is no NaN: masked pairs are",
    ),
)
VARIABLES = (
    *(variables(text, effect) for text, effect in VARIABLE_EFFECTS.items()),
    variables("JAX_NUM_THREADS=1", "not read"),
    variables("OMP_NUM_THREADS=1", "limits NumPy's linear algebra, not JAX"),
    variables("OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1", "limits NumPy's linear algebra, not JAX"),
    variables("TF_CPP_MIN_LOG_LEVEL=3", "hides warnings of XLA"),
    variables("XLA_PYTHON_CLIENT_PREALLOCATE=false", "for GPUs"),
)
SYNCHRONOUS = "JAX_CPU_ENABLE_ASYNC_DISPATCH=0"
THREADS = (
    Setting("(nothing)", {}, "a pool of as many threads as cores"),
    variables("NPROC=1", "a pool of one thread"),
    variables("NPROC=2", "a pool of two threads"),
    variables("PJRT_NPROC=1", "as NPROC, and preferred to it"),
    variables(f"{SYNCHRONOUS} NPROC=1", VARIABLE_EFFECTS[SYNCHRONOUS]),
    variables(f"{SYNCHRONOUS} NPROC=2", VARIABLE_EFFECTS[SYNCHRONOUS]),
    variables("NPROC=0", "a pool of one thread"),
    variables("NPROC=16", "sixteen threads on any number of cores"),
    variables("OMP_NUM_THREADS=1", "nothing"),
    variables("JAX_NUM_THREADS=1", "nothing"),
    flag("--xla_cpu_multi_thread_eigen=false", "nothing"),
)
"""Compared with one and with two Python threads calling the kernel, as the threads of a worker."""
