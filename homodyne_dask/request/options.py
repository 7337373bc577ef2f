"""The options of a fit, each defined once.

From `FitOptions` follow the signatures and docstrings of `fit`, `iterate`, `fit_each` and `plan`, the
checks of values, the options of the command line, the YAML template, the identity of a checkpoint and
what the report lists. A new option is its definition here, its use, and its tests.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache, partial, wraps
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from homodyne_dask.errors import OptionError, nearest, shown
from homodyne_dask.request.option_types import (
    Count,
    Form,
    Gap,
    Names,
    NumberByName,
    OnOff,
    Positive,
    PositiveByName,
    PriorByName,
    RangeByName,
    ScalingValues,
    StoreName,
    TextByName,
)

PAIRS, SPECKLE_WEIGHTS = "pairs", "speckle"
"""What a fit weights: every pair, or averages by speckle noise."""
AUTO = "auto"
"""Given as the model, it stands for the one that a comparison chooses (`compare_models`)."""
_PLACE = re.compile(r"^( *)\{options\}", re.MULTILINE)

SECTIONS = ("Data", "Model", "Contrast and offset", "Numerics", "Errors", "Workers", "Output")
"""The headings under which the help of a command lists options, in this order."""
DATA, MODEL, SCALING, NUMERICS, ERRORS, WORKERS, OUTPUT = SECTIONS


class Use(Flag):
    """Where an option is used, or not."""

    COMMON = auto()
    """The short help of a command lists it."""
    PLAN = auto()
    """A plan depends on it."""
    CHANGEABLE = auto()
    """An interrupted fit resumes with another value, too: it is no part of a checkpoint's identity."""
    UNLISTED = auto()
    """The report does not list a value that is not the default: it has its own place there."""


COMMON, PLAN, CHANGEABLE, UNLISTED = Use


NOWHERE = Use(0)


def option(
    default: Any, section: str = "", example: str = "", use: Use = NOWHERE, **details: Any
) -> Any:
    """Return a field of `Options`, whose docstring is its help; default: ... for one that has to be given."""
    about = {"section": section, "example": example, "use": use}
    return Field(default, json_schema_extra=about | details)


