"""Environment variables that JAX or XLA reads, or is often assumed to read; starts processes to see."""

import difflib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from homodyne_dask.apps.doctor import Finding
from homodyne_dask.apps.doctor.kernel_process import fatal_line, first_sentence, plain_environment
from homodyne_dask.errors import nearest
from homodyne_dask.store.processes import cores, python_command
from homodyne_dask.text import counted

POOL_VARIABLES = ("NPROC", "PJRT_NPROC")
"""Variables that set the number of threads JAX computes on."""
FLAG_EFFECTS = {
    "--xla_cpu_multi_thread_eigen=false": "no longer limits threads",
    "--xla_cpu_enable_fast_math=true": "changes the last bits of results",
    "--xla_cpu_enable_fast_min_max=false": "slower minima that keep NaN",
    "--xla_cpu_ftz=false": "keeps denormal numbers",
    "--xla_cpu_enable_platform_dependent_math=false": "changes the last bits of results",
    "--xla_force_host_platform_device_count=2": "devices that a fit does not use",
    "--xla_cpu_use_thunk_runtime=false": "the old runtime has been removed",
    "--xla_cpu_use_fusion_emitters=false": "the old emitters have been removed",
    "--xla_cpu_enable_concurrency_optimized_scheduler=true": "deprecated",
    "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED": "order of operations",
    "--xla_cpu_prefer_vector_width=512": "wider vectors; changes the last bits of results",
    "--xla_cpu_prefer_vector_width=128": "narrower vectors",
    "--xla_cpu_max_isa=AVX2": "disables AVX-512; changes the last bits of results",
    "--xla_cpu_max_isa=SSE4_2": "disables AVX",
    "--xla_disable_hlo_passes=constant_folding": "for arrays in closures; the kernel has none",
    "--xla_backend_optimization_level=0": "faster to compile, slower to run",
    "--xla_llvm_disable_expensive_passes=true": "faster to compile",
    "--xla_cpu_opt_preset=FAST_RUNTIME": "another set of compiler passes",
    "--xla_cpu_opt_preset=FAST_COMPILE": "another set of compiler passes",
    "--xla_cpu_parallel_codegen_split_count=1": "compiles on one thread",
    "--xla_cpu_use_xnnpack=false": "another library for matrix products",
    "--xla_cpu_enable_xnnpack=true": "older name of --xla_cpu_use_xnnpack",
    "--xla_cpu_use_onednn=true": "another library for matrix products",
    "--xla_gpu_triton_gemm_any=true": "for GPUs",
    "--xla_gpu_enable_triton_softmax_fusion=true": "for GPUs; has been removed",
}
"""Common XLA flags, and their effect on a fit (`make benchmark` measures it)."""
HARMFUL_FLAGS = {
    "--xla_cpu_enable_fast_math=true": "no faster, and changes the last bits of results",
    "--xla_cpu_fast_math_honor_nans=false": "masked pairs are NaN inside the kernel",
    "--xla_force_host_platform_device_count=2": "slows the kernel a little",
    "--xla_cpu_prefer_vector_width=128": "slows the kernel",
    "--xla_cpu_max_isa=SSE4_2": "slows the kernel",
    "--xla_backend_optimization_level=0": "slows the kernel several times",
}
"""Flags to remove, and why."""
VARIABLE_EFFECTS = {
    "JAX_NUM_CPU_DEVICES=2": "devices that a fit does not use",
    "JAX_CPU_ENABLE_ASYNC_DISPATCH=0": "each call waits; the pool still computes",
    "JAX_ENABLE_X64=0": "no effect: fits set float64 themselves",
    "JAX_DEFAULT_MATMUL_PRECISION=highest": "matters on GPUs",
    "JAX_DISABLE_MOST_OPTIMIZATIONS=1": "faster to compile, slower to run",
    "JAX_OPTIMIZATION_LEVEL=O3": "effort of the compiler",
    "JAX_DEBUG_NANS=1": "looks for NaN in results; the kernel returns none",
    "JAX_DISABLE_JIT=1": "compiles nothing: no fit finishes in a reasonable time",
    "JAX_LOG_COMPILES=1": "logs compilations",
    "JAX_TRACEBACK_FILTERING=off": "longer tracebacks",
}
"""Common options of JAX, and their effect on a fit."""
_EFFECTS_OF_ANY_VALUE = {"JAX_ENABLE_X64": "fits set float64 themselves"}
_OF_LINEAR_ALGEBRA = "sets the threads of NumPy's linear algebra; JAX does not read it"
_NOT_READ = {
    "JAX_NUM_THREADS": "JAX does not read it: NPROC sets the number of threads",
    "OMP_NUM_THREADS": _OF_LINEAR_ALGEBRA,
    "MKL_NUM_THREADS": _OF_LINEAR_ALGEBRA,
    "OPENBLAS_NUM_THREADS": _OF_LINEAR_ALGEBRA,
}
_HARMFUL_VARIABLES = {
    "JAX_DISABLE_JIT": "no fit finishes in a reasonable time: unset it",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "slows the kernel: unset it",
}
_START = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
_LIST = "import jax, json; print(json.dumps(sorted(jax.config.values)))"
_TIMEOUT = 60.0
_OFF = ("", "0", "false", "off", "no", "n", "f")


