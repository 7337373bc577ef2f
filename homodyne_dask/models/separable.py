"""A user-defined model: c2 = offset + contrast·f(theta, t1, t2, bin), f in plain JAX."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from homodyne_dask.errors import OptionError, require_function, require_type, shown
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.registry import importable_models, remember
from homodyne_dask.models.user_defined import UserDefined


class Bin(NamedTuple):
    """The bin argument of f."""

    q: Any
    """1/Å."""
    phi: Any
    """degree."""


@dataclass(frozen=True, eq=False, repr=False)
class SeparableModel(UserDefined):
    """f as a JAX function; JAX differentiates it. Made by `separable`."""

    f: Callable[..., Any]
    precompute: Callable[..., Any] | None = None

    shear = False
    """The gap between plates is not passed to f."""

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        """f and precompute."""
        return self.f, self.precompute

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by name where workers can import the model, else by value."""
        found = importable_models().get(self.name)
        if isinstance(found, SeparableModel) and found.functions == self.functions:
            return _imported, (self.name, self.digest)
        return super().__reduce__()


@lru_cache(maxsize=32)
def _imported(name: str, digest: str) -> SeparableModel:
    """Return a model that every process can import, with the digest it was sent with."""
    found = importable_models()[name]
    return found if found.digest == digest else replace(found, digest=digest)


def separable(
    f: Callable[..., Any],
    parameters: Sequence[Parameter],
    precompute: Callable[..., Any] | None = None,
    name: str | None = None,
    power_laws: Sequence[tuple[str, str, str]] = (),
) -> SeparableModel:
    """Return the model c2 = offset + contrast·f with a JAX function f(theta, t1, t2, bin).

    theta holds the parameters in their order; t1 and t2 are times in s, of shapes that broadcast,
    t2 > t1; bin.q [1/Å] and bin.phi [degree] are numbers. f returns one value per pair. With
    `precompute(theta, times)`, which returns arrays of one value per time (one, or a dict or tuple
    of them: integrals, say), f is called with those at t1 and t2 in place of the times; it is
    called once per pass and not once per pair. name: in reports; that of f by default. power_laws: names of
    parameters (a, b, c) that f has only in rates a t^b + c: a fit then takes longer steps along the
    valley of χ² in which they are correlated.

    Contrast and offset of each bin are eliminated, and derivatives are taken by JAX. Errors in f
    are found before a fit starts. Raises OptionError without parameters, with two of one name, or for
    a power law of others.

    >>> rate = hd.Parameter("rate", "1/s", bounds=(1e-4, 1e4))
    >>> hd.separable(lambda theta, t1, t2, bin: 1 / (1 + theta[0] * (t2 - t1)), [rate], name="hyperbolic")
    <model hyperbolic of rate>
    """
    require_function("f", f, needed=True)
    require_function("precompute", precompute)
    name = name_of_model(name, f)
    checked = checked_parameters(name, parameters)
    laws = _checked_laws(name, checked, power_laws)
    model = SeparableModel(name, checked, f, precompute, power_laws=laws)
    remember(model)
    return model


def name_of_model(name: str | None, function: Callable[..., Any]) -> str:
    """Return the name given, or that of the function; raises OptionError for what is no text."""
    if name is not None:
        require_type("name", name, str, "a text")
    return name or str(getattr(function, "__name__", "model"))


def checked_parameters(model: str, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters as a tuple; raises OptionError where there are none, or two of one name."""
    given = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    wrong = [one for one in given if not isinstance(one, Parameter)]
    if wrong:
        raise OptionError(
            f"model {model!r}: {shown(wrong[0])} is not a parameter: give "
            f"parameters=[hd.Parameter('D0', ...), ...]"
        )
    parameters = tuple(given)
    names = [p.name for p in parameters]
    if not names:
        raise OptionError(
            f"model {model!r} has no parameters: give parameters=[hd.Parameter('D0', ...), ...]"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"model {model!r} has two parameters named {twice[0]!r}: rename one")
    return parameters


def _checked_laws(
    model: str, parameters: tuple[Parameter, ...], laws: Sequence[tuple[str, str, str]]
) -> tuple[tuple[str, str, str], ...]:
    names = [p.name for p in parameters]
    require_type("power_laws", laws, list | tuple, "a list of three names each, [('a', 'b', 'c')]")
    for law in laws:
        three = isinstance(law, list | tuple) and all(isinstance(name, str) for name in law)
        if not three or len(law) != 3 or len(set(law)) != 3 or not set(law) <= set(names):
            raise OptionError(
                f"model {model!r}: power law {shown(law)} is not three of its parameters "
                f"{', '.join(names)}: give the names of a, b and c of a t^b + c"
            )
    return tuple((a, b, c) for a, b, c in laws)
