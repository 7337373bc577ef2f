"""Checks of this machine: libraries, processors, memory, folders, variables that JAX reads, the kernel.

What is examined is imported when its turn has come: another process has then shown that it can be.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import homodyne_dask as hd
from homodyne_dask.errors import nearest
from homodyne_dask.kernels.gpus import PROCESSORS_ALONE
from homodyne_dask.store.processes import code_digest, cores, cpu_quota, jax_threads, python_command
from homodyne_dask.surroundings import Finding, blamed, examined, last_words
from homodyne_dask.text import counted, size

PACKAGES = ("jax", "jaxlib", "dask", "distributed", "zarr", "numcodecs", "numpy")
MIN_MEMORY = 2e9
"""Bytes that a worker process needs for blocks, kernel and libraries."""
MIN_FREE_SPACE = 1e9
"""Free bytes that results and spilled data need."""
BINS, SIDE = 8, 512
THETA = (30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0)
MEASUREMENT_SECONDS = 1.0
"""For which the kernel is measured."""
HARMFUL = {
    "--xla_cpu_enable_fast_math=true": "no faster, and changes the last bits of results",
    "--xla_cpu_fast_math_honor_nans=false": "masked pairs are NaN inside the kernel",
    "--xla_cpu_prefer_vector_width=128": "slows the kernel",
    "--xla_cpu_max_isa=SSE4_2": "slows the kernel",
    "--xla_backend_optimization_level=0": "slows the kernel several times",
    "JAX_DISABLE_JIT": "no fit finishes in a reasonable time: unset it",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "slows the kernel: unset it",
}
"""Words of XLA_FLAGS to remove, and variables that must not be on; and why."""
_OF_LINEAR_ALGEBRA = "sets the threads of NumPy's linear algebra; JAX does not read it"
_NOT_READ = {
    "JAX_NUM_THREADS": "JAX does not read it: NPROC sets the number of threads",
    **{f"{library}_NUM_THREADS": _OF_LINEAR_ALGEBRA for library in ("OMP", "MKL", "OPENBLAS")},
}
_START = (
    f"import {', '.join(PACKAGES)}, jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready(); "
    "import homodyne_dask.fitting.fit_any, homodyne_dask.cluster.local"
)


def examine() -> Iterator[Finding]:
    """Yield each finding as soon as it is known."""
    yield from library_versions()
    yield processors()
    yield from examined()
    yield writable_folder("working folder", Path.cwd())
    named = os.environ.get("TMPDIR")  # Python takes another one where it cannot be written
    yield writable_folder("temporary folder", Path(named or tempfile.gettempdir()))
    if reason := fatal_reason():
        yield from environment_findings()
        remedy = blamed(ImportError(reason)) or "repair or install what it names"
        what = "XLA_FLAGS" if "XLA_FLAGS" in reason else "libraries"
        yield Finding(what, f"no fit starts: {reason}", remedy)
        return
    yield from _with_libraries()
    yield compiled_kernels()
    yield from environment_findings()
    yield kernel_rate()


def _with_libraries() -> Iterator[Finding]:
    import dask.config
    import distributed  # noqa: F401 - it has settings of its own
    import psutil

    from homodyne_dask.cluster.memory import available_memory
    from homodyne_dask.kernels.devices import gpus_here

    free, total = available_memory(), psutil.virtual_memory().total
    advice = f"workers need {MIN_MEMORY / 1e9:g} GB: end other programs, or request more memory"
    amount = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB available"
    yield Finding("memory", amount, advice if free < MIN_MEMORY else "")
    if configured := dask.config.get("temporary-directory", None):
        yield writable_folder("folder of workers", Path(configured))
    try:
        dask.config.get("distributed.dashboard.link").format(
            **os.environ, host="", port=0, scheme=""
        )
    except LookupError as e:
        yield Finding("dashboard.link", f"of Dask's configuration names {e}", f"set {e}")
    PROCESSORS_ALONE.clear()  # JAX keeps memory of a GPU, but only until this ends
    yield Finding("GPUs", str(gpus_here()))


def library_versions() -> Iterator[Finding]:
    """Yield the versions of the libraries, each compared with what homodyne_dask requires."""
    requirements = [Requirement(text) for text in metadata.requires("homodyne-dask") or []]
    specifiers = {requirement.name: requirement.specifier for requirement in requirements}
    yield Finding("python", platform.python_version())
    ours = f"{metadata.version('homodyne-dask')}, digest of the code {code_digest()}"
    yield Finding("homodyne-dask", ours)
    for name in PACKAGES:
        version, specifier = metadata.version(name), specifiers[name]
        fits = specifier.contains(version, prereleases=True)
        yield Finding(name, version, "" if fits else f"pip install '{name}{specifier}'")


def processors() -> Finding:
    """Return how many of the machine's processors this process may use."""
    usable, total, quota, advice = cores(), os.cpu_count() or 1, cpu_quota(), ""
    if usable == 1 < total:
        advice = (
            "this process is bound to one core: request more from the batch system "
            "(--cpus-per-task), or start without taskset"
        )
    of_quota = f", a quota of {quota:g}" if quota else ""
    return Finding("cores", f"{usable} of {total}{of_quota}", advice)