@dataclass(frozen=True)
class Option:
    name: str
    type: Any
    default: Any
    """`...` where it has to be given."""
    help: str
    """What it is, with its default if that does not say so itself."""
    choices: tuple[str, ...]
    """All values it may have. Where any other is allowed, too, help and completion name `suggestions`."""
    own_form: Form | None
    section: str
    example: str
    use: Use
    unit: str = ""
    suggestions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Names on the command line, where they are not just the name."""

    @property
    def by_name(self) -> bool:
        return self.form.metavar.startswith("NAME=")

    @property
    def repeatable(self) -> bool:
        members = (self.type, *get_args(self.type))
        return any(get_origin(m) in (list, Mapping) or ... in get_args(m) for m in members)

    @property
    def form(self) -> Form:
        if self.choices:
            return Form(
                f"{', '.join(self.choices[:-1])} or {self.choices[-1]}",
                f"[{'|'.join(self.choices)}]",
            )
        return self.own_form or (
            Form("true or false", "") if self.type is bool else Form("text", "TEXT")
        )

    @property
    def typed(self) -> str:
        """The example as it is written on the command line, which a file understands, too."""
        text = self.example
        if ":" in self.form.metavar:
            text = re.sub(r"\[([^\[\],]*), ([^\[\],]*)\]", r"\1:\2", text)
        between = " " if " " in self.form.metavar else "="
        return re.sub(r"[\[\]{}\"]", "", text).replace(": ", between).replace(", ", ",")

    def refusal(self, value: Any, key: str = "") -> str:
        """Return why a value cannot be used, and what to give; key: of one by name."""
        if self.choices:
            return f"{self.flag} {shown(value)} is unknown; {nearest(str(value), self.choices)}"
        words = self.form.words
        example = f", such as {self.typed}" if self.example and "such as" not in words else ""
        return f"{self.flag}{key} = {shown(value)} cannot be used: give {words}{example}"

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.names[0] if self.names else f"--{self.name.replace('_', '-')}"

    @property
    def description(self) -> str:
        unit = f" [{self.unit}]" if self.unit else ""
        unit += f"; names: {', '.join(self.suggestions)}" if self.suggestions else ""
        has_default = self.default not in (None, (), False, ...) and "default: " not in self.help
        return f"{self.help}{unit}" + (f"; default: {self.default}" if has_default else "")


class Options(BaseModel):
    """Options that are checked as they are given; raises OptionError for a value that cannot be used."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        arbitrary_types_allowed=True,
        defer_build=True,
        protected_namespaces=(),
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise OptionError(self._sentence(values, e)) from None

    @classmethod
    @cache
    def options(cls) -> dict[str, Option]:
        types = get_type_hints(cls)
        return {
            name: Option(
                name,
                types[name],
                ... if field.is_required() else field.default,
                (field.description or "").replace("\n", " ").rstrip("."),
                _choices(types[name]),
                next(_forms(field), None),
                **cast(dict[str, Any], field.json_schema_extra),
            )
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def _sentence(cls, values: dict[str, Any], wrong: ValidationError) -> str:
        first = wrong.errors(include_url=False)[0]
        (name, *keys), options = first["loc"], cls.options()
        if name not in options:
            return f"unknown key {shown(name)}; {nearest(name, options)}"
        option = options[str(name)]
        if first["type"] == "missing" and not keys:
            suggested = f": {', '.join(option.suggestions)}" if option.suggestions else ""
            return f"{option.flag} is missing: give {option.form.words}{suggested}"
        if (
            option.by_name and keys
        ):  # the entry of one name; of a list all is shown, as it was typed
            return option.refusal(first["input"], f" {keys[0]}")
        return option.refusal(typed_value(values[option.name]))


def typed_value(value: Any) -> Any:
    """Return a value as it was typed: the command line makes a tuple of every repeatable option."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _choices(annotation: Any) -> tuple[str, ...]:
    members = (annotation, *get_args(annotation))
    return next((get_args(member) for member in members if get_origin(member) is Literal), ())


def _forms(field: FieldInfo) -> Iterator[Form]:
    """Yield what values of a field are called, the most special name first."""
    for annotated in (field, *get_args(field.annotation)):
        marks = getattr(annotated, "metadata", getattr(annotated, "__metadata__", ()))
        yield from (mark for mark in reversed(marks) if isinstance(mark, Form))


class FitOptions(Options):
    """The options of a fit, as given or, in a `Request`, as checked.

    gap, initial, fixed and bounds are part of a checkpoint's identity as the gap in Å and the search
    that they lead to; chunks that on_bad_tile excludes are part of it, too.
    """

    gap: Gap = option(None, MODEL, '"200 um"', COMMON | PLAN | CHANGEABLE | UNLISTED)
    """Distance between the plates, a length with its unit or, in Python, a number in Å; default: the gap in
    the store."""
    convention: Literal["physical", "homodyne"] = option(
        "physical", MODEL, "physical", PLAN | UNLISTED
    )
    """How shear enters the model: physical, or homodyne to continue a series fitted with that package."""
    scaling: Literal[
        "individual",
        "shared",
        "fourier1",
        "fourier2",
        "fourier3",
        "scans",
        "rings",
        "angles",
        "fixed",
    ] = option("individual", SCALING, "individual", COMMON | UNLISTED)
    """How contrast and offset are fitted: individual (per bin), shared (the same for all bins), fourier1 to
    fourier3 (Fourier series in φ), scans (per bin, the same in all scans of repeats), or fixed (given
    values)."""
    contrast: ScalingValues = option(None, SCALING, "{bounds: [0, 0.5], prior: [0.2, 0.01]}")
    """Contrast: its value with scaling fixed (one for all bins or one per bin); or, of each bin (scaling
    individual) or of the shared one, its bounds, and its prior as mean and standard deviation, treated as an
    additional measurement."""
    offset: ScalingValues = option(None, SCALING, "{bounds: [0.9, 1.1], prior: [1, 0.001]}")
    """Offset, given as for contrast."""
    initial: NumberByName = option(
        None, MODEL, "{D0: 1e4, alpha: -0.5}", COMMON | PLAN | CHANGEABLE
    )
    """Initial values of parameters; default: found from the data."""
    fixed: NumberByName = option(
        None, MODEL, "{D_offset: 0}", COMMON | PLAN | CHANGEABLE | UNLISTED
    )
    """Values of parameters that are not fitted."""
    bounds: RangeByName = option(None, MODEL, "{D0: [1, 1e7]}", COMMON | PLAN | CHANGEABLE)
    """Bounds of parameters; default: the bounds of the model."""
    tie: TextByName = option(None, MODEL, '{beta: alpha, D_offset: "0.1*D0"}', PLAN)
    """Parameters tied to others by expressions: + - * / **, exp, log, log10, sqrt, sin, cos, tan and abs."""
    prior: PriorByName = option(None, MODEL, "{D0: [2500, 300]}", PLAN | UNLISTED)
    """Priors of parameters: mean and standard deviation of each, treated as an additional measurement."""
    rates: Literal["spline", "J=spline", "gamma_dot=spline"] | None = option(
        None, MODEL, "spline", PLAN | UNLISTED
    )
    """For static, laminar_flow and stretched, rates without a formula, as cubic B-splines of time: spline,
    or, for one rate only, J=spline or gamma_dot=spline; default: the formulas of the model."""
    knots: Count | None = option(None, MODEL, "20", PLAN | CHANGEABLE | UNLISTED)
    """Number of splines for each rate without a formula; default: 20, or fewer for a short record."""
    smoothness: PositiveByName = option(None, MODEL, "{J: 1e-3}", UNLISTED)
    """Strength of the penalty on second differences of the coefficients of rates without a formula, by rate;
    default: chosen from the data."""
    min_lag: Count = option(1, DATA, "1", PLAN | UNLISTED, unit="frames")
    """Pairs of frames closer than this are excluded."""
    weighting: Literal["pairs", "speckle"] = option(PAIRS, NUMERICS, PAIRS, COMMON | PLAN)
    """Data to fit: all pairs, each weighted by its σ (pairs), or averages over cells of age and lag, weighted
    by the covariance of speckle and counting noise, which gives smaller errors and reads no pairs
    (speckle)."""
    loss: Literal["linear", "huber", "soft_l1", "cauchy"] = option(
        "linear", NUMERICS, "linear", COMMON | PLAN | UNLISTED
    )
    """Loss function of the residuals: their squares (linear), or a function that grows more slowly and so
    suppresses outliers (huber, soft_l1 or cauchy, as in scipy.optimize.least_squares)."""
    loss_scale: Positive | None = option(
        None, NUMERICS, "1.345", PLAN | UNLISTED, unit="standard deviations"
    )
    """Residual above which the loss is less than the square; default: 1."""
    precision: Literal["float64", "mixed"] = option("float64", NUMERICS, "float64")
    """Precision of the model: float64, or mixed (float32; sums are float64 in both)."""
    device: Literal["auto", "cpu", "gpu"] = option(
        "auto", WORKERS, "auto", COMMON | PLAN | CHANGEABLE | UNLISTED
    )
    """Device for the passes: processors (cpu), CUDA GPUs (gpu), or, for data that fit in the memory of GPUs,
    those where the fit is expected to end earlier (auto)."""
    memory: Literal["auto", "resident", "stream"] = option(
        "auto", WORKERS, "auto", PLAN | CHANGEABLE
    )
    """Whether decoded data are kept in the memory of the workers (resident), read again in every pass
    (stream), or kept if they fit (auto)."""
    starts: Count | None = option(None, NUMERICS, "20", UNLISTED)
    """Number of points of the search for initial values from which minima are sought; default: only the most
    promising ones."""
    friedel: OnOff = option("on", ERRORS, "'on'")
    """Whether bins of one q that are 180° apart see the same speckle, as at small angles, and count as one
    independent bin (on), or not, as at large angles (off)."""
    noise_of: StoreName = option(None, ERRORS, "raw_c2.zarr", COMMON | CHANGEABLE)
    """Store of the data as measured, of the same bins and frames, for c2 that was denoised: errors, χ²,
    contrast, offset and checks are then those of the measured data at the fitted parameters."""
    profile: Names = option((), ERRORS, "[D_offset]", COMMON | CHANGEABLE | UNLISTED)
    """Parameters for which the profile of χ² is computed, at one and two standard errors on either side, with
    the other parameters fitted again."""
    max_passes: Count = option(100, NUMERICS, "100", COMMON | CHANGEABLE)
    """Maximum number of iterations, each a pass over the data."""
    on_bad_tile: Literal["raise", "skip"] = option("raise", DATA, "raise", CHANGEABLE)
    """What to do if chunks of the store cannot be read: end the fit (raise), or exclude all such chunks
    before the first pass and report them (skip)."""

    def check(self, of_table: bool) -> None:
        """Raise OptionError for options that exclude each other, or that a table of g2 does not allow."""
        if self.loss == "linear":
            if self.loss_scale is not None:
                raise OptionError(
                    f"loss_scale = {self.loss_scale!r} is given, but the loss is the sum of squares: choose "
                    f"a loss, such as loss='huber'"
                )
        elif self.precision != "float64":
            raise OptionError(
                f"precision {self.precision!r} is too coarse for the loss {self.loss!r}: its steps "
                f"are smaller than the rounding of the sums; use precision 'float64'"
            )
        elif self.weighting != PAIRS:
            raise OptionError(
                f"weighting {self.weighting!r} minimizes squares, but the loss is {self.loss!r}: leave out "
                f"one of them"
            )
        if self.noise_of is not None and (self.weighting != PAIRS or self.loss != "linear"):
            raise OptionError(
                "noise_of gives errors to a fit of squares of all pairs: leave out weighting and loss"
            )
        for name, needs in _NEED_TWO_TIMES.items() if of_table else ():
            if getattr(self, name) != FitOptions.model_fields[name].default:
                raise OptionError(
                    f"{name} = {getattr(self, name)} needs two-time data, and a table of g2 has only delays, "
                    f"not {needs}; leave out {name}"
                )

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FitOptions.model_fields}

    def changed(self) -> list[str]:
        """Return the names of the options that the report lists: those that differ from the default."""
        options = FitOptions.options()
        return [
            name
            for name, value in self.values().items()
            if Use.UNLISTED not in options[name].use and value not in (None, options[name].default)
        ]


_NEED_TWO_TIMES = {
    "weighting": "the noise of speckle",
    "min_lag": "frames: remove the first lines of the table instead",
    "friedel": "the noise of speckle",
    "noise_of": "the noise of speckle",
    "rates": "ages",
}


def takes_options[**P, R](*, of_plan: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give functions the options of a fit, or of a plan, in signature and docstring (`{options}`)."""
    options = [o for o in FitOptions.options().values() if PLAN in o.use or not of_plan]
    keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    keywords = [keyword(o.name, default=o.default, annotation=o.type) for o in options]

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        complete = signature.replace(parameters=[*named, *keywords])

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            # `function` may take **options and pass them on: the error is to name the function called
            for name in kwargs:
                if name not in complete.parameters:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}; "
                        f"{nearest(name, complete.parameters)}"
                    )
            return function(*args, **kwargs)

        cast(Any, checked).__signature__ = complete
        checked.__doc__ = _PLACE.sub(partial(_lines, options), function.__doc__ or "")
        return checked

    return decorated


def _lines(options: list[Option], place: re.Match[str]) -> str:
    fill = partial(textwrap.fill, width=96, initial_indent=place[1])
    return "\n".join(
        fill(f"{o.name}: {o.description}.", subsequent_indent=f"{place[1]}    ") for o in options
    )
