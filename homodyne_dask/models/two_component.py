"""Two components that scatter together, one of them moving against the other: c2 beats.

With the fractions f_r and f_s = 1 - f_r of the two components in the field at each time, their own decays
h = exp(-½ q² ΔC) and the phase ψ of the moving one, q cos(phi0 - φ) ΔV,

    f = [(f_r1 f_r2)² h_r² + (f_s1 f_s2)² h_s² + 2 f_r1 f_r2 f_s1 f_s2 h_r h_s cos ψ] / norm,
    norm = (f_s1² + f_r1²)(f_s2² + f_r2²)

(He et al. 2025). C and V are trapezoid sums over the frame times of D0 t^alpha and of v0 t^v_beta, at t = 0
those of half a frame.

    two_component           f_s = fraction at t = 0, and its odds grow by exp(fraction_growth t)
    beating                 the same with a reference that does not decay, and constant fractions
    two_component_spline, beating_spline    the same with the speed Σ v_k B_k(t), six splines over the record
    two_component_xpcsjax   the 14 parameters of xpcsjax: rates with offsets, at least 0 for diffusion, and
                            f_s = f0 exp(f1 (t - f2)) + f3 between soft limits; ψ has cos(φ + phi0_het), and
                            t^a is 0 at t = 0
    damped_cosine           f = exp(-rate (t2 - t1)) cos(2π frequency (t2 - t1)): a quick look at one bin

In two_component_xpcsjax f0, f2 and f3 are one number for a constant fraction. Smoothings and floors are those
of xpcsjax.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.parametrized import Beat
from homodyne_dask.models.rate_forms import SplineForm, from_half_a_frame, integrated
from homodyne_dask.models.user_defined import Bin, SeparableModel

_SHARPNESS = 50.0
"""Sharpness of the soft limits 0 and 1 of the fraction."""
_SMOOTHING = 1e-12
"""Å⁴: |ΔC| is the root of ΔC² plus this."""
_MAX_EXPONENT = 700.0
_MIN_NORM = 1e-10
SPLINES = 6


def _power(times: Any, exponent: Any) -> Any:
    xp, positive = times.__array_namespace__(), times > 0
    # the inner `where` keeps 0 to a negative power out of derivatives, too
    return xp.where(positive, xp.where(positive, times, 1.0) ** exponent, 0.0)


def _integral(rate: Any, times: Any) -> Any:
    return integrated(rate, times[1:] - times[:-1])


def _tables(theta: Any, times: Any) -> dict[str, Any]:
    """Return both integrals of diffusion, that of the velocity, and the fraction that moves."""
    t = from_half_a_frame(times)
    return _moving_with(theta[4] * t ** theta[5], theta, times, t)


def _spline_tables(theta: Any, times: Any) -> dict[str, Any]:
    form = SplineForm(SPLINES, times[0], times[-1])
    velocity = theta[4 : 4 + SPLINES] @ form.basis(times)
    return _moving_with(velocity, theta, times, from_half_a_frame(times))


def _moving_with(velocity: Any, theta: Any, times: Any, t: Any) -> dict[str, Any]:
    """t: the times of which rates are powers."""
    import jax  # it loads while workers start, and not with the names of models

    (D_ref, alpha_ref, D_sample, alpha_sample), (fraction, growth) = theta[:4], theta[-3:-1]
    return {
        "C_r": _integral(D_ref * t**alpha_ref, times),
        "C_s": _integral(D_sample * t**alpha_sample, times),
        "V": _integral(velocity, times),
        "moving": jax.nn.sigmoid(jax.scipy.special.logit(fraction) + growth * times),
    }


def _xpcsjax_tables(theta: Any, times: Any) -> dict[str, Any]:
    xp = times.__array_namespace__()

    def diffusion(D0: Any, alpha: Any, D_offset: Any) -> Any:
        return _integral(xp.maximum(D0 * _power(times, alpha) + D_offset, 0.0), times)

    v0, v_beta, v_offset, f0, f1, f2, f3 = theta[6:13]
    x = f0 * xp.exp(xp.clip(f1 * (times - f2), -_MAX_EXPONENT, _MAX_EXPONENT)) + f3
    above = xp.logaddexp(_SHARPNESS * x, 0.0) / _SHARPNESS
    moving = 1 - xp.logaddexp(_SHARPNESS * (1 - above), 0.0) / _SHARPNESS
    return {
        "C_r": diffusion(*theta[:3]),
        "C_s": diffusion(*theta[3:6]),
        "V": _integral(v0 * _power(times, v_beta) + v_offset, times),
        "moving": moving,
    }


def _mixed(turn: int, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    """Return f of the components at t1 and t2; the last of theta is the direction, `turn` as in `Beat`."""
    xp = theta.__array_namespace__()

    def decay(name: str) -> Any:
        dC = xp.sqrt((t2[name] - t1[name]) ** 2 + _SMOOTHING)
        return xp.exp(xp.clip(-0.5 * bin.q**2 * dC, -_MAX_EXPONENT, 0.0))

    s1, s2 = t1["moving"], t2["moving"]
    r1, r2 = 1 - s1, 1 - s2
    at_rest, moved = r1 * r2 * decay("C_r"), s1 * s2 * decay("C_s")
    phase = bin.q * xp.cos(xp.deg2rad(bin.phi - turn * theta[-1])) * (t2["V"] - t1["V"])
    norm = xp.maximum((s1**2 + r1**2) * (s2**2 + r2**2), _MIN_NORM)
    return (at_rest**2 + moved**2 + 2 * at_rest * moved * xp.cos(phase)) / norm


_f, _xpcsjax_f = partial(_mixed, 1), partial(_mixed, -1)


def _cosine(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    xp, (rate, frequency) = theta.__array_namespace__(), theta
    return xp.exp(-rate * abs(t2 - t1)) * xp.cos(2 * xp.pi * frequency * (t2 - t1))


def _diffusion(component: str) -> tuple[Parameter, Parameter]:
    return (
        Parameter(f"D0_{component}", "Å²/s", (1.0, 1e12), scale="log"),
        Parameter(f"alpha_{component}", "", (-2.0, 2.0)),
    )


_SPEED = (Parameter("v0", "Å/s", (1e-2, 1e7), scale="log"), Parameter("v_beta", "", (-2.0, 2.0)))


_BEAT = Beat("v0", "v_beta", "phi0", ("D0_sample", "D0_ref"), "fraction")
_EXCHANGE = (
    "D0_ref and alpha_ref for D0_sample and alpha_sample, fraction for 1 - fraction and fraction_growth for "
    "its opposite"
)
TWO_COMPONENT = SeparableModel(
    "two_component",
    (
        *_diffusion("ref"),
        *_diffusion("sample"),
        *_SPEED,
        Parameter("fraction", "", (1e-3, 1 - 1e-3)),
        Parameter("fraction_growth", "1/s", (-1e3, 1e3)),
        Parameter("phi0", "degree", (-90.0, 90.0), period=180.0),
    ),
    _f,
    _tables,
    simpler="beating",
    beat=replace(_BEAT, exchange=_EXCHANGE),
)
_CONSTANTS = {"D0_ref": 0.0, "alpha_ref": 0.0, "fraction_growth": 0.0}
BEATING = SeparableModel(
    "beating",
    tuple(replace(p, constant=_CONSTANTS.get(p.name)) for p in TWO_COMPONENT.parameters),
    _f,
    _tables,
    beat=_BEAT,
)


def _with_splines(model: SeparableModel, beat: Beat) -> SeparableModel:
    before, after = model.parameters[:4], model.parameters[6:]
    speeds = [Parameter(f"v_{n + 1}", "Å/s", (-1e7, 1e7)) for n in range(SPLINES)]
    of_speed = replace(beat, speed="v", exponent="", law=model.name)
    parameters = (*before, *speeds, *after)
    name = f"{model.name}_spline"
    return SeparableModel(name, parameters, _f, _spline_tables, simpler=model.name, beat=of_speed)


TWO_COMPONENT_SPLINE = _with_splines(TWO_COMPONENT, replace(_BEAT, exchange=_EXCHANGE))
BEATING_SPLINE = _with_splines(BEATING, _BEAT)
TWO_COMPONENT_XPCSJAX = SeparableModel(
    "two_component_xpcsjax",
    (
        *_diffusion("ref"),
        Parameter("D_offset_ref", "Å²/s", (-1e4, 1e4)),
        *_diffusion("sample"),
        Parameter("D_offset_sample", "Å²/s", (-1e4, 1e4)),
        replace(_SPEED[0], bounds=(1e-2, 1e5)),
        _SPEED[1],
        Parameter("v_offset", "Å/s", (-1e3, 1e3)),
        Parameter("f0", "", (0.0, 1.0)),
        Parameter("f1", "1/s", (-1.0, 1.0)),
        Parameter("f2", "s", (-1e4, 1e4)),
        Parameter("f3", "", (0.0, 1.0)),
        Parameter("phi0_het", "degree", (-180.0, 180.0), period=360.0),
    ),
    _xpcsjax_f,
    _xpcsjax_tables,
    power_laws=(
        ("D0_ref", "alpha_ref", "D_offset_ref"),
        ("D0_sample", "alpha_sample", "D_offset_sample"),
        ("v0", "v_beta", "v_offset"),
    ),
    simpler="two_component",
    beat=replace(
        _BEAT,
        direction="phi0_het",
        fraction="f0",
        turn=-1,
        exchange="all of _ref for all of _sample and, for f1 = 0, f0 + f3 for 1 - f0 - f3",
    ),
)
DAMPED_COSINE = SeparableModel(
    "damped_cosine",
    (
        Parameter("rate", "1/s", (1e-9, 1e9), scale="log"),
        Parameter("frequency", "Hz", (1e-9, 1e9), scale="log"),
    ),
    _cosine,
    beat=Beat("frequency", decays=("rate",)),
)
_TWO = TWO_COMPONENT, TWO_COMPONENT_SPLINE, TWO_COMPONENT_XPCSJAX
MODELS = BEATING, BEATING_SPLINE, *_TWO, DAMPED_COSINE
