"""The options of a fit, each defined once.

From `FitOptions` follow the signatures and docstrings of `fit`, `iterate`, `fit_each` and `plan`,
the options of the command line, the YAML template and its checks, the identity of a
checkpoint and what the report lists. A new option is its definition here, its use, and its tests.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial, reduce, wraps
from numbers import Integral, Real
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin

from homodyne_dask.errors import OptionError, nearest, shown


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a fit: its definition."""

    help: str
    """What it is, without a full stop."""
    example: str
    """A value in YAML."""
    value: str = ""
    """The form of its value in words, to follow 'give'; by default its choices."""
    typed: str = ""
    """A value on the command line, where it is written in another way than in YAML."""
    unit: str = ""
    choices: tuple[str, ...] = ()
    default_text: str = ""
    """What happens by default, where the default does not say so itself."""
    suggestions: tuple[str, ...] = ()
    """Values that help and completion name, where others are possible."""
    metavar: str = ""
    """What stands for its value in the help of a command; by default its choices or its type."""
    short: str = ""
    """Short name on the command line: -o."""
    section: str = ""
    """Under which heading the help of a command lists it."""
    common: bool = False
    """Whether the short help of a command lists it."""
    identity: bool = True
    """Whether a fit resumes only with the same value."""
    plan: bool = False
    """Whether a plan depends on it."""
    report: bool = True
    """Whether the report lists a value that is not the default; else it has its own place there."""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def value_type(self) -> Any:
        """The type of a value that is given: without None."""
        if not isinstance(self.type, UnionType):
            return self.type
        return reduce(or_, (one for one in get_args(self.type) if one is not NoneType))

    @property
    def by_name(self) -> bool:
        """Whether it has a value for each of some parameters."""
        return get_origin(self.value_type) is Mapping

    @property
    def repeatable(self) -> bool:
        """Whether it takes several values."""
        whole = self.value_type
        members = get_args(whole) if isinstance(whole, UnionType) else (whole,)
        several = (get_origin(one) is Sequence or ... in get_args(one) for one in members)
        return self.by_name or any(several)

    @property
    def placeholder(self) -> str:
        """What stands for its value in the help of a command: [linear|huber], FLOAT, NAME=VALUE."""
        named = "|".join(self.choices or self.suggestions)
        return self.metavar or (
            f"[{named}]" if named else _PLACEHOLDERS.get(self.value_type, "TEXT")
        )

    @property
    def form(self) -> str:
        """The form of its value in words, to follow 'give'."""
        if not self.value:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if not self.typed:
            return self.value
        return f"{self.value}, such as {self.typed} on the command line or {self.example} in a file"

    @property
    def description(self) -> str:
        """What it is, with its unit and default."""
        shown = self.default if self.default not in (None, (), False, MISSING) else ""
        default = self.default_text or shown
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.help}{unit}" + (f"; default: {default}" if default else "")


_PLACEHOLDERS: dict[Any, str] = {
    int: "INTEGER",
    float: "FLOAT",
    str | float: "LENGTH",
    float | Sequence[float]: "FLOAT",
    Sequence[float]: "FLOAT",
    Sequence[int]: "INTEGER",
    Path: "PATH",
    tuple[str, ...]: "NAME",
    tuple[float, float]: "LOW:HIGH",
    Mapping[str, float]: "NAME=VALUE",
    Mapping[str, tuple[float, float]]: "NAME=LOW:HIGH",
    Mapping[str, str]: "NAME=EXPRESSION",
    Mapping[str, str | tuple[float, float]]: "NAME=MEAN:SD",
}
"""What stands for a value in the help of a command, by the type of the option."""


def define(default: Any, help: str, example: str, value: str = "", **more: Any) -> Any:
    """Return a field of `FitOptions`; the arguments are those of `Option`, default=MISSING is required."""
    definition = Option(help=help, example=example, value=value, **more)
    return field(default=default, metadata={"option": definition})


def plain_value(option: Option, value: Any) -> Any:
    """Return a value of an option as one of Python's own types, which JSON can hold.

    Raises OptionError for values of another type.
    """
    if value is None and option.default is None:
        return None
    try:
        return _PLAIN[option.value_type](value) if option.value_type in _PLAIN else value
    except TypeError:
        import yaml  # for this message alone

        example = (
            f", such as {option.name}={yaml.safe_load(option.example)!r}" if option.value else ""
        )
        form = f"{option.value or option.form}{example}"
        raise OptionError(f"{option.name} = {shown(value)} cannot be used: give {form}") from None


