"""Sums and products of models: `hd.models["static"] + hd.models["brownian"]`, or "static + brownian" by name.

    A * B    f = f_A f_B: independent motions of the same scatterers
    A + B    f = (fraction g_A + (1 - fraction) g_B)², f = g²: two populations, whose fields add up

g of models that are given as f is √f; that of laminar flow has the sign of sin x/x. `frozen` is a population
that does not move, g = 1, as in a gel or a glass: "frozen + brownian".

Parameters that are expressions of others, as lmfit ties them: `beta = alpha`, `D_offset = 0.1*D0`.
"""

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, require_known, shown
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.parametrized import Parametrized
from homodyne_dask.models.shear_factor import parabolic_factor, wave
from homodyne_dask.models.transport import Convention, Shear, TransportModel, bin_scales, rows_of
from homodyne_dask.models.user_defined import Bin, SeparableModel, unknown_model

if TYPE_CHECKING:
    from homodyne_dask.request.options import FitOptions

type Leaf = TransportModel | SeparableModel
FRACTION = Parameter("fraction", "", (0.0, 1.0))
"""Of the scattered intensity, that of the first of two populations."""
FROZEN_FRACTION = "frozen_fraction"
"""Its name where the first one is frozen: then that of the whole."""
TINY = 1e-300
_SYMBOLS: dict[type, Literal["+", "*"]] = {ast.Add: "+", ast.Mult: "*"}


