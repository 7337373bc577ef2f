"""What the environment holds that JAX or XLA reads, or that people believe they do."""

import os
from collections.abc import Iterator, Mapping

from homodyne_dask.cli.doctor import flags
from homodyne_dask.cli.doctor.child import brief
from homodyne_dask.cli.doctor.line import Line
from homodyne_dask.cli.doctor.settings import DOES, TAKE_OUT
from homodyne_dask.cluster.local import cores
from homodyne_dask.errors import nearest

POOLS = ("NPROC", "PJRT_NPROC")
_IDLE = {
    "JAX_NUM_THREADS": "JAX does not read it: NPROC sizes the pool of threads",
    "OMP_NUM_THREADS": "NumPy's linear algebra; JAX does not read it",
    "MKL_NUM_THREADS": "NumPy's linear algebra; JAX does not read it",
    "OPENBLAS_NUM_THREADS": "NumPy's linear algebra; JAX does not read it",
}
_MENDED = {"JAX_ENABLE_X64": "fits set float64 themselves"}
_WRONG = {
    "JAX_DISABLE_JIT": "no fit ends in useful time: unset it",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "slows the kernel: unset it",
}
_OFF = ("", "0", "false", "off", "no", "n", "f")


def lines(environment: Mapping[str, str] = os.environ) -> Iterator[Line]:
    """Yield a line for each variable that is set, or one that there is none."""
    found = [*_pools(environment), *_xla(environment), *_idle(environment), *_jax(environment)]
    yield from found or [Line("environment", "nothing set that JAX reads")]


def _pools(environment: Mapping[str, str]) -> Iterator[Line]:
    for name in POOLS:
        if name not in environment:
            continue
        text, most = environment[name], cores()
        advice = ""
        if not text.isdigit() or int(text) == 0:
            advice = f"not a number of threads: unset it, or set {name}={most}"
        elif int(text) > most:
            advice = f"more threads than the {most} cores there are: set {name}={most}, or unset it"
        elif name == "NPROC" and "PJRT_NPROC" in environment:
            advice = "not read, because PJRT_NPROC is set: unset one of them"
        yield Line(name, f"{text}: threads JAX computes on; local workers get their own", advice)


def _xla(environment: Mapping[str, str]) -> Iterator[Line]:
    words = environment.get("XLA_FLAGS", "")
    bad = dict(flags.bad(words)) if words else {}
    for word in words.split():
        if word in bad:
            value = f"ends every process that computes ({brief(bad[word])})"
            yield Line("XLA_FLAGS", f"{word}: {value}", flags.advice(word))
        elif not word.startswith("--"):
            yield Line("XLA_FLAGS", f"{word}: not a flag, and not read", "take it out of XLA_FLAGS")
        else:
            value = DOES.get(word) or flags.listed().get(flags.name_of(word)) or "known to XLA"
            yield Line("XLA_FLAGS", f"{word}: {value[:100]}", _about(word))


def _about(word: str) -> str:
    if word in TAKE_OUT:
        return f"{TAKE_OUT[word]}: take it out of XLA_FLAGS"
    start = flags.started(word)
    if flags.state(word) == "deprecated":
        return "goes with one of the next releases, and then ends every process: take it out"
    return f"{start.warnings[0]}: mend it, or take it out of XLA_FLAGS" if start.warnings else ""


def _idle(environment: Mapping[str, str]) -> Iterator[Line]:
    for name, does in _IDLE.items():
        if name in environment:
            advice = "unset it" if name.startswith("JAX_") else ""
            yield Line(name, f"{environment[name]}: {does}", advice)


def _jax(environment: Mapping[str, str]) -> Iterator[Line]:
    names = sorted(name for name in environment if name.startswith("JAX_") and name not in _IDLE)
    for name in names:
        text = environment[name]
        value = f"{text}: {_MENDED.get(name) or DOES.get(f'{name}={text}', 'an option of JAX')}"
        if name in _WRONG and text.lower() not in _OFF:
            yield Line(name, text, _WRONG[name])
        elif name == "JAX_PLATFORMS" and "cpu" not in text.split(","):
            yield Line(name, text, "fits compute on the processor: unset it, or set it to cpu")
        elif name not in flags.options():
            yield Line(name, text, f"no option of this JAX; {_near(name)}")
        else:
            yield Line(name, value)


def _near(name: str) -> str:
    found = nearest(name, flags.options())
    return found if found.startswith("did") else "unset it"
