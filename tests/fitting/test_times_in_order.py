"""f of a user is evaluated at t2 > t1 alone; where it is not a number there, an error names the point."""

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from tests.synthetic import measured, of_decay, store

N, STEP = 40, 0.5
RATE = hd.Parameter("rate", "1/s", (1e-4, 1e3), scale="log")
MU = hd.Parameter("mu", "", (-2.0, 2.0))
AMOUNT = hd.Parameter("amount", "", (0.1, 2.0))


def plain(theta, t1, t2, bin):
    return jnp.exp(-theta[0] * (t2 - t1))


def ageing(theta, t1, t2, bin):
    return jnp.exp(-theta[0] * (0.5 * (t1 + t2)) ** theta[1] * (t2 - t1))


def root_of_lag(theta, t1, t2, bin):
    return plain(theta, t1, t2, bin) * (1 + theta[1] * (t2 - t1) ** -0.5)


def ordered(other):
    return lambda theta, t1, t2, bin: jnp.where(t2 > t1, plain(theta, t1, t2, bin), other)


def first_time(theta, t1, t2, bin):
    return jnp.exp(-theta[0] * t1 ** theta[1] * (t2 - t1))


def overflowing(theta, t1, t2, bin):
    return plain(theta, t1, t2, bin) + 0 * jnp.exp(60 * (t2 - t1))


def of_one_q(theta, t1, t2, bin):
    return plain(theta, t1, t2, bin) + 0 * jnp.sqrt(0.007 - bin.q)


def at_one_pair(theta, t1, t2, bin):
    return jnp.where((t1 == 5) & (t2 == 9), jnp.nan, plain(theta, t1, t2, bin))


def without_slope(theta, t1, t2, bin):
    return jnp.exp(-jnp.sqrt(theta[0] * jnp.maximum(t2 - t1 - STEP, 0)))


def infinite_at_0(theta, times):
    return jnp.where(times > 0, 0.0, jnp.inf) + theta[0] * times


def of_integral(theta, t1, t2, bin):
    return jnp.exp(-(t2 - t1))


def scan(folder, f=None, **selection):
    """A scan of two bins from t = 0 whose f is this at 0.3 1/s."""
    t = STEP * np.arange(N)
    f = f or (lambda t1, t2: np.exp(-0.3 * np.abs(t2 - t1)))
    with np.errstate(all="ignore"):
        decay = np.nan_to_num(f(t[:, None], t[None, :]))
    made = measured([1e4, 0.0, 0.0], time=t, phi=(0, 0), q=np.array([0.005, 0.008]), sigma=0.01)
    return store(of_decay(made, decay, 0.01), folder).select(**selection)


def law(t1, t2):
    return np.exp(-0.3 * (0.5 * (t1 + t2)) ** -0.5 * np.abs(t2 - t1))


MODELS = [
    ("a power of the age", ageing, [RATE, MU], law, {}, {}),
    ("weights of speckle", ageing, [RATE, MU], law, {}, {"weighting": "speckle"}),
    ("a root of the lag", root_of_lag, [RATE, AMOUNT],
     lambda t1, t2: np.exp(-0.3 * np.abs(t2 - t1)) * (1 + np.abs(t2 - t1) ** -0.5), {}, {}),
    ("a loss", ordered(jnp.nan), [RATE], None, {}, {"loss": "huber"}),
    ("another value", ordered(7.0), [RATE], None, {}, {"profile": ("rate",)}),
    ("a tie", ageing, [RATE, MU, hd.Parameter("nu", "", (-2, 2))], law, {}, {"tie": {"mu": "nu"}}),
    ("short lags left out", without_slope, [RATE],
     lambda t1, t2: np.exp(-np.sqrt(0.3 * np.maximum(np.abs(t2 - t1) - STEP, 0))), {}, {"min_lag": 2}),
    ("t = 0 left out", first_time, [RATE, MU],
     lambda t1, t2: np.exp(-0.3 * np.minimum(t1, t2) ** -0.5 * np.abs(t2 - t1)),
     {"exclude": {"frames": 0}}, {"initial": {"rate": 0.3, "mu": -0.5}}),
    ("a pair left out", at_one_pair, [RATE], None, {"exclude": {"frames": 18}}, {}),
]  # fmt: skip
QUICK = ("a power of the age", "t = 0 left out")


@pytest.mark.parametrize(
    ("f", "parameters", "truth", "selection", "options"),
    [pytest.param(*of, id=word, marks=[] if word in QUICK else pytest.mark.long)
     for word, *of in MODELS],
)  # fmt: skip
def test_a_model_that_is_known_at_later_times_alone_is_fitted_with_errors(
    f, parameters, truth, selection, options, tmp_path
):
    model = hd.separable(f, parameters, name="own")
    found = hd.fit(scan(tmp_path, truth, **selection), model, **options)
    rate = found.params["rate"]
    assert found.converged
    assert rate.stderr is not None
    assert abs(rate.value - 0.3) < 4 * rate.stderr < 0.1
    assert found.redchi < 1.15
    assert found.report(all=True)


def test_values_at_equal_times_change_no_bit_of_a_fit(tmp_path):
    data = scan(tmp_path)
    fits = [hd.fit(data, hd.separable(f, [RATE], name="own")) for f in (plain, ordered(jnp.nan))]
    assert len({of.parameters[["value", "stderr"]].to_array().values.tobytes() for of in fits}) == 1


def test_a_correlation_is_1_at_equal_times(tmp_path):
    whole = hd.separable(ordered(jnp.nan), [RATE], name="own")
    for model in (whole, hd.BROWNIAN * whole, whole * hd.BROWNIAN):
        values = {name: 1.0 for name in model.names if name not in ("alpha", "D_offset")}
        c2 = hd.predict(model, values, [0.0, 1.0, 2.0], q=0.005)
        np.testing.assert_array_equal(np.diagonal(c2[0]), 1.0)
        np.testing.assert_allclose(c2[0, 0, 1], np.exp(-1), rtol=1e-4)
        np.testing.assert_array_equal(c2[0], c2[0].T)


NOT_FINITE = [
    ("at t1 = 0", first_time, [RATE, MU], {"initial": {"rate": 0.3, "mu": -0.5}},
     "derivative of f with respect to rate is nan at t1 = 0 s, t2 = 0.5 s.* mu = -0.5"),
    ("in a search", first_time, [RATE, hd.Parameter("mu", "", (-2, -0.1))], {},
     "derivative of f with respect to rate is nan at t1 = 0 s, t2 = 0.5 s"),
    ("at long lags", overflowing, [RATE], {}, "f is nan at t1 = 0 s, t2 = 12 s"),
    ("at one q", of_one_q, [RATE], {}, "f is nan at t1 = 0 s, t2 = 0.5 s, q = 0.008 1/Å, φ = 0°"),
    ("at one pair", at_one_pair, [RATE], {}, "f is nan at t1 = 5 s, t2 = 9 s"),
    ("a slope", without_slope, [RATE], {}, "derivative of f with respect to rate is nan at t1 = 0"),
    ("a table of times", of_integral, [RATE], {"precompute": infinite_at_0}, "f is inf at t1 = 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("f", "parameters", "options", "message"),
    [pytest.param(*of, id=word) for word, *of in NOT_FINITE],
)
def test_a_pair_where_a_model_is_not_finite_is_named(f, parameters, options, message, tmp_path):
    model = hd.separable(f, parameters, options.pop("precompute", None), name="own")
    with pytest.raises(OptionError, match=f"model 'own', .*{message}"):
        hd.fit(scan(tmp_path), model, **options)