def _instance(kind: Any, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError
    return value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, Real) and not isinstance(value, Integral) else value


def _pair(value: Any) -> Any:
    """Return a pair of numbers; what is none is refused where it is used, with a better sentence."""
    with suppress(TypeError, ValueError):
        return value if isinstance(value, str) else tuple(map(float, value))
    return value


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    str: partial(_instance, str),
    int: lambda value: int(_instance(Integral, value)),
    float: _real,
    tuple[float, float]: _pair,
    tuple[str, ...]: lambda value: (value,) if isinstance(value, str) else tuple(value),
    Mapping[str, float]: partial(_instance, Mapping),
    Mapping[str, tuple[float, float]]: partial(_instance, Mapping),
    Mapping[str, str]: partial(_instance, Mapping),
    Mapping[str, str | tuple[float, float]]: partial(_instance, Mapping),
}
"""By the type of an option: what returns its value as one of Python's own types, or a TypeError."""

PAIRS, SPECKLE_WEIGHTS = "pairs", "speckle"
"""What a fit weights: every pair, or averages by speckle noise."""
AUTO = "auto"
"""Given as the model, it stands for the one that a comparison chooses (`compare_models`)."""
_PLACE = re.compile(r"^( *)\{options\}", re.MULTILINE)
"""Where a docstring lists the options."""

DATA, MODEL, SCALING, NUMERICS, ERRORS, WORKERS, OUTPUT = (
    "Data", "Model", "Contrast and offset", "Numerics", "Errors", "Workers", "Output",
)  # fmt: skip
"""The headings under which the help of a command lists options, in this order."""

