"""What every model is, and what a fit asks of it: its parameters, their search, the data that it needs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.document.blocks import Document, Printed, table_document
from homodyne_dask.errors import OptionError, SelectionError, nearest, require_known, shown
from homodyne_dask.models.parameters import Parameter, Search, gaussian_priors, search
from homodyne_dask.models.rate_forms import (
    MIN_KNOTS,
    RATE,
    PowerLaw,
    Smoothness,
    SplineForm,
    power_laws,
)

if TYPE_CHECKING:
    from homodyne_dask.request.options import FitOptions

Times = Float[np.ndarray, " n"]

OPERATORS: dict[str, Callable[[Any, object], Any]] = {}
"""What makes a sum or a product of models; filled when `homodyne_dask.models` is imported."""
FREE_FORMS: dict[str, Mapping[str, "Parametrized"]] = {}
"""Models with rates of free form in place of formulas, by the name of the model and the option `rates`."""
UNKNOWN_Q_BOUND = 1e10
"""1/s: bounds of q²·D where q is unknown."""


def _times_q2(coefficient: Parameter) -> Parameter:
    low = coefficient.bounds[0]
    least = 1 / UNKNOWN_Q_BOUND if low > 0 else -UNKNOWN_Q_BOUND if low < 0 else 0.0
    return replace(coefficient, unit="1/s", bounds=(least, UNKNOWN_Q_BOUND))


@dataclass(frozen=True)
class Beat:
    """Names of the parameters by which fringes of c2 turn and decay, for the search of initial values."""

    speed: str
    """[Å/s] of a motion against a reference; where it has no direction the frequency of fringes [Hz]."""
    exponent: str = ""
    """Of the time in the speed."""
    direction: str = ""
    """[degree]."""
    decays: tuple[str, ...] = ()
    """Rates of decay [1/s], or where there is a direction diffusion coefficients [Å²/s]."""
    fraction: str = ""
    """Share of the moving part in the field."""
    turn: int = 1
    """1 where phases have cos(direction - φ), -1 where they have cos(direction + φ)."""
    law: str = ""
    """Of a speed Σ speed_k B_k(t), the B_k splines over the record: the model in which it is a power law."""
    exchange: str = ""
    """How parameters of both components are exchanged without a change of c2, if both may decay alike."""

    def turns(
        self, theta: dict[str, float], t: Float[np.ndarray, " n"], q: float, phi: float
    ) -> Float[np.ndarray, " n"]:
        """Return the turns of the fringes per second at times above 0 in a bin of q [1/Å] and φ [degree]."""
        if self.law:
            values = [value for name, value in theta.items() if name.startswith(f"{self.speed}_")]
            speed = SplineForm(len(values), t[0], t[-1]).basis(t).T @ values
        else:
            speed = theta[self.speed] * t ** (theta[self.exponent] if self.exponent else 0.0)
        if not self.direction:
            return speed
        away = np.deg2rad(theta[self.direction] - self.turn * phi)
        return np.abs(q * speed * np.cos(away)) / (2 * np.pi)


@dataclass(frozen=True, repr=False)
class Parametrized(Printed):
    """Base of all models: name, parameters and power laws. `print(model)` lists the parameters."""

    name: str
    parameters: tuple[Parameter, ...]
    power_laws: tuple[tuple[str, str, str], ...] = field(default=(), kw_only=True)
    """Names (a, b, c) of parameters that make a rate a t^b + c, t in s: steps are curved along it."""
    simpler: str = field(default="", kw_only=True)
    """The model with fewer parameters that a user may take where the data do not determine all."""
    beat: Beat | None = field(default=None, kw_only=True)
    """Of models whose f has fringes: the parameters that they depend on."""
    isotropic: bool = field(default=False, kw_only=True)
    """Whether f is the same at all φ, and a change with φ may stand for motion in one direction."""
    ordered_times: bool = field(default=False, kw_only=True)
    """Whether f is known at t2 > t1 alone, as that of a user; of others it is 1 at t2 = t1, too."""

    derivatives_by_hand: ClassVar[bool] = False
    """Whether f has kernels of its own; that of others is a function that JAX differentiates."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def size(self) -> int:
        return len(self.parameters)

    @property
    def splines(self) -> Mapping[str, SplineForm]:
        """What has no formula but a sum of splines, by name, such as a rate."""
        return {}

    @property
    def places(self) -> dict[str, slice]:
        """Positions in theta of the coefficients of these, name_1 and so on."""
        first = {name: self.names.index(f"{name}_1") for name in self.splines}
        return {name: slice(n, n + self.splines[name].size) for name, n in first.items()}

    def __add__(self, other: object) -> Any:
        return OPERATORS["+"](self, other)

    def __mul__(self, other: object) -> Any:
        return OPERATORS["*"](self, other)

    def __repr__(self) -> str:
        return f"<model {self.name} of {', '.join(self.names)}>"

    def _document(self) -> Document:
        rows = [["parameter", "unit", "from", "to", "period"]]
        for p in self.parameters:
            ends = (f"{end:g}" if math.isfinite(end) else "unbounded" for end in p.bounds)
            rows.append([p.name, p.unit, *ends, f"{p.period:g}" if p.period else ""])
        return table_document(self.name, rows, left=len(rows[0]))

    def current(self) -> Self:
        """Return the model with what a user's functions read now."""
        return self

    @property
    def untied(self) -> Any:
        """The model of all parameters, of which this one may have some tied to others."""
        return self

    @property
    def needs_gap(self) -> bool:
        """Whether f depends on the distance between the plates, and on φ."""
        return False

    @property
    def depends_on_age(self) -> bool:
        """Whether it has rates of the time since 0 s."""
        return bool(self.power_laws) or RATE in self.splines

    @property
    def of_one_record(self) -> bool:
        """Whether some parameters are coefficients of splines over the times of one record."""
        return bool(self.splines or (self.beat is not None and self.beat.law))

    @property
    def start(self) -> str:
        """Which search for initial values suits it: a key of `fitting.start.initial_values.STARTS`."""
        return "function" if self.beat is None else "fringes"

    @property
    def free_forms(self) -> Mapping[str, "Parametrized"]:
        return FREE_FORMS.get(self.name, {})

    @property
    def model_of_free_rates(self) -> str:
        """The name of the model that takes the option `rates` where this one does not describe c2, or ''."""
        return self.name if self.free_forms else ""

    def laws_over(self, time: Times) -> tuple[PowerLaw, ...]:
        """Return its power laws as they are seen at times [s] of which some are above 0."""
        return power_laws(self.names, self.power_laws, time)

    def shear_rate_at(self, theta: Times, t: Times) -> Times | None:
        """Return the shear rate [1/s] at times [s]; None without any."""
        return None

    def with_splines(self, splines: Mapping[str, SplineForm]) -> Self:
        return self

    def with_rates(self, rates: str | None) -> Any:
        """Return the model with the rates of free form that a user asked for, as 'spline' or 'J=spline'."""
        forms = self.free_forms
        if rates is None:
            return self
        if rates in forms:
            return forms[rates]
        if self.name in {free[rates].name for free in FREE_FORMS.values() if rates in free}:
            return self
        if forms:
            raise OptionError(
                f"rates = {shown(rates)} is unknown for {self.name}; {nearest(rates, forms)}"
            )
        raise OptionError(
            f"rates = {shown(rates)} is given, but the rates of {self.name} cannot be splines: use static, "
            f"laminar_flow, poiseuille_flow or stretched"
        )

    def over(self, time: Times, knots: int | None) -> Self:
        """Return the model with so many splines (knots) over times in use [s], or over rates."""
        if knots is not None and not self.splines:
            raise OptionError(
                f"knots = {knots} is given, but {self.name} has no splines: add rates='spline'"
            )
        if knots is not None and not MIN_KNOTS <= knots <= len(time):
            raise OptionError(
                f"knots = {knots} cannot be used: give a number from {MIN_KNOTS} to {len(time)}, the number "
                f"of frames in use"
            )
        return self.with_splines(
            {name: form.over(time, knots) for name, form in self.splines.items()}
        )

    def with_coefficients(self, number: int, time: Times) -> Self:
        """Return the model of so many parameters, splines over times [s]; itself where they do not fit."""
        splines = self.splines
        if not splines or any(form != type(form)() for form in splines.values()):
            return self
        without_form = self.size - sum(form.size for form in splines.values())
        knots, remainder = divmod(number - without_form, len(splines))
        return self if remainder or knots < MIN_KNOTS else self.over(time, knots)

    def with_stored_splines(self, stored: Mapping[str, Mapping[str, Any]]) -> Self:
        return self.with_splines(
            {name: type(form)(**stored[name]) for name, form in self.splines.items()}
        )

    def by_coefficient(
        self, option: str, values: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Return values by name with those of a rate of free form at each coefficient: splines sum to 1."""
        places, by_name = self.places, dict[str, Any]()
        if values is None or not any(name in places for name in values):
            return values
        for name, value in values.items():
            for coefficient in self.names[places[name]] if name in places else [name]:
                if coefficient in by_name:
                    raise OptionError(
                        f"{option}: {coefficient} is given twice, by its own name and by that of its rate"
                    )
                by_name[coefficient] = value
        return by_name

    def check_data(self, phi: Float[np.ndarray, " bin"], time: Times) -> None:
        """Raise SelectionError for unknown angles [degree] or times in use [s] for which f is not defined."""
        unknown, beat = int(np.isnan(phi).sum()), self.untied.beat
        directed = beat is not None and beat.direction
        if unknown and (self.needs_gap or directed):
            instead = ", or fit damped_cosine, which needs none" if directed else ""
            raise SelectionError(
                f"{self.name} needs φ, which is unknown for {unknown} of {len(phi)} selected bins: "
                f"ingest with --phi, or select the other bins with label{instead}"
            )
        if self.untied.depends_on_age and time[0] < 0:
            raise SelectionError(
                f"the selected times begin at {time[0]:g} s, but the rates of {self.name} are those of the "
                f"time since 0 s: select later times (--time 0:...), or ingest again with another "
                f"--time-offset"
            )

    def require_gap(self, gap: float | str | None, example: str) -> None:
        """Raise OptionError where f needs a gap and none is known."""
        if self.needs_gap and gap is None:
            raise OptionError(
                f"{self.name} needs the gap between the plates: give it, for example {example}"
            )

    def parameters_for(self, q: Float[np.ndarray, " bin"], needs_q: bool) -> tuple[Parameter, ...]:
        """Return the parameters, in 1/s where q is unknown and only q² times them is determined."""
        unknown = np.isnan(q)
        if not unknown.any():
            return self.parameters
        if not unknown.all():
            raise SelectionError(
                f"q is unknown for {int(unknown.sum())} of {len(unknown)} selected bins: "
                f"select only bins with q, or only bins without q"
            )
        if needs_q:
            raise OptionError(
                f"{self.name} needs q, which the store does not have: ingest with --q"
            )
        return tuple(_times_q2(p) if p.q_power else p for p in self.parameters)

    def search(
        self,
        options: "FitOptions",
        parameters: tuple[Parameter, ...],
        time: Times,
        clusters: Int[np.ndarray, " bin"],
    ) -> Search:
        """Return which parameters vary, from where, within which bounds, and with which priors and smoothing.

        parameters: as `parameters_for` returns them. time: s, of the frames in use. clusters: a number per
        bin; bins that see the same speckle share one. Raises OptionError for options that do not suit the
        model.
        """
        self._check_names(options)
        initial, fixed, bounds = (
            self.by_coefficient(option, getattr(options, option))
            for option in ("initial", "fixed", "bounds")
        )
        chosen = search(parameters, initial, fixed, bounds, self.laws_over(time))
        priors = gaussian_priors(options.prior, chosen)
        smoothness = self._smoothness(chosen, options.smoothness, clusters)
        for name in options.profile:
            if not chosen.free[chosen.names.index(name)]:
                raise OptionError(
                    f"profile: {name} is fixed and has no profile: remove it from profile or from fixed"
                )
        return replace(chosen, priors=priors, smoothness=smoothness)

    def _check_names(self, options: "FitOptions") -> None:
        for name in options.profile:
            if self.splines:
                raise OptionError(
                    f"profile of {name}: {self.name} has rates without a formula, whose smoothness would "
                    f"change along the profile: leave it out"
                )
            require_known(name, self.names, f"profile: unknown parameter {name!r}")
        for name, form in self.splines.items():
            if name in (options.prior or {}):
                raise OptionError(
                    f"prior of {name}: {self.name} has no formula for this rate, and one prior cannot "
                    f"describe a whole curve: give bounds of {name}, or priors of {name}_1 to "
                    f"{name}_{form.size}"
                )

    def _smoothness(
        self,
        chosen: Search,
        strengths: Mapping[str, float] | None,
        clusters: Int[np.ndarray, " bin"],
    ) -> Smoothness | None:
        """Return how rates of free form are smoothed; None where there are none, or all are fixed."""
        places, strengths = self.places, strengths or {}
        for name in {"J", RATE} & places.keys():
            if (lowest := chosen.lower[places[name]].min()) < 0:
                raise OptionError(
                    f"bounds of {name} begin at {lowest:g}, but a rate of decorrelation cannot be negative: "
                    f"give bounds of 0 or above"
                )
        if strengths and not places:
            raise OptionError(
                f"smoothness is given, but {self.name} has no splines: add rates='spline'"
            )
        for name in strengths:
            wrong = f"smoothness: {self.name} has no splines for a rate {shown(name)}"
            require_known(name, places, wrong)
        moving = {name: place for name, place in places.items() if chosen.free[place].any()}
        if not moving:
            return None
        forms = {name: self.splines[name] for name in moving}
        return Smoothness(moving, forms, dict(strengths), clusters)
