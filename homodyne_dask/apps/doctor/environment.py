"""Environment variables that JAX or XLA reads, or is often assumed to read."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping

import jax

from homodyne_dask.apps.doctor import Finding
from homodyne_dask.errors import nearest
from homodyne_dask.store.processes import cores, python_command
from homodyne_dask.text import counted

HARMFUL_FLAGS = {
    "--xla_cpu_enable_fast_math=true": "no faster, and changes the last bits of results",
    "--xla_cpu_fast_math_honor_nans=false": "masked pairs are NaN inside the kernel",
    "--xla_cpu_prefer_vector_width=128": "slows the kernel",
    "--xla_cpu_max_isa=SSE4_2": "slows the kernel",
    "--xla_backend_optimization_level=0": "slows the kernel several times",
}
"""Flags to remove, and why."""
_OF_LINEAR_ALGEBRA = "sets the threads of NumPy's linear algebra; JAX does not read it"
_NOT_READ = {
    "JAX_NUM_THREADS": "JAX does not read it: NPROC sets the number of threads",
    **{f"{of}_NUM_THREADS": _OF_LINEAR_ALGEBRA for of in ("OMP", "MKL", "OPENBLAS")},
}
_HARMFUL_VARIABLES = {
    "JAX_DISABLE_JIT": "no fit finishes in a reasonable time: unset it",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "slows the kernel: unset it",
}
_START = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
_OFF = ("", "0", "false", "off", "no", "n", "f")


def environment_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield a finding for each variable that is set, or one that says that none is."""
    findings = [*_pool_sizes(environment), *_xla(environment), *_jax(environment)]
    findings += [
        Finding(name, f"{environment[name]}: {effect}", "unset it" * name.startswith("JAX_"))
        for name, effect in _NOT_READ.items()
        if name in environment
    ]
    yield from findings or [Finding("environment", "no variable that JAX reads is set")]


def _pool_sizes(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("NPROC", "PJRT_NPROC"):
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
    for word in words.split():
        why = HARMFUL_FLAGS.get(word)
        yield Finding("XLA_FLAGS", word, f"{why}: remove it from XLA_FLAGS" if why else "")
    if words and (reason := fatal_reason(words)):
        yield Finding("XLA_FLAGS", f"no fit starts: {reason}", "remove that from XLA_FLAGS")


def _jax(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(set(environment) - set(_NOT_READ)):
        text = environment[name]
        if not name.startswith("JAX_"):
            continue
        if name in _HARMFUL_VARIABLES and text.lower() not in _OFF:
            yield Finding(name, text, _HARMFUL_VARIABLES[name])
        elif name == "JAX_PLATFORMS" and "cpu" not in text.split(","):
            yield Finding(name, text, "fits compute on the processor: unset it, or set it to cpu")
        elif not hasattr(jax.config, name.lower()):
            options = [option.upper() for option in dir(jax.config) if option.startswith("jax_")]
            near = nearest(name, options)
            advice = near if near.startswith("did") else "unset it"
            yield Finding(name, text, f"not an option of this JAX; {advice}")
        else:
            yield Finding(name, f"{text}: an option of JAX")


def fatal_reason(words: str) -> str:
    """Return why XLA ends a process that has these XLA_FLAGS, in its words; '' where it does not."""
    done = subprocess.run(
        python_command("-c", _START), env=dict(os.environ) | {"XLA_FLAGS": words},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    fatal = re.findall(r"^F\d{4} .*?\] (.*)$", done.stderr, re.MULTILINE)
    return (fatal or done.stderr.splitlines() or ["it ends without a word"])[-1].strip()