def environment_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield a finding for each variable that is set, or one that says that none is."""
    findings = [
        *_pool_sizes(environment),
        *_xla(environment),
        *_not_read(environment),
        *_jax(environment),
    ]
    yield from findings or [Finding("environment", "no variable that JAX reads is set")]


def _pool_sizes(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in POOL_VARIABLES:
        if name not in environment:
            continue
        text, most = environment[name], cores()
        advice = ""
        if not text.isdigit() or int(text) == 0:
            advice = f"not a number of threads: unset it, or set {name}={most}"
        elif int(text) > most:
            advice = f"more threads than the {counted(most, 'usable core')}: set {name}={most}, or unset it"
        elif name == "NPROC" and "PJRT_NPROC" in environment:
            advice = "not read, because PJRT_NPROC is set: unset one of them"
        yield Finding(
            name, f"{text}: threads for JAX in this process; local workers set their own", advice
        )


def _xla(environment: Mapping[str, str]) -> Iterator[Finding]:
    words = environment.get("XLA_FLAGS", "")
    fatal = dict(fatal_flags(words)) if words else {}
    for word in words.split():
        if word in fatal:
            value = f"terminates every process that computes ({first_sentence(fatal[word])})"
            yield Finding("XLA_FLAGS", f"{word}: {value}", advice_on_flag(word))
        elif not word.startswith("--"):
            advice = "remove it from XLA_FLAGS"
            yield Finding("XLA_FLAGS", f"{word}: not a flag, and ignored", advice)
        else:
            described = known_flags().get(flag_name(word))
            value = FLAG_EFFECTS.get(word) or described or "known to XLA"
            yield Finding("XLA_FLAGS", f"{word}: {value[:100]}", _advice_on(word))


def _advice_on(word: str) -> str:
    if word in HARMFUL_FLAGS:
        return f"{HARMFUL_FLAGS[word]}: remove it from XLA_FLAGS"
    if flag_state(word) == "deprecated":
        return "a future release will terminate every process that uses it: remove it"
    warnings = start_with_flags(word).warnings
    return f"{warnings[0]}: correct it, or remove it from XLA_FLAGS" if warnings else ""


def _not_read(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name, effect in _NOT_READ.items():
        if name in environment:
            advice = "unset it" if name.startswith("JAX_") else ""
            yield Finding(name, f"{environment[name]}: {effect}", advice)


def _jax(environment: Mapping[str, str]) -> Iterator[Finding]:
    names = sorted(name for name in environment if name.startswith("JAX_"))
    for name in names:
        text = environment[name]
        if name in _NOT_READ:
            continue
        if name in _HARMFUL_VARIABLES and text.lower() not in _OFF:
            yield Finding(name, text, _HARMFUL_VARIABLES[name])
        elif name == "JAX_PLATFORMS" and "cpu" not in text.split(","):
            yield Finding(name, text, "fits compute on the processor: unset it, or set it to cpu")
        elif name not in jax_variables():
            near = nearest(name, jax_variables())
            advice = near if near.startswith("did") else "unset it"
            yield Finding(name, text, f"not an option of this JAX; {advice}")
        else:
            effect = _EFFECTS_OF_ANY_VALUE.get(name) or VARIABLE_EFFECTS.get(f"{name}={text}")
            yield Finding(name, f"{text}: {effect or 'an option of JAX'}")


class StartWithFlags(NamedTuple):
    """How JAX started with some XLA_FLAGS."""

    alive: bool
    reason: str
    """The fatal line of a process that died."""
    warnings: tuple[str, ...]


@cache
def known_flags() -> dict[str, str]:
    """Return XLA's flags with its descriptions, as far as its `--help` lists them."""
    text = _ran("--help").stderr
    rows = re.findall(r"^\s*--(\w+)=[^\t]*\t[^\t]*\t(.*)$", text, re.MULTILINE)
    return {name: text.strip() for name, text in rows}


@cache
def jax_variables() -> frozenset[str]:
    """Return the names of the environment variables that are options of JAX."""
    names = json.loads(_ran("", _LIST).stdout)
    return frozenset(name.upper() for name in names)


@cache
def start_with_flags(words: str) -> StartWithFlags:
    """Return how a process starts with these XLA_FLAGS."""
    done = _ran(words)
    lines = re.findall(r"^[WE]\d{4} .*?\] (.*)$", done.stderr, re.MULTILINE)
    alive = done.returncode == 0
    return StartWithFlags(
        alive, "" if alive else fatal_line(done.stderr), tuple(dict.fromkeys(lines))
    )


def fatal_flags(words: str) -> list[tuple[str, str]]:
    """Return the words of XLA_FLAGS that end a process, each with the reason."""
    if start_with_flags(words).alive:
        return []
    good, fatal = [], []
    for word in words.split():
        start = start_with_flags(" ".join([*good, word]))
        if start.alive:
            good.append(word)
        else:
            fatal.append((word, start.reason))
    return fatal


def advice_on_flag(word: str) -> str:
    """Return what to do about a flag that ends processes."""
    near = difflib.get_close_matches(flag_name(word), known_flags(), n=1)
    return f"remove it from XLA_FLAGS{f', or did you mean --{near[0]}?' if near else ''}"


def flag_state(word: str) -> str:
    """Return whether this jaxlib knows a flag: known, deprecated or ends the process."""
    start = start_with_flags(word)
    if not start.alive:
        return "ends the process"
    texts = [known_flags().get(flag_name(word), ""), *start.warnings]
    old = any(word in text.lower() for text in texts for word in ("deprecated", "no longer"))
    return "deprecated" if old else "known"


def flag_name(word: str) -> str:
    """Return the name of the flag in '--name=value'."""
    return word.removeprefix("--").partition("=")[0]


def _ran(words: str, code: str = _START) -> subprocess.CompletedProcess[str]:
    flags = {"XLA_FLAGS": words} if words else {}
    return subprocess.run(
        python_command("-c", code),
        env=plain_environment() | {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")} | flags,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
