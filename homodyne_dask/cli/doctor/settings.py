"""The flags and variables people copy from each other, and what each does to a fit here."""

from typing import NamedTuple


class Setting(NamedTuple):
    """One thing people put into the environment of a process that computes with JAX."""

    text: str
    """As people write it."""
    environment: dict[str, str]
    does: str
    """To a fit; measured by `audit`, or a fact of how JAX starts."""


def _flag(text: str, does: str) -> Setting:
    return Setting(text, {"XLA_FLAGS": text}, does)


def _variable(text: str, does: str) -> Setting:
    return Setting(text, dict(word.split("=") for word in text.split()), does)


FLAGS = (
    Setting("(nothing)", {}, "a second plain process: how far noise goes"),
    _flag("--xla_cpu_multi_thread_eigen=false", "limits no thread any more"),
    _flag(
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "the second word is not a flag and is not read",
    ),
    _flag("intra_op_parallelism_threads=1", "is taken for the name of a file"),
    _flag("--xla_cpu_enable_fast_math=true", "other bits"),
    _flag(
        "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false",
        "lets the compiler assume that there is no NaN: masked pairs are",
    ),
    _flag("--xla_cpu_enable_fast_min_max=false", "slower minima that keep NaN"),
    _flag("--xla_cpu_ftz=false", "keeps denormal numbers"),
    _flag("--xla_cpu_enable_platform_dependent_math=false", "changes the last bits"),
    _flag("--xla_force_host_platform_device_count=2", "devices that a fit does not use"),
    _flag("--xla_cpu_use_thunk_runtime=false", "the old runtime is gone"),
    _flag("--xla_cpu_use_fusion_emitters=false", "the old emitters are gone"),
    _flag("--xla_cpu_enable_concurrency_optimized_scheduler=true", "deprecated"),
    _flag("--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED", "order of operations"),
    _flag("--xla_cpu_prefer_vector_width=512", "wider vectors, and other last bits"),
    _flag("--xla_cpu_prefer_vector_width=128", "narrower vectors"),
    _flag("--xla_cpu_max_isa=AVX2", "leaves AVX-512 out, and changes the last bits"),
    _flag("--xla_cpu_max_isa=SSE4_2", "leaves AVX out"),
    _flag(
        "--xla_disable_hlo_passes=constant_folding", "hides arrays caught in closures: none here"
    ),
    _flag("--xla_backend_optimization_level=0", "quicker to compile, slower to run"),
    _flag("--xla_llvm_disable_expensive_passes=true", "quicker to compile"),
    _flag("--xla_cpu_opt_preset=FAST_RUNTIME", "another set of compiler passes"),
    _flag("--xla_cpu_opt_preset=FAST_COMPILE", "another set of compiler passes"),
    _flag("--xla_cpu_parallel_codegen_split_count=1", "one thread compiles"),
    _flag("--xla_cpu_use_xnnpack=false", "another library for matrix products"),
    _flag("--xla_cpu_enable_xnnpack=true", "an older name of it"),
    _flag("--xla_cpu_use_onednn=true", "another library for matrix products"),
    _flag("--xla_gpu_triton_gemm_any=true", "for graphics processors"),
    _flag("--xla_gpu_enable_triton_softmax_fusion=true", "for graphics processors, and gone"),
)
VARIABLES = (
    _variable("JAX_NUM_THREADS=1", "is read by nobody"),
    _variable("OMP_NUM_THREADS=1", "limits NumPy's linear algebra, not JAX"),
    _variable("OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1", "limits NumPy's linear algebra, not JAX"),
    _variable("JAX_NUM_CPU_DEVICES=2", "devices that a fit does not use"),
    _variable("JAX_CPU_ENABLE_ASYNC_DISPATCH=0", "each call waits; the pool computes all the same"),
    _variable("JAX_ENABLE_X64=0", "nothing: a fit asks for float64 itself"),
    _variable("JAX_DEFAULT_MATMUL_PRECISION=highest", "matters on graphics processors"),
    _variable("JAX_DISABLE_MOST_OPTIMIZATIONS=1", "quicker to compile, slower to run"),
    _variable("JAX_OPTIMIZATION_LEVEL=O3", "effort of the compiler"),
    _variable("JAX_DEBUG_NANS=1", "looks for NaN in results: the kernel returns none"),
    _variable("JAX_DISABLE_JIT=1", "every operation alone: no fit ends in useful time"),
    _variable("JAX_LOG_COMPILES=1", "logs compilations"),
    _variable("JAX_TRACEBACK_FILTERING=off", "longer tracebacks"),
    _variable("TF_CPP_MIN_LOG_LEVEL=3", "hides warnings of XLA"),
    _variable("XLA_PYTHON_CLIENT_PREALLOCATE=false", "for graphics processors"),
)
TAKE_OUT = {
    "--xla_cpu_enable_fast_math=true": "gains nothing and changes the last bits of results",
    "--xla_cpu_fast_math_honor_nans=false": "masked pairs are NaN inside the kernel",
    "--xla_force_host_platform_device_count=2": "slows the kernel a little",
    "--xla_cpu_prefer_vector_width=128": "slows the kernel",
    "--xla_cpu_max_isa=SSE4_2": "slows the kernel",
    "--xla_backend_optimization_level=0": "slows the kernel several times",
}
"""Flags a fit is better without, and why."""
ASYNC = "JAX_CPU_ENABLE_ASYNC_DISPATCH=0"
THREADS = (
    Setting("(nothing)", {}, "a pool of as many threads as cores"),
    *(
        _variable(text, does)
        for text, does in (
            ("NPROC=1", "a pool of one thread"),
            ("NPROC=2", "a pool of two threads"),
            ("PJRT_NPROC=1", "as NPROC, and before it"),
            (f"{ASYNC} NPROC=1", "each call waits; the pool computes all the same"),
            (f"{ASYNC} NPROC=2", "each call waits; the pool computes all the same"),
            ("NPROC=0", "a pool of one thread"),
            ("NPROC=16", "sixteen threads for any cores"),
            ("OMP_NUM_THREADS=1", "nothing"),
            ("JAX_NUM_THREADS=1", "nothing"),
        )
    ),
    _flag("--xla_cpu_multi_thread_eigen=false", "nothing"),
)
"""Compared with one and with two Python threads calling the kernel, as the threads of a worker."""

DOES = {setting.text: setting.does for setting in (*THREADS, *FLAGS, *VARIABLES)}
