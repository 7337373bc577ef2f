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
    **{f"{library}_NUM_THREADS": _OF_LINEAR_ALGEBRA for library in ("OMP", "MKL", "OPENBLAS")},
}
_HARMFUL_VARIABLES = {
    "JAX_DISABLE_JIT": "no fit finishes in a reasonable time: unset it",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "slows the kernel: unset it",
}
_START = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
_OFF = ("", "0", "false", "off", "no", "n", "f")


def environment_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return a finding for each variable that is set, or one that says that none is."""
    findings = []
    for name, text in sorted(environment.items()):
        if name in _NOT_READ:
            advice = "unset it" * name.startswith("JAX_")
            findings.append(Finding(name, f"{text}: {_NOT_READ[name]}", advice))
        elif name in ("NPROC", "PJRT_NPROC"):
            findings.append(_pool_size(name, text, "PJRT_NPROC" in environment))
        elif name == "XLA_FLAGS":
            findings += _flags(text)
        elif name.startswith("JAX_"):
            findings.append(_of_jax(name, text))
    return findings or [Finding("environment", "no variable that JAX reads is set")]


def _pool_size(name: str, text: str, other_is_set: bool) -> Finding:
    most, advice = cores(), ""
    if not text.isdigit() or int(text) == 0:
        advice = f"not a number of threads: unset it, or set {name}={most}"
    elif int(text) > most:
        advice = (
            f"more threads than the {counted(most, 'usable core')}: set {name}={most}, or unset it"
        )
    elif name == "NPROC" and other_is_set:
        advice = "not read, because PJRT_NPROC is set: unset one of them"
    use = f"{text}: threads for JAX in this process; local workers set their own"
    return Finding(name, use, advice)


def _flags(text: str) -> Iterator[Finding]:
    for word in text.split():
        why = HARMFUL_FLAGS.get(word)
        yield Finding("XLA_FLAGS", word, f"{why}: remove it from XLA_FLAGS" if why else "")
    if reason := fatal_reason(text):
        yield Finding("XLA_FLAGS", f"no fit starts: {reason}", "remove that from XLA_FLAGS")


def _of_jax(name: str, text: str) -> Finding:
    if name in _HARMFUL_VARIABLES and text.lower() not in _OFF:
        return Finding(name, text, _HARMFUL_VARIABLES[name])
    if name == "JAX_PLATFORMS" and "cpu" not in text.split(","):
        return Finding(name, text, "fits compute on the processor: unset it, or set it to cpu")
    if not hasattr(jax.config, name.lower()):
        options = [option.upper() for option in dir(jax.config) if option.startswith("jax_")]
        near = nearest(name, options)
        advice = near if near.startswith("did") else "unset it"
        return Finding(name, text, f"not an option of this JAX; {advice}")
    return Finding(name, f"{text}: an option of JAX")


def fatal_reason(words: str) -> str:
    """Return why XLA ends a process that has these XLA_FLAGS, in its words; '' where it does not."""
    command, environment = python_command("-c", _START), os.environ | {"XLA_FLAGS": words}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    fatal = re.findall(r"^F\d{4} .*?\] (.*)$", done.stderr, re.MULTILINE)
    return (fatal or done.stderr.splitlines() or ["it ends without a word"])[-1].strip()
