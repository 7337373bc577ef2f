"""What a function computes has a hash; another constant, helper or array has another."""

import logging
import subprocess
import sys
from functools import lru_cache, partial, wraps
from threading import Lock
from types import ModuleType

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


class Both(Curve):
    __slots__ = ("order",)

    def method(self, x):
        return self.order * x


class Order:
    one = 1


class Two(Order):
    one = 2


def with_property(get):
    return type("Made", (), {"value": property(get)})()


def multiplied(by):
    def decorate(function):
        @wraps(function)
        def wrapper(x):
            return by * function(x)

        return wrapper

    return decorate


def with_attribute(value):
    def function(x):
        return vars(function)["scale"] * x

    vars(function)["scale"] = value
    return function


def differentiated(rule):
    function = jax.custom_jvp(twice)
    function.defjvp(rule)
    return function


DIFFERENT = {
    "a constant": (lambda x: 2 * x, lambda x: 3 * x),
    "a default": (lambda x, k=1: k * x, lambda x, k=2: k * x),
    "what a partial holds": (partial(scaled, k=1.0), partial(scaled, k=2.0)),
    "a number closed over": (closing_over(1.0), closing_over(2.0)),
    "an array closed over": (closing_over(np.ones(2)), closing_over(np.zeros(2))),
    "a table closed over": (closing_over({"a": 1}), closing_over({"a": 2})),
    "a helper closed over": (closing_over(scaled), closing_over(twice)),
    "an object's value": (Curve(1), Curve(2)),
    "a value in a slot": (Both(1), Both(2)),
    "a method's object": (Both(1).method, Both(2).method),
    "an attribute of a function": (with_attribute(1), with_attribute(2)),
    "a class that is closed over": (closing_over(Order), closing_over(Two)),
    "a property": tuple(closing_over(with_property(get)) for get in (lambda _: 1, lambda _: 2)),
    "what a decorator closes over": (multiplied(1)(twice), multiplied(2)(twice)),
    "a cached function": (lru_cache(lambda x: x), lru_cache(lambda x: 2 * x)),
    "a rule of differentiation": tuple(
        differentiated(rule) for rule in (lambda x, t: (x[0], t[0]), lambda x, t: (x[0], 2 * t[0]))
    ),
    "a set of functions": (closing_over({twice}), closing_over({scaled})),
    "one object twice, or two": (
        closing_over([(o := Curve(1)), o]),
        closing_over([Curve(1), Curve(1)]),
    ),
    "a compiled function": (jax.jit(lambda x: 2 * x), jax.jit(lambda x: 3 * x)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_function_has_another_hash(what):
    one, other = DIFFERENT[what]
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_what_changes_in_place_changes_the_hash():
    curve, table, array = Both(1), {"a": [1]}, np.ones(2)

    class Settings:
        scale = 1

    def function(x):
        return curve(x) + table["a"][0] + array[0] + Settings.scale

    hashes = [fingerprint(function)]
    curve.order = 2
    hashes.append(fingerprint(function))
    table["a"].append(2)
    hashes.append(fingerprint(function))
    array[0] = 5
    hashes.append(fingerprint(function))
    Settings.scale = 3
    assert len({*hashes, fingerprint(function)}) == 5


def test_an_attribute_of_a_users_module_counts_where_it_is_read(monkeypatch):
    mine = ModuleType("mine")
    mine.__file__ = "/home/someone/mine.py"
    vars(mine).update(SCALE=1, OTHER=1)

    def function(x):
        return mine.SCALE * x

    before = fingerprint(function)
    vars(mine).update(OTHER=2)
    assert fingerprint(function) == before
    vars(mine).update(SCALE=2)
    assert fingerprint(function) != before


def test_a_global_that_has_the_name_of_an_attribute_does_not_count(monkeypatch):
    def function(x, bin):
        return bin.FACTOR * x

    before = fingerprint(function)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert fingerprint(function) == before


def test_an_object_of_unknown_state_is_named_and_never_the_same():
    function = closing_over([Lock()])
    assert "with the unknown state of lock" in fingerprint(function)
    assert fingerprint(function) != fingerprint(function)
    log = logging.getLogger("fit")  # is pickled by its name
    assert fingerprint(closing_over(log)) == fingerprint(closing_over(log))


def test_a_global_of_another_value_gives_another_hash(monkeypatch):
    hashes = {fingerprint(named)}
    for name, value in (("FACTOR", 4.0), ("twice", lambda x: 5 * x)):
        monkeypatch.setitem(globals(), name, value)
        hashes.add(fingerprint(named))
    assert len(hashes) == 3


def test_functions_that_call_each_other_have_a_hash():
    def one(x):
        return other(x) if x else 0

    def other(x):
        return one(x - 1)

    assert fingerprint(one) == fingerprint(one)


@pytest.mark.long
def test_the_hash_is_the_same_in_another_process():
    functions = "partial(scaled, k=2.0), Both(3), jax.jit(twice), closing_over({twice, scaled})"
    code = f"from {__name__} import *; print(fingerprint(named, Curve(2), scaled, {functions}))"
    said = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2)]
    more = Both(3), jax.jit(twice), closing_over({twice, scaled})
    here = fingerprint(named, Curve(2), scaled, partial(scaled, k=2.0), *more)
    assert {text.strip() for text in said} == {here}