_PER_BIN = "value with scaling fixed, one for all bins or one per bin"
_PRIOR = (
    "of each bin (scaling individual), or of the shared one: mean and standard deviation, treated as an "
    "additional measurement"
)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of a fit, as given or, in a `Request`, as checked.

    gap, initial, fixed and bounds are part of a checkpoint's identity as the gap in Å and the search
    that they lead to; chunks that on_bad_tile excludes are part of it, too.
    """

    gap: str | float | None = define(
        None, "distance between the plates, a length with its unit or, in Python, a number in Å", '"200 um"',
        "a length with its unit, such as '200 um'",
        default_text="the gap in the store", identity=False, plan=True, report=False,
        section=MODEL, common=True,
    )  # fmt: skip
    convention: str = define(
        "physical",
        "how shear enters the model: physical, or homodyne to continue a series fitted with that package",
        "physical", "physical or homodyne", suggestions=("physical", "homodyne"), plan=True,
        report=False, section=MODEL,
    )  # fmt: skip
    scaling: str = define(
        "individual",
        "how contrast and offset are fitted: individual (per bin), shared (the same for all bins), fourier1 "
        "to fourier3 (Fourier series in φ), scans (per bin, the same in all scans of repeats), or fixed "
        "(given values)",
        "individual", "individual, shared, fourier1, fourier2, fourier3, scans or fixed",
        suggestions=("individual", "shared", "fourier1", "fourier2", "fourier3", "scans", "fixed"),
        report=False, section=SCALING, common=True,
    )  # fmt: skip
    contrast: float | Sequence[float] | None = define(
        None, _PER_BIN, "0.2", "a number, or a list", report=False, section=SCALING,
    )  # fmt: skip
    offset: float | Sequence[float] | None = define(
        None, _PER_BIN, "1.0", "a number, or a list", report=False, section=SCALING,
    )  # fmt: skip
    contrast_bounds: tuple[float, float] | None = define(
        None, "bounds of the contrast of each bin (scaling individual), or of the shared one",
        "[0, 0.5]", "two numbers", typed="0:0.5", section=SCALING,
    )  # fmt: skip
    offset_bounds: tuple[float, float] | None = define(
        None, "bounds of the offset of each bin (scaling individual), or of the shared one",
        "[0.9, 1.1]", "two numbers", typed="0.9:1.1", section=SCALING,
    )  # fmt: skip
    contrast_prior: tuple[float, float] | None = define(
        None, f"prior of the contrast {_PRIOR}", "[0.2, 0.01]", "two numbers", typed="0.2:0.01",
        metavar="MEAN:SD", section=SCALING,
    )  # fmt: skip
    offset_prior: tuple[float, float] | None = define(
        None, f"prior of the offset {_PRIOR}", "[1, 0.001]", "two numbers", typed="1:0.001",
        metavar="MEAN:SD", section=SCALING,
    )  # fmt: skip
    initial: Mapping[str, float] | None = define(
        None, "initial values of parameters", "{D0: 1e4, alpha: -0.5}", "a number for each parameter",
        typed="D0=1e4", default_text="found from the data", identity=False, plan=True,
        section=MODEL, common=True,
    )  # fmt: skip
    fixed: Mapping[str, float] | None = define(
        None, "values of parameters that are not fitted", "{D_offset: 0}", "a number for each parameter",
        typed="D_offset=0", identity=False, plan=True, report=False, section=MODEL, common=True,
    )  # fmt: skip
    bounds: Mapping[str, tuple[float, float]] | None = define(
        None, "bounds of parameters", "{D0: [1, 1e7]}", "two numbers for each parameter", typed="D0=1:1e7",
        default_text="the bounds of the model", identity=False, plan=True, section=MODEL, common=True,
    )  # fmt: skip
    tie: Mapping[str, str] | None = define(
        None, "parameters tied to others by expressions: + - * / **, exp, log, log10, "
        "sqrt, sin, cos, tan and abs",
        '{beta: alpha, D_offset: "0.1*D0"}', "an expression for each parameter", typed='"beta = alpha"',
        plan=True,
        section=MODEL,
    )  # fmt: skip
    prior: Mapping[str, str | tuple[float, float]] | None = define(
        None, "priors of parameters: mean and standard deviation of each, treated as "
        "an additional measurement",
        "{D0: [2500, 300]}", "two numbers for each parameter", typed="D0=2500:300", plan=True, report=False,
        section=MODEL,
    )  # fmt: skip
    temperature: float | None = define(
        None, "temperature of the sample, for the hydrodynamic radius of Brownian motion", "298.15",
        "a positive number", unit="K", identity=False, section=MODEL,
    )  # fmt: skip
    viscosity: float | None = define(
        None, "viscosity of the fluid, for the hydrodynamic radius of Brownian motion", "0.89e-3",
        "a positive number", unit="Pa·s", identity=False, section=MODEL,
    )  # fmt: skip
    rates: str | None = define(
        None, "for static and laminar_flow, rates without a formula, as cubic B-splines of time: spline, "
        "or, for one rate only, J=spline or gamma_dot=spline",
        "spline", "spline, J=spline or gamma_dot=spline",
        suggestions=("spline", "J=spline", "gamma_dot=spline"),
        default_text="the power laws of the model", plan=True, report=False, section=MODEL,
    )  # fmt: skip
    knots: int | None = define(
        None, "number of splines for each rate without a formula", "20", "a whole number of at least 4",
        default_text="20, or fewer for a short record", identity=False, plan=True, report=False,
        section=MODEL,
    )  # fmt: skip
    smoothness: Mapping[str, float] | None = define(
        None, "strength of the penalty on second differences of the coefficients of rates without a "
        "formula, by rate", "{J: 1e-3}", "a positive number for each rate", typed="J=1e-3",
        default_text="chosen from the data", report=False, section=MODEL,
    )  # fmt: skip
    min_lag: int = define(
        1, "pairs of frames closer than this are excluded", "1", "a whole number of at least 1",
        unit="frames", plan=True, report=False, section=DATA,
    )  # fmt: skip
    weighting: str = define(
        PAIRS,
        "data to fit: all pairs, each weighted by its σ (pairs), or averages over cells of age and lag, "
        "weighted by the covariance of speckle and counting noise, which gives smaller errors and reads no "
        "pairs (speckle)",
        "pairs", choices=(PAIRS, SPECKLE_WEIGHTS), plan=True, section=NUMERICS, common=True,
    )  # fmt: skip
    loss: str = define(
        "linear",
        "loss function of the residuals: their squares (linear), or a function that grows more slowly and "
        "so suppresses outliers (huber, soft_l1 or cauchy, as in scipy.optimize.least_squares)",
        "linear", choices=("linear", "huber", "soft_l1", "cauchy"), plan=True, report=False,
        section=NUMERICS, common=True,
    )  # fmt: skip
    loss_scale: float | None = define(
        None, "residual above which the loss is less than the square", "1.345", "a positive number",
        unit="standard deviations", default_text="1", plan=True, report=False, section=NUMERICS,
    )  # fmt: skip
    precision: str = define(
        "float64", "precision of the model: float64, or mixed (float32; sums are float64 in both)", "float64",
        choices=("float64", "mixed"), section=NUMERICS,
    )  # fmt: skip
    device: str = define(
        "auto",
        "device for the passes: processors (cpu), CUDA GPUs (gpu), or, where available, GPUs for "
        "20 million pairs or more that fit in their memory (auto)",
        "auto", choices=("auto", "cpu", "gpu"), identity=False, plan=True, report=False,
        section=WORKERS, common=True,
    )  # fmt: skip
    memory: str = define(
        "auto",
        "whether decoded data are kept in the memory of the workers (resident), read again in every pass "
        "(stream), or kept if they fit (auto)",
        "auto", choices=("auto", "resident", "stream"), identity=False, plan=True, section=WORKERS,
    )  # fmt: skip
    starts: int | None = define(
        None, "number of points of the search for initial values from which minima are sought", "20",
        "a whole number of at least 1", default_text="only the most promising ones", report=False,
        section=NUMERICS,
    )  # fmt: skip
    friedel: str = define(
        "on", "whether bins of one q that are 180° apart see the same speckle, as at small angles, and count "
        "as one independent bin (on), or not, as at large angles (off)",
        "'on'", choices=("on", "off"), section=ERRORS,
    )  # fmt: skip
    profile: tuple[str, ...] = define(
        (), "parameters for which the profile of χ² is computed, at one and two standard errors on either "
        "side, with the other parameters fitted again",
        "[D_offset]", "a parameter, or a list", identity=False, report=False, section=ERRORS, common=True,
    )  # fmt: skip
    max_passes: int = define(
        100,
        "maximum number of iterations, each a pass over the data", "100", "a whole number of at least 1",
        identity=False, section=NUMERICS, common=True,
    )  # fmt: skip
    on_bad_tile: str = define(
        "raise", "what to do if chunks of the store cannot be read: end the fit (raise), or exclude all such "
        "chunks before the first pass and report them (skip)",
        "raise", choices=("raise", "skip"), identity=False, section=DATA,
    )  # fmt: skip

    def values(self) -> dict[str, Any]:
        """Return the values by name."""
        return {option.name: getattr(self, option.name) for option in fit_options()}

    def changed(self) -> list[str]:
        """Return the names of the options that the report lists: those that differ from the default."""
        return [
            option.name
            for option in fit_options()
            if option.report
            and (value := getattr(self, option.name)) is not None
            and (option.default is None or value != option.default)
        ]


def defined_options(defining: type) -> tuple[Option, ...]:
    """Return the definitions in the fields of a dataclass, each with its name, type and default."""
    return tuple(
        replace(of.metadata["option"], name=of.name, type=of.type, default=of.default)
        for of in fields(defining)
        if "option" in of.metadata
    )


def fit_options() -> tuple[Option, ...]:
    """Return the definition of every option of a fit."""
    return defined_options(FitOptions)


def plan_options() -> tuple[Option, ...]:
    """Return the definitions of the options on which a plan depends."""
    return tuple(option for option in fit_options() if option.plan)


def takes_options[**P, R](*, of_plan: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of functions whose **options are those of a fit.

    Signature and docstring (in place of `{options}`) then name them, and others are a TypeError.
    of_plan: only those of a plan.
    """
    chosen = {o.name: o for o in fit_options() if o.plan or not of_plan}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in parameters:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}; "
                        f"{nearest(name, parameters)}"
                    )
            return function(*args, **kwargs)

        new = [
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=o.type)
            for o in chosen.values()
        ]  # fmt: skip
        whole = signature.replace(parameters=[*own, *new])
        parameters = list(whole.parameters)
        cast(Any, checked).__signature__ = whole
        checked.__doc__ = _with_options(function.__doc__ or "", tuple(chosen.values()))
        return checked

    return decorated


def _with_options(docstring: str, options: tuple[Option, ...]) -> str:
    """Return a docstring with a line for each option where its place is."""

    def lines(place: re.Match[str]) -> str:
        indent = place[1]
        return "\n".join(
            textwrap.fill(
                f"{o.name}: {o.description}.",
                96,
                initial_indent=indent,
                subsequent_indent=f"{indent}    ",
            )
            for o in options
        )

    return _PLACE.sub(lines, docstring)
