"""Models made of a user's functions: of scans (`separable`) and of any data (`model`).

Such a model is known by the code of its functions and by the values that they read, which may change
between two fits; it goes to workers by value, or by name where they can import it, too.
"""

import inspect
import io
import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple, Self

import cloudpickle
import numpy as np
from cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from zict import LRU

from homodyne_dask.errors import OptionError, nearest, require_function, require_type, shown
from homodyne_dask.models.fingerprint import Reading, fingerprint
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.parametrized import Parametrized
from homodyne_dask.plugins import EntryPointError, loaded, offered_in, unusable, warn_of

GROUP = "homodyne_dask.models"
BUILT_IN: dict[str, Parametrized] = {}
"""Filled when `homodyne_dask.models` is imported."""
USER_DEFINED: dict[str, Parametrized] = {}
"""By `separable`, the last of each name: figures of a stored result find their model there."""
UNUSABLE: dict[str, str] = {}
"""Why entry points of installed packages give no model, by name; filled by `importable_models`."""
AMBIGUOUS: dict[str, str] = {}
"""What is wrong with names that several models share, by name: it is unclear which is meant."""
_UNPACKED: LRU[str, Any] = LRU(32, {})
"""Models that this process received, by digest."""
_LOCK = Lock()


@dataclass(frozen=True, eq=False, repr=False)
class UserDefined(Parametrized):
    """A model whose functions are a user's. What they read may change between two fits: each
    fit is of the model as it is at its beginning (`current`), and its digest tells them apart.
    """

    digest: str = field(default="", kw_only=True)
    """Of the functions and all that they read (see `fingerprint`); '' before a fit."""
    received: bool = field(default=False, kw_only=True)
    """Whether it came from another process, with its own copy of what the functions read."""

    @property
    @abstractmethod
    def functions(self) -> tuple[Callable[..., Any] | None, ...]: ...

    def current(self) -> Self:
        if self.received:
            return self
        digest = fingerprint(*self.functions)
        return self if digest == self.digest else replace(self, digest=digest)

    def __eq__(self, other: object) -> bool:
        if not (isinstance(other, UserDefined) and self.digest and other.digest):
            return self is other
        return self._key == other._key

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    @property
    def _key(self) -> tuple[Any, ...]:
        return type(self), self.name, self.parameters, self.power_laws, self.digest

    @cached_property
    def _packed(self) -> bytes:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return _by_value(values, *self.functions)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # without a digest, which a fit gives it, it could not be kept where it is unpacked
        current = self if self.digest else self.current()
        return _unpacked, (type(self), current.digest, current._packed)


def _unpacked(model_class: type[UserDefined], digest: str, packed: bytes) -> UserDefined:
    """Return the model of these bytes: of one digest always the same object, so that it is compiled once."""
    with _LOCK:
        if digest not in _UNPACKED:
            _UNPACKED[digest] = model_class(**pickle.loads(packed) | {"received": True})
        return _UNPACKED[digest]


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, modules: list[ModuleType], attributes: set[str]) -> None:
        super().__init__(file)
        self.modules, self.attributes = modules, attributes

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and any(obj is module for module in self.modules):
            # a module of the user, with no more than the functions read: others may not pickle
            used = {name: value for name, value in vars(obj).items() if name in self.attributes}
            return ModuleType, (obj.__name__,), used
        return super().reducer_override(obj)


def _by_value(value: Any, *functions: Callable[..., Any] | None) -> bytes:
    """Return a pickle with the code and values of what a user's functions read; installed code is by name."""
    reading, file = Reading(*functions), io.BytesIO()
    modules = list(reading.modules.values())
    for module in modules:
        register_pickle_by_value(module)
    try:
        _Pickler(file, modules, reading.attributes).dump(value)
    finally:
        # of the whole process: other pickles take the module by name
        for module in modules:
            unregister_pickle_by_value(module)
    return file.getvalue()


@cache
def importable_models() -> Mapping[str, Parametrized]:
    """Return the models that every process finds by name; warns of an entry point that gives none."""
    models: dict[str, Parametrized] = dict(BUILT_IN)
    for point in offered_in(GROUP):
        try:
            model = loaded(
                point,
                lambda m: isinstance(m, Parametrized) and not isinstance(m, ResidualModel),
                "a model made by hd.separable",
            )
            # which of two was installed first says nothing: neither is meant
            if models.setdefault(model.name, model) is not model:
                twice = unusable(point, f"there is another model named {model.name!r}")
                AMBIGUOUS[model.name] = str(twice)
                raise twice
        except EntryPointError as e:
            UNUSABLE[point.name] = str(e)
            warn_of(str(e))
    return {name: m for name, m in models.items() if name in BUILT_IN or name not in AMBIGUOUS}


def unknown_model(name: str, models: Iterable[str], whole: str = "") -> OptionError:
    if name in UNUSABLE | AMBIGUOUS:
        return OptionError((UNUSABLE | AMBIGUOUS)[name])
    return OptionError(f"model {name!r}{whole} is unknown; {nearest(name, models)}")


class Bin(NamedTuple):
    q: Any
    """1/Å."""
    phi: Any
    """degree."""
    gap: Any = np.nan
    """Å; of models under shear."""

    def some(self, which: Any) -> "Bin":
        return Bin(*(values[which] for values in self))


