"""Parameters that are expressions of others, as lmfit ties them: `beta = alpha`, `D_offset = 0.1*D0`."""

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, require_known, shown
from homodyne_dask.models.parameters import Parameter, Parametrized
from homodyne_dask.models.transport import TransportModel
from homodyne_dask.models.user_defined import SeparableModel

FUNCTIONS = ("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "abs")
"""Of one argument, as NumPy has them."""
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@dataclass(frozen=True)
class Ties:
    """Which parameters of a model follow from the others. Raises OptionError where they do not."""

    parameters: tuple[Parameter, ...]
    """All of the model."""
    expressions: tuple[tuple[str, str], ...]
    """By name, each after those that it refers to."""

    @property
    def tied(self) -> tuple[str, ...]:
        """The names of the parameters that follow from others."""
        return tuple(name for name, _ in self.expressions)

    @property
    def free(self) -> tuple[Parameter, ...]:
        """The others."""
        return tuple(one for one in self.parameters if one.name not in self.tied)

    def expand(self, theta: Float[np.ndarray, " m"]) -> Float[np.ndarray, " p"]:
        """Return all parameters of the model from those that are not tied; of JAX where theta is."""
        xp = theta.__array_namespace__()
        values: dict[str, Any] = {one.name: theta[n] for n, one in enumerate(self.free)}
        for name, text in self.expressions:
            values[name] = _value(ast.parse(text, mode="eval").body, values, xp)
        return xp.stack([xp.asarray(values[one.name], dtype=float) for one in self.parameters])


@dataclass(frozen=True, repr=False)
class TiedModel(Parametrized):
    """A model some of whose parameters are expressions of the others, which are its parameters."""

    base: TransportModel | SeparableModel
    ties: Ties

    @property
    def shear(self) -> bool:
        """Whether f depends on the gap between plates."""
        return bool(self.base.shear)

    @property
    def digest(self) -> str:
        """That of the model that is tied; its ties are an option of the fit."""
        return self.base.digest

    def current(self) -> "TiedModel":
        """Return the model with its base as it is now."""
        return replace(self, base=self.base.current())


def with_ties(
    model: TransportModel | SeparableModel | TiedModel, given: Mapping[str, str] | None
) -> TransportModel | SeparableModel | TiedModel:
    """Return the model with parameters tied by expressions of others, by name; tied anew where it was.

    Raises OptionError for unknown names, for expressions of anything else than numbers, parameters,
    + - * / ** and `FUNCTIONS`, for parameters tied to themselves, and where none is left.
    """
    base = model.base if isinstance(model, TiedModel) else model
    if not given:
        return base
    if base.splines:
        raise OptionError(
            f"{base.name} has rates without a formula, which cannot be tied: leave out tie"
        )
    for name, text in given.items():
        _check(base, name, text)
    ties = Ties(base.parameters, tuple(_ordered(dict(given))))
    if not ties.free:
        raise OptionError("tie leaves no parameter to fit: remove one of the expressions")
    names = {one.name for one in ties.free}
    return TiedModel(
        base.name,
        ties.free,
        power_laws=tuple(law for law in base.power_laws if names.issuperset(law)),
        isotropic=base.isotropic,
        ordered_times=base.ordered_times,
        base=base,
        ties=ties,
    )


def check_untied(model: Parametrized, what: str, names: Collection[str] | None) -> None:
    """Raise OptionError where an option names a parameter that follows from others."""
    for name, text in model.ties.expressions if isinstance(model, TiedModel) else ():
        if names is not None and name in names:
            raise OptionError(
                f"{what}: {name} is tied to {text}: remove it from {what} or from tie"
            )


def _check(base: Parametrized, name: str, text: str) -> None:
    require_known(name, base.names, f"tie: unknown parameter {shown(name)}")
    constant = base.parameters[base.names.index(name)].constant
    if constant is not None:
        raise OptionError(
            f"tie: {name} is {constant:g} by the definition of {base.name}: remove it from tie"
        )
    for used in _names(name, text):
        require_known(used, base.names, f"tie of {name}: unknown parameter {used!r}")


def _names(name: str, text: str) -> list[str]:
    """Return the parameters in an expression; raises OptionError where it cannot be read."""
    try:
        tree = ast.parse(text, mode="eval").body
        nodes = list(ast.walk(tree))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        found = [one.id for one in nodes if isinstance(one, ast.Name) and one not in called]
        with np.errstate(all="ignore"):
            _value(tree, dict.fromkeys(found, np.float64(1.0)), np)
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError):
        raise OptionError(
            f"tie of {name} = {shown(text)} cannot be read: give numbers and parameters with + - * / ** and "
            f"{', '.join(FUNCTIONS)}, such as 'alpha' or '0.1*D0'"
        ) from None
    return found


def _ordered(given: dict[str, str]) -> list[tuple[str, str]]:
    ordered: list[tuple[str, str]] = []
    while given:
        uses = {name: _names(name, text) for name, text in given.items()}
        ready = [name for name, used in uses.items() if given.keys().isdisjoint(used)]
        if not ready:
            raise OptionError(f"tie: {' and '.join(given)} refer to each other: remove one of them")
        ordered += [(name, given.pop(name)) for name in ready]
    return ordered


def _value(node: ast.AST, values: Mapping[str, Any], xp: Any) -> Any:
    """Return the value of an expression; raises ValueError or KeyError for what none may contain."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return float(str(value))
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values, xp), _value(right, values, xp))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, values, xp))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            return getattr(xp, name)(_value(argument, values, xp))
    raise ValueError(ast.dump(node))
