"""What a function computes has a hash; another constant, helper or array has another."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from homodyne_dask.models.fingerprint import fingerprint

FACTOR = 3.0


def twice(x):
    return 2 * x


def scaled(x, k=1.0):
    return k * jnp.exp(x)


def named(x):
    return FACTOR * twice(x)


def closing_over(value):
    return lambda x: value * x


class Curve:
    def __init__(self, order):
        self.order = order

    def __call__(self, x):
        return x**self.order


DIFFERENT = {
    "a constant": (lambda x: 2 * x, lambda x: 3 * x),
    "a default": (lambda x, k=1: k * x, lambda x, k=2: k * x),
    "what a partial holds": (partial(scaled, k=1.0), partial(scaled, k=2.0)),
    "a number closed over": (closing_over(1.0), closing_over(2.0)),
    "an array closed over": (closing_over(np.ones(2)), closing_over(np.zeros(2))),
    "an array of JAX": (closing_over(jnp.ones(2)), closing_over(jnp.zeros(2))),
    "a table closed over": (closing_over({"a": 1}), closing_over({"a": 2})),
    "a helper closed over": (closing_over(scaled), closing_over(twice)),
    "an object's value": (Curve(1), Curve(2)),
    "a compiled function": (jax.jit(lambda x: 2 * x), jax.jit(lambda x: 3 * x)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_function_has_another_hash(what):
    one, other = DIFFERENT[what]
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


@pytest.mark.parametrize(
    ("name", "value"), [("FACTOR", 4.0), ("twice", lambda x: 5 * x)], ids=["number", "function"]
)
def test_a_global_of_another_value_gives_another_hash(monkeypatch, name, value):
    before = fingerprint(named)
    monkeypatch.setitem(globals(), name, value)
    assert fingerprint(named) != before


def test_functions_that_call_each_other_have_a_hash():
    def one(x):
        return other(x) if x else 0

    def other(x):
        return one(x - 1)

    assert fingerprint(one) == fingerprint(one)


def test_the_hash_is_the_same_in_another_process():
    code = "from tests.models.test_fingerprint import *; print(fingerprint(named, Curve(2), scaled, {}))"
    functions = "partial(scaled, k=2.0)"
    ran = [
        subprocess.run(
            [sys.executable, "-c", code.replace("{}", functions)], capture_output=True, text=True,
            check=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    here = fingerprint(named, Curve(2), scaled, partial(scaled, k=2.0))
    assert {r.stdout.strip() for r in ran} == {here}