@dataclass(frozen=True, eq=False, repr=False)
class SeparableModel(UserDefined):
    """Model of c2 with a user-defined JAX function f, made by `separable`."""

    f: Callable[..., Any]
    precompute: Callable[..., Any] | None = None

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        return self.f, self.precompute

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by name where workers can import the model, else by value."""
        imported = importable_models().get(self.name)
        if isinstance(imported, SeparableModel) and imported.functions == self.functions:
            return _imported, (self.name, self.digest)
        return super().__reduce__()


@lru_cache(maxsize=32)
def _imported(name: str, digest: str) -> SeparableModel:
    model = importable_models().get(name)
    if not isinstance(model, SeparableModel):
        raise unknown_model(name, importable_models())
    return model if model.digest == digest else replace(model, digest=digest)


def separable(
    f: Callable[..., Any],
    parameters: Sequence[Parameter],
    precompute: Callable[..., Any] | None = None,
    name: str | None = None,
    power_laws: Sequence[tuple[str, str, str]] = (),
) -> SeparableModel:
    """Define a model c2 = offset + contrast·f by a JAX function f(theta, t1, t2, bin).

    theta holds the parameters in their order; t1 and t2 are times in s, of shapes that broadcast,
    t2 > t1; bin.q [1/Å] and bin.phi [degree] are numbers. f returns one value per pair. With
    `precompute(theta, times)`, which returns arrays with one value per time (one array, or a dict or tuple
    of arrays, such as integrals), f is called with their values at t1 and t2 instead of the times;
    precompute is called once per pass, not once per pair. name: used in reports; by default that of f.
    power_laws: names of parameters (a, b, c) that occur in f only in rates a t^b + c: a fit then takes
    longer steps along the valley of χ² in which they are correlated.

    Contrast and offset of each bin are eliminated, and derivatives are taken by JAX. Errors in f are found
    before a fit starts. Raises OptionError if there are no parameters, two with the same name, or a power
    law of other names.

    >>> rate = hd.Parameter("rate", "1/s", bounds=(1e-4, 1e4))
    >>> hd.separable(lambda theta, t1, t2, bin: 1 / (1 + theta[0] * (t2 - t1)), [rate], name="hyperbolic")
    <model hyperbolic of rate>
    """
    require_function("f", f, needed=True)
    require_function("precompute", precompute)
    name = name_of_model(name, f)
    checked = checked_parameters(name, parameters)
    laws = _checked_laws(name, checked, power_laws)
    model = SeparableModel(name, checked, f, precompute, power_laws=laws, ordered_times=True)
    USER_DEFINED[model.name] = model
    return model


def name_of_model(name: str | None, function: Callable[..., Any]) -> str:
    if name is not None:
        require_type("name", name, str, "a text")
    return name or str(getattr(function, "__name__", "model"))


def checked_parameters(model: str, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    candidates = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    wrong = [candidate for candidate in candidates if not isinstance(candidate, Parameter)]
    if wrong:
        raise OptionError(
            f"model {model!r}: {shown(wrong[0])} is not a parameter: give "
            f"parameters=[hd.Parameter('D0', ...), ...]"
        )
    parameters = tuple(candidates)
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
    require_type(
        "power_laws", laws, list | tuple, "a list of three names each, such as [('a', 'b', 'c')]"
    )
    for law in laws:
        three = isinstance(law, list | tuple) and all(isinstance(name, str) for name in law)
        if not three or len(law) != 3 or len(set(law)) != 3 or not set(law) <= set(names):
            raise OptionError(
                f"model {model!r}: power law {shown(law)} does not name three of its "
                f"parameters {', '.join(names)}: give the names of a, b and c in a t^b + c"
            )
    return tuple((a, b, c) for a, b, c in laws)


@dataclass(frozen=True, eq=False, repr=False)
class ResidualModel(UserDefined):
    """Model of any data, made by `model`: residual(theta, *columns) is a JAX function."""

    residual: Callable[..., Any]
    variables: tuple[str, ...]
    """Of the dataset, in the order of the columns."""
    written: Callable[..., Any]
    """The user's function: errors name its lines."""

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return self.residual, self.written


def model(
    residual: Callable[..., Any], parameters: Sequence[Parameter], name: str | None = None
) -> ResidualModel:
    """Define a model of any data: a fit minimizes the sum of squares of residual(theta, x, y, ...).

    residual is a JAX function. theta holds the parameters in their order; the names of the other arguments
    are those of variables or coordinates of the fitted dataset, which are passed as arrays of the same
    shape. It returns one residual per point, divided by its standard deviation. Fit it with
    `hd.fit(dataset, model, initial={...})`. name: used in reports; by default that of the function.

    Raises OptionError if there are no parameters, two with the same name, or no arguments besides theta.

    >>> hd.model(lambda theta, x, y: theta[0] * x - y, [hd.Parameter("slope")], name="line")
    <model line of slope>
    """
    require_function("residual", residual, needed=True)
    name = name_of_model(name, residual)
    checked = checked_parameters(name, parameters)
    arguments = list(inspect.signature(residual).parameters.values())[1:]
    plain = all(a.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for a in arguments)
    if not (arguments and plain):
        raise OptionError(
            f"model {name!r}: the arguments of the residual after theta must name the variables that it "
            f"needs, as in residual(theta, x, y)"
        )
    return ResidualModel(name, checked, residual, tuple(a.name for a in arguments), residual)
