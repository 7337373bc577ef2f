"""The options of `homodyne-dask fit`, each defined once for the command line and for fit.yaml."""

import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from homodyne_dask.request.options import (
    DATA,
    MODEL,
    OUTPUT,
    WORKERS,
    FitOptions,
    Option,
    define,
    defined_options,
    plan_options,
)
from homodyne_dask.store.files import AnyPath, path_of
from homodyne_dask.store.url_path import UrlPath

MODELS = (
    "brownian", "power_law", "static", "couette", "laminar_flow", "beating", "beating_spline",
    "two_component", "two_component_spline", "two_component_xpcsjax", "damped_cosine", "stretched",
    "stretched_q", "stretched_ageing", "auto",
)  # fmt: skip
"""Names that `model` may have, besides those of installed packages."""


SELECTION = ("q", "phi", "label", "frames", "time", "scan")
"""Names of the options that select bins and frames of a store."""


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The data and the model."""

    data: Sequence[AnyPath] = define(
        MISSING,
        "store written by ingest, or a list of stores, each as a path relative to this file or as a URL such "
        "as s3://bucket/A0123_c2.zarr",
        "A0123_c2.zarr", "the path of a store, or a list of them", section=DATA, common=True,
    )  # fmt: skip
    model: str = define(
        MISSING,
        f"model: {', '.join(MODELS[:-1])}, a model of another package, a sum "
        "or product of models such as 'static + brownian', or auto, the simplest adequate model",
        "laminar_flow", "the name of a model, such as static or laminar_flow",
        metavar="NAME", suggestions=MODELS, section=MODEL, common=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FitConfig(FitOptions, _Source):
    """All options of `homodyne-dask fit`, by the names they have in Python, in YAML and as --options."""

    q: Sequence[float] | None = define(
        None, "rings to fit, by q in 1/Å; the nearest ring within 2 % is selected", "0.0054",
        "a number in 1/Å, or a list",
        default_text="all", section=DATA, common=True,
    )  # fmt: skip
    phi: float | tuple[float, float] | Sequence[tuple[float, float]] | None = define(
        None,
        "angles to fit, by φ in degrees: an angle (the nearest within 1° is selected), a range, or a list of "
        "ranges",
        "[-30, 30]", "an angle in degrees, or a range", typed="-30:30", default_text="all",
        metavar="ANGLE|LOW:HIGH", section=DATA, common=True,
    )  # fmt: skip
    label: Sequence[int] | None = define(
        None, "bins to fit, by the numbers that the beamline assigned to them", "[2, 3]",
        "a whole number, or a list", default_text="all", section=DATA,
    )  # fmt: skip
    scan: Sequence[int | str] | None = define(
        None, "scans of a store of repeats to fit, by number (from 1) or by name", "[1, 2]",
        "a number or name, or a list", default_text="all", metavar="NUMBER|NAME", section=DATA,
    )  # fmt: skip
    frames: tuple[int, int] | None = define(
        None, "frames to fit, counted from 0: the first and the one after the last", "[0, 300]",
        "two whole numbers",
        typed="0:300", default_text="all", metavar="FIRST:END", section=DATA, common=True,
    )  # fmt: skip
    time: tuple[float, float] | None = define(
        None, "times to fit in seconds: start and end; the end itself is not included",
        "[0, 30]", "two numbers in seconds", typed="0:30", default_text="all",
        metavar="START:END", section=DATA,
    )  # fmt: skip
    exclude_frames: Sequence[tuple[int, int]] | None = define(
        None, "frames to exclude, counted from 0: the first and the one after the last",
        "[[51, 61], [100, 101]]", "a range of whole numbers, or several", typed="51:61",
        default_text="none", metavar="FIRST:END", section=DATA, common=True,
    )  # fmt: skip
    exclude_time: Sequence[tuple[float, float]] | None = define(
        None, "times to exclude in seconds: start and end; the end itself is not excluded",
        "[[3.0, 3.5]]", "a range in seconds, or several", typed="3:3.5", default_text="none",
        metavar="START:END", section=DATA,
    )  # fmt: skip
    exclude_phi: float | tuple[float, float] | Sequence[tuple[float, float]] | None = define(
        None, "angles to exclude, given as for phi", "[80, 100]", "an angle in degrees, or a range",
        typed="80:100", default_text="none", metavar="ANGLE|LOW:HIGH", section=DATA,
    )  # fmt: skip
    exclude_label: Sequence[int] | None = define(
        None, "bins to exclude, given as for label", "[7]", "a whole number, or a list",
        default_text="none", section=DATA,
    )  # fmt: skip
    over: str | None = define(
        None, "fit each ring (q), angle (phi), age window (age) or repeated scan (scan) separately", "q",
        "q, phi, age or scan", suggestions=("q", "phi", "age", "scan"),
        default_text="the whole selection in one fit",
        section=DATA, common=True,
    )  # fmt: skip
    per_scan: tuple[str, ...] = define(
        (),
        "for a store of repeats: parameters that differ between scans, in one fit of all scans that share "
        "the other parameters",
        "D0", "the name of a parameter, or a list", default_text="none", metavar="NAME", section=DATA,
    )  # fmt: skip
    windows: int | Sequence[tuple[float, float]] | None = define(
        None, "with over age: number of windows of equal length, or the start and end of each in seconds",
        "4", "a number, such as 4, or windows in seconds: 0:30 and 30:60 on the command line, "
        "[[0, 30], [30, 60]] in a file",
        metavar="INTEGER|START:END", section=DATA,
    )  # fmt: skip
    scheduler: str | None = define(
        None, "address of a running Dask scheduler", "tls://host:8786", "an address, such as tls://host:8786",
        default_text="workers on this machine", metavar="ADDRESS", section=WORKERS,
    )  # fmt: skip
    key: str | None = define(
        None,
        "folder of the scheduler's TLS key, made by `homodyne-dask key`; none for an unencrypted scheduler",
        "my_cluster", "the path of a folder, or none", metavar="PATH", section=WORKERS,
    )  # fmt: skip
    scheduler_file: Path | None = define(  # noqa: RUF009
        None, "file of a persistent scheduler, written by `homodyne-dask cluster start`",
        "scheduler.json", "the path of a file", section=WORKERS, common=True,
    )  # fmt: skip
    site: str | None = define(
        None,
        "site whose batch system runs the workers as jobs: generic, perlmutter, esrf, alcf, or user-defined",
        "perlmutter", "the name of a site", suggestions=("generic", "perlmutter", "esrf", "alcf"),
        metavar="NAME", section=WORKERS, common=True,
    )  # fmt: skip
    jobs: int | tuple[int, int] | None = define(
        None, "with site: number of jobs, or their minimum and maximum", "[1, 20]",
        "a whole number, or two", typed="1:20", default_text="1", metavar="INTEGER|LEAST:MOST",
        section=WORKERS, common=True,
    )  # fmt: skip
    output: AnyPath | None = define(  # noqa: RUF009
        None,
        "folder of the result, or of all results of several stores; default: A0123_fit beside "
        "A0123_c2.zarr, "
        "or beside the YAML file if the data are outside its folder",
        "A0123_fit", "the path of a folder", metavar="PATH", short="-o", section=OUTPUT, common=True,
    )  # fmt: skip
    overwrite: bool = define(
        False, "replace an earlier result in that folder", "false", "true or false",
        section=OUTPUT, common=True,
    )  # fmt: skip
    checkpoint: Path | None = define(  # noqa: RUF009
        None, "file from which an interrupted fit resumes", "A0123_checkpoint.json", "the path of a file",
        default_text="checkpoint.json in the output folder", section=OUTPUT,
    )  # fmt: skip
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the options that were given, in contrast to those left at their defaults."""

    def selection(self) -> dict[str, Any]:
        """Return the arguments of `Scan.select`."""
        left_out = {
            name: getattr(self, f"exclude_{name}") for name in ("frames", "time", "phi", "label")
        }
        return {name: getattr(self, name) for name in SELECTION} | {"exclude": left_out}

    @property
    def folder(self) -> Path | None:
        """`output`, where it is a folder on disk; OptionError for a URL, which only `fit` writes to."""
        return None if self.output is None else path_of("output", self.output)

    def fit_options(self) -> dict[str, Any]:
        """Return the options of `fit` beside data, model, client and checkpoint."""
        return self.values()

    def plan_options(self) -> dict[str, Any]:
        """Return the options of `plan` beside data, model and client."""
        return {option.name: getattr(self, option.name) for option in plan_options()}

    def plain(self) -> dict[str, Any]:
        """Return all options by name, with values as JSON holds them: nothing by name is {}."""
        values = {}
        for name, option in config_options().items():
            value = getattr(self, name)
            values[name] = {} if value is None and option.by_name else _plain(value)
        return values


def _plain(value: Any) -> Any:
    if isinstance(value, Path | UrlPath):
        return str(value)
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def config_options() -> dict[str, Option]:
    """Return the definition of every option of `homodyne-dask fit` that a file may hold, by name."""
    return {option.name: option for option in defined_options(FitConfig)}


def template() -> str:
    """Return a commented YAML file with all options; its data are an example."""
    active = ("data", "model", "gap")
    lines = [
        "# A fit: run `homodyne-dask fit` with this file. Options on the command line override those below.",
        "",
    ]
    for name, option in config_options().items():
        mark = "" if name in active else "# "
        lines += textwrap.wrap(option.description, 98, initial_indent="# ", subsequent_indent="# ")
        lines += [f"{mark}{name}: {option.example}", ""]
    return "\n".join(lines[:-1]) + "\n"
