"""The transport models: f(theta; t1, t2) in both conventions (see `Convention`).

    static        f = exp(-q² ΔC)
    power_law     the same with D_offset = 0
    brownian      the same with D_offset = 0 and alpha = 0
    laminar_flow  f = exp(-q² ΔC) · S(ΔG)
    couette       the same with constant J and γ̇
    poiseuille_flow, poiseuille    the same between walls at rest (`Shear.PARABOLIC`)

with C(t) = ∫ J dt, J = D0 t^alpha + D_offset [Å²/s] and G(t) = ∫ γ̇ dt,
γ̇ = gamma_dot_t0 t^beta + gamma_dot_t_offset [1/s], integrated by the trapezoid rule over the
frame times. J = 2 D_SE, so D0 is twice the Stokes-Einstein coefficient.

S is even in ΔG and in cos(phi0 - φ): γ̇ and -γ̇, that is (gamma_dot_t0, gamma_dot_t_offset) and both with the
opposite sign, give the same f, as do phi0 and phi0 + 180°. (In the `homodyne` convention γ̇ is not negative.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, require_known, shown
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.parametrized import FREE_FORMS, Parametrized
from homodyne_dask.models.rate_forms import (
    POWER_LAW_FORM,
    RATES,
    RateForm,
    SplineForm,
    integrated,
    rate,
)

Times = Float[np.ndarray, " n"]
Theta = Float[np.ndarray, " p"]
Bins = Float[np.ndarray, " bin"]

RATE_FLOOR = 1e-10
"""Å²/s: a rate of decorrelation cannot be negative."""
OTHER_PROFILE = {"couette": "poiseuille", "laminar_flow": "poiseuille_flow"}
OTHER_PROFILE |= {parabolic: linear for linear, parabolic in OTHER_PROFILE.items()}
"""Models that differ in the profile of the flow alone."""
STEP = ("J_before", "J_after", "t_step", "width")
"""Å²/s, Å²/s, s, s."""
DIRECTION = "phi0"
Rates = dict[str, Times]


class Convention(StrEnum):
    """How shear enters f; always recorded with a result."""

    PHYSICAL = "physical"
    """sinc²(½ q L cosφ ΔG): the gap average of a linear velocity profile (Fuller et al. 1980,
    Busch et al. 2008, Burghardt et al. 2012)."""
    HOMODYNE = "homodyne"
    """sinc⁴(q L cosφ ΔG / 2π), un-normalised sinc: what homodyne >= 2 and xpcsjax compute.
    Its γ̇ is about π/√2 = 2.22 times the physical one."""

    def floor_of(self, rate: str) -> float | None:
        """Return the least value of a rate, J or gamma_dot; None where it may be negative."""
        return RATE_FLOOR if rate == "J" or self is Convention.HOMODYNE else None


class Shear(StrEnum):
    """Profile of the velocity across the gap L, whose average is the shear factor S."""

    NONE = ""
    LINEAR = "linear"
    """Between plates of which one moves: S of the convention."""
    PARABOLIC = "parabolic"
    """Between walls at rest, at which the shear rate is γ̇: S = |∫₀¹ exp(i a u²) du|², a = ¼ q L cosφ ΔG."""


@dataclass(frozen=True, repr=False)
class TransportModel(Parametrized):
    """Model of diffusion, with or without shear, whose rates are power laws or splines of time."""

    shear: Shear
    J: RateForm = POWER_LAW_FORM
    gamma_dot: RateForm = POWER_LAW_FORM

    derivatives_by_hand = True

    @property
    def needs_gap(self) -> bool:
        return bool(self.shear)

    @property
    def depends_on_age(self) -> bool:
        return True

    @property
    def start(self) -> str:
        return "transport splines" if self.splines else "transport"

    @property
    def law(self) -> "TransportModel":
        """The model of the same flow in which both rates are power laws a t^b + c."""
        return next(law for law in LAWS if law.shear is self.shear)

    @property
    def model_of_free_rates(self) -> str:
        return super().model_of_free_rates or ("" if self.splines else self.law.name)

    @property
    def with_other_profile(self) -> "TransportModel":
        """The model of the same rates where flow has the other profile, LINEAR or PARABOLIC."""
        name, free, rates = self.name.partition("_free")
        shear = Shear.PARABOLIC if self.shear is Shear.LINEAR else Shear.LINEAR
        name, simpler = OTHER_PROFILE[name] + free + rates, OTHER_PROFILE.get(self.simpler, "")
        return replace(self, name=name, simpler=simpler, shear=shear)

    def with_splines(self, splines: Mapping[str, SplineForm]) -> "TransportModel":
        if not splines:
            return self
        return _model(self.name, self.shear, simpler=self.simpler, splines=splines)

    def from_law(self, theta: Theta, t: Times) -> Theta:
        """Return the parameters nearest to those of its power law; t: times above 0 [s]."""
        nearest, law = np.empty(self.size), self.law
        nearest[self.direction] = theta[law.direction]
        for name, (form, place) in self.rates.items():
            form_of_law, place_in_law = law.rates[name]
            values = theta[place_in_law]
            if isinstance(form, SplineForm):
                values = form.projected(t, form_of_law.at(t, values, None)[0])
            nearest[place] = values
        return nearest

    def shear_rate_at(self, theta: Theta, t: Times) -> Times | None:
        if not self.shear:
            return None
        return self.gamma_dot.at(t, theta[self.shear_rate], None)[0]

    @property
    def diffusion(self) -> slice:
        return slice(0, self.J.size)

    @property
    def shear_rate(self) -> slice:
        return slice(self.J.size, self.J.size + (self.gamma_dot.size if self.shear else 0))

    @property
    def direction(self) -> slice:
        return slice(self.shear_rate.stop, self.size)

    @property
    def rates(self) -> dict[str, tuple[RateForm, slice]]:
        """J and, under shear, gamma_dot: the form of each, and the positions of its parameters in theta."""
        of_shear = {"gamma_dot": (self.gamma_dot, self.shear_rate)} if self.shear else {}
        return {"J": (self.J, self.diffusion)} | of_shear

    @property
    def splines(self) -> dict[str, SplineForm]:
        return {
            name: form for name, (form, _) in self.rates.items() if isinstance(form, SplineForm)
        }

    def with_parts(
        self,
        theta: Theta | None = None,
        *,
        diffusion: Sequence[float] | None = None,
        shear_rate: Sequence[float] | None = None,
        phi0: float | None = None,
    ) -> Theta:
        """Return theta, by default all 0, with some of its parts replaced."""
        replaced = np.zeros(self.size) if theta is None else theta.copy()
        places = self.diffusion, self.shear_rate, self.direction
        for place, values in zip(places, (diffusion, shear_rate, phi0), strict=True):
            if values is not None:
                replaced[place] = values
        return replaced

    @property
    def digest(self) -> str:
        return " ".join([self.name, *(f"{name}={form}" for name, form in self.splines.items())])


def convention_named(name: str) -> Convention:
    require_known(name, [*Convention], f"convention {shown(name)} is unknown")
    return Convention(name)


def frame_spacing(time: Times, convention: Convention = Convention.PHYSICAL) -> float:
    """Return Δt in s: the median step, in the `homodyne` convention the only one; refuses other times."""
    steps = np.diff(time)
    if len(time) < 2 or not (np.isfinite(time).all() and (steps > 0).all()):
        raise OptionError("frame times must be at least two finite numbers in increasing order")
    spacing = float(np.median(steps))
    if convention is Convention.HOMODYNE:
        uneven = np.flatnonzero(np.abs(steps - spacing) > 1e-6 * spacing)
        if len(uneven):
            first = int(uneven[0])
            raise OptionError(
                f"the homodyne convention needs evenly spaced frames, but frames {first} and {first + 1} are "
                f"{steps[first]:g} s apart, and most others {spacing:g} s: use convention='physical'"
            )
    return spacing


def tables(
    model: TransportModel, convention: Convention, theta: Theta, time: Times
) -> Float[np.ndarray, "rows n"]:
    """Return 1, ∂C/∂(parameters of J), for shear ∂G/∂(those of γ̇) and G, last C: f of a pair follows from
    differences. In the `homodyne` convention the trapezoid sums carry no Δt."""
    t = positive_times(time, frame_spacing(time, convention))
    return rows_of(model, convention, theta, t, time_steps(convention, time))


def time_steps(convention: Convention, time: Times) -> Float[np.ndarray, " m"]:
    """Return the steps over which rates are integrated: in s, or in frames in `homodyne`."""
    return np.ones(len(time) - 1) if convention is Convention.HOMODYNE else np.diff(time)


def positive_times(time: Times, spacing: float) -> Times:
    return np.maximum(time, spacing / 2)


def rows_of(
    model: TransportModel,
    convention: Convention,
    theta: Theta,
    t: Times,
    steps: Float[np.ndarray, " m"],
) -> Float[np.ndarray, "rows n"]:
    """Return the rows of `tables` from `positive_times`; of JAX where the arguments are."""
    integrals = [
        integrated(form.at(t, theta[row], convention.floor_of(name)), steps)
        for name, (form, row) in model.rates.items()
    ]
    xp = theta.__array_namespace__()
    # G before C, which is the last row with and without shear
    slopes, values = [row[1:] for row in integrals], [row[:1] for row in reversed(integrals)]
    return xp.concatenate([xp.ones((1, len(t))), *slopes, *values])


@dataclass(frozen=True)
class BinScales:
    k: Bins
    """q² [1/Å²], times Δt in the homodyne convention."""
    s: Bins
    """½ q L cos(phi0 - φ), or q L Δt cos(phi0 - φ) / 2π in the homodyne convention; a / 2ΔG of parabolas."""
    ds: Bins
    """∂s/∂phi0, per degree."""


def bin_scales(
    model: TransportModel,
    convention: Convention,
    theta: Theta,
    q: Bins,
    phi: Bins,
    gap: float | None,
    spacing: float,
) -> BinScales:
    homodyne = convention is Convention.HOMODYNE
    # sums of that convention carry no Δt
    k = q**2 * (spacing if homodyne else 1.0)
    xp = theta.__array_namespace__()
    if not model.shear:
        return BinScales(k, xp.zeros_like(q), xp.zeros_like(q))
    assert gap is not None  # checked with the user's options
    reach = q * gap * (spacing / (2 * np.pi) if homodyne else 0.5)
    reach = reach / 4 if model.shear is Shear.PARABOLIC else reach
    angle = xp.deg2rad(theta[model.direction] - phi)
    return BinScales(k, reach * xp.cos(angle), -reach * xp.sin(angle) * np.pi / 180)


def true_rates(
    model: str, parameters: Mapping[str, Any], t: Times, convention: Convention
) -> Rates | None:
    """Return J [Å²/s] and, under shear, gamma_dot [1/s] of a simulated scan at times above 0 [s].

    model, parameters: as a simulated file has them, of a transport model or of temperature_step, never
    fitted: J = J_before + (J_after - J_before) / (1 + exp(-(t - t_step) / width)). None without rates.
    """
    names, values = {*parameters}, parameters
    if model == "temperature_step" and names == {*STEP}:
        rise = 0.5 * (1 + np.tanh((t - values["t_step"]) / (2 * values["width"])))
        return {"J": values["J_before"] + (values["J_after"] - values["J_before"]) * rise}
    if names - {DIRECTION} not in ({*RATES["J"]}, {*RATES["J"], *RATES["gamma_dot"]}):
        return None
    return {
        name: rate(t, np.array([values[p] for p in law], float), convention.floor_of(name))[0]
        for name, law in RATES.items()
        if names.issuperset(law)
    }


_DIFFUSION = (
    Parameter("D0", "Å²/s", (1.0, 1e12), scale="log", q_power=2),
    Parameter("alpha", "", (-2.0, 2.0)),
    Parameter("D_offset", "Å²/s", (-1e4, 1e4), q_power=2),
)
_SHEAR = (
    Parameter("gamma_dot_t0", "1/s", (1e-8, 1.0), scale="log"),
    Parameter("beta", "", (-2.0, 2.0)),
    Parameter("gamma_dot_t_offset", "1/s", (-0.1, 0.1)),
    Parameter("phi0", "degree", (-90.0, 90.0), period=180.0),
)


def _model(
    name: str,
    shear: Shear,
    *constant: str,
    simpler: str = "",
    splines: Mapping[str, SplineForm] | None = None,
) -> TransportModel:
    """Return the model in which these parameters are 0 and these rates, J or gamma_dot, are of free form."""
    parameters, laws, splines = [], [], splines or {}
    for which, of_rate in (("J", _DIFFUSION), ("gamma_dot", _SHEAR[:3]))[: 1 + bool(shear)]:
        law = RATES[which]
        if which in splines:
            unit, power = ("Å²/s", 2) if which == "J" else ("1/s", 0)
            parameters += [
                Parameter(f"{which}_{n + 1}", unit, (0.0, np.inf), q_power=power)
                for n in range(splines[which].size)
            ]
            continue
        parameters += [replace(p, constant=0.0 if p.name in constant else None) for p in of_rate]
        laws += [law] if law[1] not in constant else []
    parameters += _SHEAR[3:] if shear else ()
    return TransportModel(
        name,
        tuple(parameters),
        shear=shear,
        power_laws=tuple(laws),
        simpler=simpler,
        isotropic=not (shear or splines),
        J=splines.get("J", POWER_LAW_FORM),
        gamma_dot=splines.get("gamma_dot", POWER_LAW_FORM),
    )


BROWNIAN = _model("brownian", Shear.NONE, "alpha", "D_offset")
POWER_LAW = _model("power_law", Shear.NONE, "D_offset", simpler="brownian")
STATIC = _model("static", Shear.NONE, simpler="power_law")
_CONSTANT = "alpha", "D_offset", "beta", "gamma_dot_t_offset"
COUETTE = _model("couette", Shear.LINEAR, *_CONSTANT)
LAMINAR_FLOW = _model("laminar_flow", Shear.LINEAR)
POISEUILLE = _model("poiseuille", Shear.PARABOLIC, *_CONSTANT)
POISEUILLE_FLOW = _model("poiseuille_flow", Shear.PARABOLIC)
MODELS = BROWNIAN, POWER_LAW, STATIC, COUETTE, LAMINAR_FLOW, POISEUILLE, POISEUILLE_FLOW


def _free(name: str, law: TransportModel, *rates: str) -> TransportModel:
    splines = dict.fromkeys(rates, SplineForm())
    return _model(name, law.shear, simpler=law.name, splines=splines)


def _free_forms(law: TransportModel) -> dict[str, TransportModel]:
    return {
        "spline": _free(f"{law.name}_free", law, "J", "gamma_dot"),
        "J=spline": _free(f"{law.name}_free_J", law, "J"),
        "gamma_dot=spline": _free(f"{law.name}_free_gamma_dot", law, "gamma_dot"),
    }


LAWS = STATIC, LAMINAR_FLOW, POISEUILLE_FLOW
STATIC_FREE = _free("static_free", STATIC, "J")
_FLOWS_FREE = {law.name: _free_forms(law) for law in LAWS[1:]}
LAMINAR_FLOW_FREE = _FLOWS_FREE["laminar_flow"]["spline"]
FREE_MODELS = STATIC_FREE, *(free for forms in _FLOWS_FREE.values() for free in forms.values())
for _law in (STATIC, BROWNIAN, POWER_LAW):
    FREE_FORMS[_law.name] = {"spline": STATIC_FREE, "J=spline": STATIC_FREE}
FREE_FORMS.update(_FLOWS_FREE)
