"""A user-defined model: c2 = offset + contrast·f(theta, t1, t2, bin), f in plain JAX."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
from cloudpickle import register_pickle_by_value, unregister_pickle_by_value

from homodyne_dask.errors import OptionError
from homodyne_dask.models.fingerprint import beside_program, fingerprint, installed
from homodyne_dask.models.parameters import Parameter, Parametrized
from homodyne_dask.models.registry import importable_models, model_named, remember


class Bin(NamedTuple):
    """The bin argument of f."""

    q: Any
    """1/Å."""
    phi: Any
    """degree."""


@dataclass(frozen=True)
class SeparableModel(Parametrized):
    """f as a JAX function; JAX differentiates it. Made by `separable`."""

    f: Callable[..., Any]
    precompute: Callable[..., Any] | None = None

    shear = False
    """The gap between plates is not passed to f."""

    @cached_property
    def digest(self) -> str:
        """A hash of the code: a checkpoint of another f is not resumed."""
        return fingerprint(self.f, self.precompute)

    @cached_property
    def _packed(self) -> bytes:
        made_of = self.name, self.parameters, self.f, self.precompute
        return by_value((made_of, self.power_laws), self.f)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by name where workers can import the model, else by value."""
        if importable_models().get(self.name) is self:
            return model_named, (self.name,)
        return _unpacked, (self._packed,)


@lru_cache(maxsize=32)
def _unpacked(packed: bytes) -> SeparableModel:
    """Return the model of these bytes: always the same object, so that it is compiled once."""
    made_of, power_laws = cloudpickle.loads(packed)
    return SeparableModel(*made_of, power_laws=power_laws)


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
    """
    name = name or str(getattr(f, "__name__", "model"))
    checked = checked_parameters(name, parameters)
    laws = _checked_laws(name, checked, power_laws)
    model = SeparableModel(name, checked, f, precompute, power_laws=laws)
    remember(model)
    return model


def checked_parameters(model: str, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters as a tuple; raises OptionError where there are none, or two of one name."""
    parameters = tuple(parameters)
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
    for law in laws:
        if len(law) != 3 or len(set(law)) != 3 or not set(law) <= set(names):
            raise OptionError(
                f"model {model!r}: power law {law!r} is not three of its parameters "
                f"{', '.join(names)}: give the names of a, b and c of a t^b + c"
            )
    return tuple((a, b, c) for a, b, c in laws)


def by_value(value: Any, *functions: Callable[..., Any]) -> bytes:
    """Return a pickle that holds the code of functions written in scripts, notebooks and folders.

    Modules beside the program that they use are in it, too. Code of installed packages is pickled by
    name: workers have them.
    """
    tops = {str(getattr(f, "__module__", None)).partition(".")[0] for f in functions}
    mine = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and module.__name__ == name and "." not in name
        if not installed(module) and (name in tops or beside_program(module))
    ]
    for module in mine:
        register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(value)
    finally:
        for module in mine:
            unregister_pickle_by_value(module)