def compiled_kernels() -> Finding:
    """Return where compiled kernels are kept for the next process."""
    from homodyne_dask.kernels.cache_folder import FOLDER, entries, user_cache_folder

    folder = user_cache_folder()
    if folder is None:
        return Finding("compiled kernels", f"not kept: {FOLDER} is off, or there is no home folder")
    try:
        sizes = [bytes_ for _, bytes_, _ in entries(folder)]
    except OSError as e:
        advice = f"every process spends seconds compiling: set {FOLDER} to a new private folder"
        return Finding("compiled kernels", f"not kept in {folder}: {e.strerror or e}", advice)
    return Finding("compiled kernels", f"{len(sizes)} in {folder}, {size(sum(sizes))}")


def writable_folder(what: str, path: Path) -> Finding:
    """Return whether a folder can be written to and has space left."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
        free = shutil.disk_usage(path).free
    except OSError as e:
        return Finding(what, str(path), f"{e.strerror or e}: use a writable folder, or set TMPDIR")
    full = "too full: delete files there, or use another folder"
    value = f"{path}, {free / 1e9:.1f} GB free"
    return Finding(what, value, "" if free >= MIN_FREE_SPACE else full)


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
            reasons = {word: HARMFUL.get(word) for word in text.split()}
            findings += [
                Finding(name, word, f"{why}: remove it from XLA_FLAGS" if why else "")
                for word, why in reasons.items()
            ]
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


def _of_jax(name: str, text: str) -> Finding:
    if name in HARMFUL and text.lower() not in ("", "0", "false", "off", "no", "n", "f"):
        return Finding(name, text, HARMFUL[name])
    if name == "JAX_PLATFORMS" and "cpu" not in text.split(","):
        return Finding(name, text, "fits compute on the processor: unset it, or set it to cpu")
    jax = sys.modules.get("jax")
    if jax and not hasattr(jax.config, name.lower()):
        options = [option.upper() for option in dir(jax.config) if option.startswith("jax_")]
        near = nearest(name, options)
        advice = near if near.startswith("did") else "unset it"
        return Finding(name, text, f"not an option of this JAX; {advice}")
    return Finding(name, f"{text}: an option of JAX")


def fatal_reason() -> str:
    """Return what the libraries say that end a process as they are loaded; '' where they do not."""
    done = subprocess.run(python_command("-c", _START), capture_output=True, text=True)
    return last_words(done.stderr) if done.returncode else ""


def kernel_rate() -> Finding:
    """Return the pairs per second of the Gram of `laminar_flow`, with all derivatives, in this process."""
    import numpy as np

    from homodyne_dask.cluster.workers import SLOWEST_PAIRS_PER_SECOND
    from homodyne_dask.kernels.problem import Block, Problem
    from homodyne_dask.kernels.transport_backend import gram as transport_gram
    from homodyne_dask.kernels.transport_evaluation import point as transport_point
    from homodyne_dask.sweep.blocks import aligned_array

    c2 = aligned_array(BINS, SIDE)
    c2[...] = 1.1 + 0.3 * np.random.default_rng(0).random(c2.shape)
    weight = np.full((BINS, SIDE), 100.0)
    # 1/Å, degree, Å; a block off the diagonal
    q, phi, gap = np.full(BINS, 0.0054), np.linspace(-86.0, 86.0, BINS), 2e6
    block = Block(c2, weight, weight, q, phi, 0, SIDE)
    at = transport_point(
        Problem(hd.LAMINAR_FLOW, gap=gap), np.array(THETA), 0.1 * np.arange(2 * SIDE)
    )
    gram, sums = transport_gram(at, block)
    spent, start = [], time.perf_counter()
    while not spent or time.perf_counter() - start < MEASUREMENT_SECONDS:
        began = time.perf_counter(), time.process_time()
        transport_gram(at, block, sums)
        spent.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    seconds, of_cores = np.median(spent, axis=0)
    pairs, threads = float(gram.pairs.sum()), jax_threads()
    value = f"{pairs / seconds / 1e6:.0f} M pairs/s on {counted(threads, 'thread')}"
    if pairs >= SLOWEST_PAIRS_PER_SECOND * seconds:
        return Finding("kernel", value)
    if pairs * threads >= SLOWEST_PAIRS_PER_SECOND * of_cores:
        return Finding("kernel", f"{value}: other programs are using the cores")
    return Finding(
        "kernel", value, "XLA_FLAGS or JAX_* variables, or this machine, slow the kernel"
    )
