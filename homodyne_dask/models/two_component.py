"""Two components that scatter together, one of them moving: the heterodyne model of xpcsjax.

With the fractions f_r and f_s = 1 - f_r of the two components at each time, their own decays
h = exp(-½ q² ΔC) and the phase ψ = q cos(φ + phi0_het) ΔV of the moving one,

    f = [(f_r1 f_r2)² h_r² + (f_s1 f_s2)² h_s² + 2 f_r1 f_r2 f_s1 f_s2 h_r h_s cos ψ] / norm,
    norm = (f_s1² + f_r1²)(f_s2² + f_r2²).

C and V are trapezoid sums over the frame times of max(D0 t^alpha + D_offset, 0) and of
v0 t^v_beta + v_offset; t^a is 0 at t = 0. Smoothings and floors are those of xpcsjax.
"""

from typing import Any

from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.user_defined import Bin, SeparableModel

_SHARPNESS = 50.0
"""Sharpness of the soft limits 0 and 1 of the fraction."""
_SMOOTHING = 1e-12
"""Å⁴: |ΔC| is the root of ΔC² plus this."""
_MAX_EXPONENT = 700.0
_MIN_NORM = 1e-10


def _tables(theta: Any, times: Any) -> dict[str, Any]:
    """Return both integrals of diffusion, that of the velocity, and the fraction that moves."""
    import jax.numpy as jnp  # JAX loads while workers start, and not with the names of models

    def power(exponent: Any) -> Any:
        positive = times > 0
        return jnp.where(positive, jnp.where(positive, times, 1.0) ** exponent, 0.0)

    def integral(rate: Any) -> Any:
        steps = 0.5 * (rate[1:] + rate[:-1]) * jnp.diff(times)
        return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])

    def diffusion(D0: Any, alpha: Any, D_offset: Any) -> Any:
        return integral(jnp.maximum(D0 * power(alpha) + D_offset, 0.0))

    v0, v_beta, v_offset, f0, f1, f2, f3 = theta[6:13]
    x = f0 * jnp.exp(jnp.clip(f1 * (times - f2), -_MAX_EXPONENT, _MAX_EXPONENT)) + f3
    above = jnp.logaddexp(_SHARPNESS * x, 0.0) / _SHARPNESS
    moving = 1 - jnp.logaddexp(_SHARPNESS * (1 - above), 0.0) / _SHARPNESS
    return {
        "C_r": diffusion(*theta[:3]),
        "C_s": diffusion(*theta[3:6]),
        "V": integral(v0 * power(v_beta) + v_offset),
        "moving": moving,
    }


def _f(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    import jax.numpy as jnp

    def decay(name: str) -> Any:
        dC = jnp.sqrt((t2[name] - t1[name]) ** 2 + _SMOOTHING)
        return jnp.exp(jnp.clip(-0.5 * bin.q**2 * dC, -_MAX_EXPONENT, 0.0))

    s1, s2 = t1["moving"], t2["moving"]
    r1, r2 = 1 - s1, 1 - s2
    at_rest, moved = r1 * r2 * decay("C_r"), s1 * s2 * decay("C_s")
    phase = bin.q * jnp.cos(jnp.deg2rad(bin.phi + theta[13])) * (t2["V"] - t1["V"])
    norm = jnp.maximum((s1**2 + r1**2) * (s2**2 + r2**2), _MIN_NORM)
    return (at_rest**2 + moved**2 + 2 * at_rest * moved * jnp.cos(phase)) / norm


def _diffusion(of: str) -> tuple[Parameter, ...]:
    return (
        Parameter(f"D0_{of}", "Å²/s", (1.0, 1e12), scale="log"),
        Parameter(f"alpha_{of}", "", (-2.0, 2.0)),
        Parameter(f"D_offset_{of}", "Å²/s", (-1e4, 1e4)),
    )


TWO_COMPONENT = SeparableModel(
    "two_component",
    (
        *_diffusion("ref"),
        *_diffusion("sample"),
        Parameter("v0", "Å/s", (1e-2, 1e5), scale="log"),
        Parameter("v_beta", "", (-2.0, 2.0)),
        Parameter("v_offset", "Å/s", (-1e3, 1e3)),
        Parameter("f0", "", (0.0, 1.0)),
        Parameter("f1", "1/s", (-1.0, 1.0)),
        Parameter("f2", "s", (-1e4, 1e4)),
        Parameter("f3", "", (0.0, 1.0)),
        Parameter("phi0_het", "degree", (-180.0, 180.0), period=360.0),
    ),
    _f,
    _tables,
    power_laws=(
        ("D0_ref", "alpha_ref", "D_offset_ref"),
        ("D0_sample", "alpha_sample", "D_offset_sample"),
        ("v0", "v_beta", "v_offset"),
    ),
)
"""Reference and sample that scatter together; the sample moves with the velocity v."""
