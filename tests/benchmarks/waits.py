"""What a user waits for besides passes: CPU time of commands over that of their fits in one process."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import homodyne_dask as hd
from tests.benchmarks import data
from tests.benchmarks.process import run

Row = dict[str, float]
PROGRAM = "import sys; from homodyne_dask.cli import main; sys.argv[0] = 'homodyne-dask'; main()"


def cpu_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def command_seconds(folder: Path, *arguments: str | Path) -> float:
    """CPU seconds of a whole command and of what it starts."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    ended = run(command, 600, folder / "command.log")
    assert ended.code in (0, 3), ended.output  # 3: a window need not converge
    return ended.cpu_seconds


def first_fit(folder: Path) -> Row:
    """The first fit of a process, with imports and compilation, over its second one."""
    store = data.store(folder, 425)
    code = (
        "import time; import homodyne_dask as hd\n"
        f"for _ in range(2): hd.fit({str(store)!r}, hd.LAMINAR_FLOW); print(time.process_time(), time.time())"
    )
    began = time.time()
    ended = run([sys.executable, "-c", code], 600, folder / "first.log")
    (first, wall), (both, _) = (map(float, line.split()) for line in ended.output.splitlines()[-2:])
    return {
        "first CPU s": first,
        "first wall s": wall - began,
        "second CPU s": both - first,
        "first / second": first / (both - first),
    }


def command(folder: Path) -> Row:
    """A command with figures and report over the first fit of a process."""
    store = data.store(folder, 300)
    whole = command_seconds(
        folder, "fit", store, "--model", "laminar_flow", "--output", folder / "fit"
    )
    bare = command_seconds(
        folder,
        "fit",
        store,
        "--model",
        "laminar_flow",
        "--no-pictures",
        "--output",
        folder / "bare",
    )
    hd.fit(store, hd.LAMINAR_FLOW)
    again = cpu_seconds(lambda: hd.fit(store, hd.LAMINAR_FLOW))
    return {
        "command CPU s": whole,
        "without figures CPU s": bare,
        "running process CPU s": again,
        "command / without figures": whole / bare,
    }


def weighted(folder: Path) -> Row:
    """Second fits of a process of all pairs, weighted by speckle noise and not."""
    store, row = data.store(folder, 2950), {}
    for weighting in ("pairs", "speckle"):
        hd.fit(store, hd.LAMINAR_FLOW, weighting=weighting)
        began = time.perf_counter()
        row[f"{weighting} CPU s"] = cpu_seconds(
            lambda weighting=weighting: hd.fit(store, hd.LAMINAR_FLOW, weighting=weighting)
        )
        row[f"{weighting} wall s"] = time.perf_counter() - began
    return row | {"speckle / pairs, wall": row["speckle wall s"] / row["pairs wall s"]}


def series(folder: Path) -> Row:
    """Commands of several fits over the same fits by one call in a process of its own."""
    scans = []
    for seed in range(17):
        scans.append(folder / f"repeat_{seed}_results.hdf")
        hd.simulate(scans[-1], "static", angles=5, frames=100, seed=seed)
    repeats = folder / "repeats_c2.zarr"
    hd.ingest(scans, repeats)
    rings = folder / "rings_c2.zarr"
    source = folder / "rings_results.hdf"
    hd.simulate(source, "brownian", angles=1, rings=30, frames=120, noise="speckle")
    hd.ingest(source, rings)
    store, row = data.store(folder, 300), {}
    for name, of, model, options in (
        ("six windows", store, "laminar_flow", {"over": "age", "windows": 6}),
        ("30 rings", rings, "brownian", {"over": "q"}),
        ("17 scans together", repeats, "static", {"together": True}),
    ):
        given = [word for option, value in options.items() for word in _words(option, value)]
        arguments = ("fit", of, "--model", model, *given, "--output", folder / name)
        call = f"fit_each({str(of)!r}, {model!r}, **{options!r})"
        if "together" in options:
            call = f"fit([{str(of)!r}], {model!r})"
        code = f"import homodyne_dask as hd; hd.{call}"
        fits = run([sys.executable, "-c", code], 600, folder / "fits.log")
        assert fits.code == 0, fits.output
        row[f"{name}, fits CPU s"] = fits.cpu_seconds
        row[f"{name}, command / fits"] = command_seconds(folder, *arguments) / fits.cpu_seconds
    return row


def _words(option: str, value: object) -> list[str]:
    return [f"--{option}"] if value is True else [f"--{option}", str(value)]


def splines(folder: Path) -> Row:
    """A second fit of rates without a formula, 20 angles of 1000 frames, over one of the formulas."""
    store = data.store(folder, 1000, 20)
    hd.fit(store, hd.LAMINAR_FLOW)
    formulas = cpu_seconds(lambda: hd.fit(store, hd.LAMINAR_FLOW))
    hd.fit(store, "static", rates="spline")
    splined = cpu_seconds(lambda: hd.fit(store, "laminar_flow", rates="spline"))
    return {
        "formulas CPU s": formulas,
        "splines CPU s": splined,
        "splines / formulas": splined / formulas,
    }


def further(folder: Path) -> Row:
    """Second calls in a process of what follows or chooses among fits of 1 M pairs."""
    store = data.store(folder, 300)
    scan = hd.open_dataset(store)
    models = [hd.fit(store, model) for model in ("laminar_flow", "couette", "static")]
    calls: dict[str, Callable[[], object]] = {
        "fit": lambda: hd.fit(store, "laminar_flow"),
        "posterior": lambda: hd.posterior(models[0], scan),
        "compare": lambda: hd.compare(models),
        "auto": lambda: hd.compare_models(store),
    }
    row = {}
    for name, call in calls.items():
        call()
        row[f"{name} CPU s"] = cpu_seconds(call)
    return row