def _at_rest(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    return 0.0 * (t2 - t1) + 1.0


FROZEN = SeparableModel("frozen", (), _at_rest, isotropic=True)
"""What does not move, of sums alone: c2 of it has no decay."""


@dataclass(frozen=True, eq=False, repr=False)
class CompositeModel(SeparableModel):
    symbol: Literal["+", "*"] = field(kw_only=True)
    parts: tuple[Leaf, Leaf] = field(kw_only=True)

    @property
    def needs_gap(self) -> bool:
        return any(part.needs_gap for part in self.parts)

    @property
    def frozen(self) -> bool:
        return self.symbol == "+" and _is_frozen(self.parts[0])

    @property
    def start(self) -> str:
        return "frozen" if self.frozen else super().start

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        made = [part.functions for part in self.parts if isinstance(part, SeparableModel)]
        return tuple(chain(*made))

    def current(self) -> Self:
        made = composed(self.symbol, *(part.current() for part in self.parts))
        return self if made.digest == self.digest else cast(Self, made)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return composed, (self.symbol, *self.parts)


def composed(symbol: Literal["+", "*"], first: Any, second: Any) -> CompositeModel:
    """Return the sum or product of two models of scans; shared names are numbered, D0_1 and D0_2."""
    for part in (first, second):
        _check_part(symbol, part)
    parts = _frozen_first(symbol, first, second)
    leaves = [leaf for part in parts for leaf in _leaves(part) if leaf.size]
    parameters, laws = _numbered(leaves)
    fractions = _fractions(symbol, parts)
    for n, name in enumerate(fractions):
        number = f"_{fractions[:n].count(name) + 1}" * (fractions.count(name) > 1)
        parameters.append(replace(FRACTION, name=name + number))
    names = [part.name for part in parts]
    if symbol == "*":
        names = [f"({p.name})" if getattr(p, "symbol", "") == "+" else p.name for p in parts]
    return CompositeModel(
        f" {symbol} ".join(names),
        tuple(parameters),
        partial(_f, symbol, parts),
        partial(_tables, parts),
        power_laws=tuple(laws),
        simpler=parts[1].name if _is_frozen(parts[0]) and parts[1] in leaves else "",
        isotropic=all(part.isotropic for part in parts),
        digest=" ".join((symbol, *(part.digest for part in parts))) * all(p.digest for p in parts),
        ordered_times=any(part.ordered_times for part in parts),
        symbol=symbol,
        parts=parts,
    )


def _check_part(symbol: str, part: Any) -> None:
    if not isinstance(part, TransportModel | SeparableModel) or part.splines:
        raise OptionError(
            f"{getattr(part, 'name', part)} cannot be part of a sum or product: use a model of scans "
            f"that has formulas for its rates, such as static"
        )
    if symbol == "+" and (part.beat is not None or getattr(part, "shear", "") == Shear.PARABOLIC):
        raise OptionError(
            f"{part.name} cannot be part of a sum: its field has a phase; use two_component or a product"
        )


def _numbered(leaves: list[Leaf]) -> tuple[list[Parameter], list[tuple[str, str, str]]]:
    count = Counter(name for leaf in leaves for name in leaf.names)
    parameters, laws = [], []
    for n, leaf in enumerate(leaves, 1):
        numbered = {name: f"{name}_{n}" if count[name] > 1 else name for name in leaf.names}
        parameters += [replace(p, name=numbered[p.name]) for p in leaf.parameters]
        laws += [(numbered[a], numbered[b], numbered[c]) for a, b, c in leaf.power_laws]
    return parameters, laws


def _leaves(model: Leaf) -> list[Leaf]:
    if not isinstance(model, CompositeModel):
        return [model]
    return [leaf for part in model.parts for leaf in _leaves(part)]


def _is_frozen(part: Leaf) -> bool:
    return isinstance(part, SeparableModel) and part.f is _at_rest


def _frozen_first(symbol: str, first: Leaf, second: Leaf) -> tuple[Leaf, Leaf]:
    """Return the parts of a sum with the frozen one first, whose fraction is then that of the whole field."""

    def has_frozen(part: Leaf) -> bool:
        return part.frozen if isinstance(part, CompositeModel) else _is_frozen(part)

    if symbol == "*" and (_is_frozen(first) or _is_frozen(second)):
        raise OptionError("frozen does not change a product: add it, as in 'frozen + brownian'")
    if symbol == "*" or not (has_frozen(first) or has_frozen(second)):
        return first, second
    if has_frozen(first) and has_frozen(second):
        raise OptionError("two frozen parts are one: leave one of them out")
    frozen, other = (first, second) if has_frozen(first) else (second, first)
    if isinstance(frozen, CompositeModel):
        frozen, other = frozen.parts[0], composed("+", frozen.parts[1], other)
    return frozen, other


def _fractions(symbol: str, parts: tuple[Leaf, Leaf]) -> list[str]:
    names = [name for part in parts for name in _fractions_of(part)]
    if symbol == "+":
        names.append(FROZEN_FRACTION if _is_frozen(parts[0]) else FRACTION.name)
    return names


def _fractions_of(model: Leaf) -> list[str]:
    return _fractions(model.symbol, model.parts) if isinstance(model, CompositeModel) else []


def _split(theta: Any, parts: tuple[Leaf, Leaf]) -> tuple[Any, Any]:
    sums = [len(_fractions_of(part)) for part in parts]
    xp, first = theta.__array_namespace__(), parts[0].size - sums[0]
    last = first + parts[1].size - sums[1]
    return (
        xp.concatenate([theta[:first], theta[last : last + sums[0]]]),
        xp.concatenate([theta[first:last], theta[last + sums[0] : last + sum(sums)]]),
    )


def _tables(parts: tuple[Leaf, Leaf], theta: Any, time: Any) -> tuple[Any, Any]:
    first, second = _split(theta, parts)
    return _tables_of(parts[0], first, time), _tables_of(parts[1], second, time)


def _tables_of(part: Leaf, theta: Any, time: Any) -> Any:
    if isinstance(part, SeparableModel):
        return time if part.precompute is None else part.precompute(theta, time)
    xp = time.__array_namespace__()
    steps = xp.diff(time)
    t = xp.maximum(time, xp.median(steps) / 2)
    return tuple(
        rows_of(part, Convention.PHYSICAL, theta, t, steps)[-2 if part.needs_gap else -1 :]
    )


def _f(symbol: str, parts: tuple[Leaf, Leaf], theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    if symbol == "+":
        return _mean_field(parts, theta, t1, t2, bin) ** 2
    first, second = _split(theta, parts)
    return _f_of(parts[0], first, t1[0], t2[0], bin) * _f_of(parts[1], second, t1[1], t2[1], bin)


def _f_of(part: Leaf, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    if isinstance(part, SeparableModel):
        return part.f(theta, t1, t2, bin)
    return _field(part, theta, t1, t2, bin) ** 2


def _field(part: Leaf, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    """Return g of f = g²; its slope where f is 0 is 0."""
    xp = theta.__array_namespace__()
    if isinstance(part, CompositeModel) and part.symbol == "+":
        return _mean_field(part.parts, theta, t1, t2, bin)
    if isinstance(part, SeparableModel):
        f = xp.asarray(part.f(theta, t1, t2, bin))
        positive = f > TINY
        return xp.where(positive, xp.sqrt(xp.where(positive, f, 1.0)), 0.0)
    q, phi = xp.asarray(bin.q), xp.asarray(bin.phi)
    scales = bin_scales(part, Convention.PHYSICAL, theta, q, phi, bin.gap, 0.0)
    g = xp.exp(-0.5 * scales.k * (t2[-1] - t1[-1]))
    if not part.shear:
        return g
    x = scales.s * (t2[-2] - t1[-2])
    if part.shear is Shear.PARABOLIC:
        return g * xp.sqrt(parabolic_factor(wave(x))[0])
    return g * xp.sinc(x / np.pi)


def _mean_field(parts: tuple[Leaf, Leaf], theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    (first, second), fraction = _split(theta, parts), theta[-1]
    field = _field(parts[0], first, t1[0], t2[0], bin)
    return fraction * field + (1 - fraction) * _field(parts[1], second, t1[1], t2[1], bin)


def parsed(text: str, models: Mapping[str, Parametrized]) -> CompositeModel | None:
    """Return the model of a text as 'static + brownian'; None of a text without + or *."""
    if not set("+*") & set(text):
        return None

    def made(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in _SYMBOLS:
            return composed(_SYMBOLS[type(node.op)], made(node.left), made(node.right))
        if not isinstance(node, ast.Name):
            raise OptionError(
                f"model {text!r} cannot be read: give names with + and *, such as 'static + brownian'"
            )
        if node.id not in models:
            raise unknown_model(node.id, models, f" of {text!r}")
        return models[node.id]

    try:
        return made(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return made(ast.Pass())


FUNCTIONS = ("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "abs")
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
    parameters: tuple[Parameter, ...]
    expressions: tuple[tuple[str, str], ...]
    """By name, each after those that it refers to."""

    @property
    def tied(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.expressions)

    @property
    def free(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.name not in self.tied)

    def expand(self, theta: Float[np.ndarray, " m"]) -> Float[np.ndarray, " p"]:
        """Return all parameters of the model from those that are not tied; of JAX where theta is."""
        xp = theta.__array_namespace__()
        values: dict[str, Any] = {p.name: theta[n] for n, p in enumerate(self.free)}
        for name, text in self.expressions:
            values[name] = _value(ast.parse(text, mode="eval").body, values, xp)
        return xp.stack([xp.asarray(values[p.name], dtype=float) for p in self.parameters])


@dataclass(frozen=True, repr=False)
class TiedModel(Parametrized):
    base: TransportModel | SeparableModel
    ties: Ties

    @property
    def start(self) -> str:
        return "tied"

    @property
    def untied(self) -> TransportModel | SeparableModel:
        return self.base

    @property
    def needs_gap(self) -> bool:
        return self.base.needs_gap

    @property
    def digest(self) -> str:
        """That of the model that is tied; its ties are an option of the fit."""
        return self.base.digest

    def current(self) -> "TiedModel":
        return replace(self, base=self.base.current())

    def _check_names(self, options: "FitOptions") -> None:
        for what in ("initial", "fixed", "bounds", "prior", "profile"):
            for name, text in self.ties.expressions:
                if name in (getattr(options, what) or ()):
                    raise OptionError(
                        f"{what}: {name} is tied to {text}: remove it from {what} or from tie"
                    )
        super()._check_names(options)


def with_ties(
    model: TransportModel | SeparableModel | TiedModel, given: Mapping[str, str] | None
) -> TransportModel | SeparableModel | TiedModel:
    """Return the model with parameters tied by expressions of others, by name; tied anew where it was."""
    base = model.untied
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
    names = {p.name for p in ties.free}
    return TiedModel(
        base.name,
        ties.free,
        power_laws=tuple(law for law in base.power_laws if names.issuperset(law)),
        isotropic=base.isotropic,
        ordered_times=base.ordered_times,
        base=base,
        ties=ties,
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
    try:
        tree = ast.parse(text, mode="eval").body
        nodes = list(ast.walk(tree))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        names = [node.id for node in nodes if isinstance(node, ast.Name) and node not in called]
        with np.errstate(all="ignore"):
            _value(tree, dict.fromkeys(names, np.float64(1.0)), np)
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError):
        raise OptionError(
            f"tie of {name} = {shown(text)} cannot be read: give numbers and parameters with + - * / ** and "
            f"{', '.join(FUNCTIONS)}, such as 'alpha' or '0.1*D0'"
        ) from None
    return names


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
