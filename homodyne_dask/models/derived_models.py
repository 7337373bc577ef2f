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
from homodyne_dask.models.rate_forms import from_half_a_frame
from homodyne_dask.models.shear_factor import parabolic_factor, wave
from homodyne_dask.models.transport import Convention, Shear, TransportModel, bin_scales, rows_of
from homodyne_dask.models.user_defined import Bin, SeparableModel, unknown_model

if TYPE_CHECKING:
    from homodyne_dask.request.options import FitOptions

type Operand = TransportModel | SeparableModel
FRACTION = Parameter("fraction", "", (0.0, 1.0))
"""Of the scattered intensity, that of the first of two populations."""
FROZEN_FRACTION = "frozen_fraction"
"""Name of the fraction in a sum with a frozen population: its share of the whole intensity."""
TINY = 1e-300
"""f from which √f has a slope that is a number: at 0 it is infinite, and JAX would multiply it by 0."""
_SYMBOLS: dict[type, Literal["+", "*"]] = {ast.Add: "+", ast.Mult: "*"}


def _at_rest(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    return 0.0 * (t2 - t1) + 1.0


FROZEN = SeparableModel("frozen", (), _at_rest, isotropic=True)
"""A population that does not move. It can only be part of a sum: alone it has no decay."""


@dataclass(frozen=True, eq=False, repr=False)
class CompositeModel(SeparableModel):
    symbol: Literal["+", "*"] = field(kw_only=True)
    operands: tuple[Operand, Operand] = field(kw_only=True)

    @property
    def needs_gap(self) -> bool:
        return any(operand.needs_gap for operand in self.operands)

    @property
    def frozen(self) -> bool:
        return self.symbol == "+" and _is_frozen(self.operands[0])

    @property
    def start(self) -> str:
        return "frozen" if self.frozen else super().start

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        by_functions = (model for model in self.operands if isinstance(model, SeparableModel))
        return tuple(chain.from_iterable(model.functions for model in by_functions))

    def current(self) -> Self:
        current = composed(self.symbol, *(operand.current() for operand in self.operands))
        return self if current.digest == self.digest else cast(Self, current)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return composed, (self.symbol, *self.operands)


def composed(symbol: Literal["+", "*"], first: Any, second: Any) -> CompositeModel:
    """Return the sum or product of two models of scans; shared names are numbered, D0_1 and D0_2."""
    for operand in (first, second):
        _check_operand(symbol, operand)
    operands = _frozen_first(symbol, first, second)
    leaves = [leaf for operand in operands for leaf in _leaves(operand) if leaf.size]
    parameters, laws = _numbered(leaves)
    digests = [operand.digest for operand in operands]
    return CompositeModel(
        f" {symbol} ".join(_name_within(symbol, operand) for operand in operands),
        (*parameters, *_fraction_parameters(_fraction_names(symbol, operands))),
        partial(_f, symbol, operands),
        partial(_tables, operands),
        power_laws=tuple(laws),
        simpler=operands[1].name if _is_frozen(operands[0]) and operands[1] in leaves else "",
        isotropic=all(operand.isotropic for operand in operands),
        # none before a fit, in which `current` takes those of user-defined operands
        digest=" ".join((symbol, *digests)) * all(digests),
        ordered_times=any(operand.ordered_times for operand in operands),
        symbol=symbol,
        operands=operands,
    )


def _name_within(symbol: str, operand: Operand) -> str:
    in_parentheses = symbol == "*" and isinstance(operand, CompositeModel) and operand.symbol == "+"
    return f"({operand.name})" if in_parentheses else operand.name


def _check_operand(symbol: str, operand: Any) -> None:
    if not isinstance(operand, TransportModel | SeparableModel) or operand.splines:
        raise OptionError(
            f"{getattr(operand, 'name', operand)} cannot be part of a sum or product: use a model of scans "
            f"that has formulas for its rates, such as static"
        )
    if hasattr(operand, "within"):  # it would be averaged again in a fit of exposures
        raise OptionError(
            f"{operand.name} cannot be part of a sum or product: average the whole, as exposure(a + b)"
        )
    if symbol == "+" and (
        operand.beat is not None or getattr(operand, "shear", "") == Shear.PARABOLIC
    ):
        raise OptionError(
            f"{operand.name} cannot be part of a sum: its field has a phase; use two_component or a product"
        )


def _numbered(leaves: list[Operand]) -> tuple[list[Parameter], list[tuple[str, str, str]]]:
    count = Counter(name for leaf in leaves for name in leaf.names)
    parameters, laws = [], []
    for n, leaf in enumerate(leaves, 1):
        numbered = {name: f"{name}_{n}" if count[name] > 1 else name for name in leaf.names}
        parameters += [replace(p, name=numbered[p.name]) for p in leaf.parameters]
        laws += [(numbered[a], numbered[b], numbered[c]) for a, b, c in leaf.power_laws]
    return parameters, laws


def _leaves(model: Operand) -> list[Operand]:
    if not isinstance(model, CompositeModel):
        return [model]
    return [leaf for operand in model.operands for leaf in _leaves(operand)]


def _is_frozen(operand: Operand) -> bool:
    return isinstance(operand, SeparableModel) and operand.f is _at_rest


def _frozen_first(symbol: str, first: Operand, second: Operand) -> tuple[Operand, Operand]:
    """Return the operands of a sum with the frozen one first: its fraction is that of the whole field."""

    def has_frozen(operand: Operand) -> bool:
        return operand.frozen if isinstance(operand, CompositeModel) else _is_frozen(operand)

    if symbol == "*" and (_is_frozen(first) or _is_frozen(second)):
        raise OptionError("frozen does not change a product: add it, as in 'frozen + brownian'")
    if symbol == "*" or not (has_frozen(first) or has_frozen(second)):
        return first, second
    if has_frozen(first) and has_frozen(second):
        raise OptionError("two frozen parts are one: leave one of them out")
    frozen, moving = (first, second) if has_frozen(first) else (second, first)
    if isinstance(frozen, CompositeModel):
        # (frozen + A) + B is frozen + (A + B)
        frozen, moving = frozen.operands[0], composed("+", frozen.operands[1], moving)
    return frozen, moving


def _fraction_names(symbol: str, operands: tuple[Operand, Operand]) -> list[str]:
    names = [name for operand in operands for name in _fraction_names_of(operand)]
    if symbol == "+":
        names.append(FROZEN_FRACTION if _is_frozen(operands[0]) else FRACTION.name)
    return names


def _fraction_names_of(model: Operand) -> list[str]:
    return (
        _fraction_names(model.symbol, model.operands) if isinstance(model, CompositeModel) else []
    )


def _fraction_parameters(names: list[str]) -> list[Parameter]:
    numbers = [f"_{names[:n].count(name) + 1}" for n, name in enumerate(names)]
    return [
        replace(FRACTION, name=name + number * (names.count(name) > 1))
        for name, number in zip(names, numbers, strict=True)
    ]


def _split(theta: Any, operands: tuple[Operand, Operand]) -> tuple[Any, Any]:
    """Return the theta of each operand: fractions of sums stand behind all other parameters."""
    fractions = [len(_fraction_names_of(operand)) for operand in operands]
    xp, middle = theta.__array_namespace__(), operands[0].size - fractions[0]
    end = middle + operands[1].size - fractions[1]
    return (
        xp.concatenate([theta[:middle], theta[end : end + fractions[0]]]),
        xp.concatenate([theta[middle:end], theta[end + fractions[0] : end + sum(fractions)]]),
    )


def _tables(operands: tuple[Operand, Operand], theta: Any, time: Any) -> tuple[Any, Any]:
    theta_1, theta_2 = _split(theta, operands)
    return tables_of(operands[0], theta_1, time), tables_of(operands[1], theta_2, time)


def tables_of(operand: Operand, theta: Any, time: Any) -> Any:
    if isinstance(operand, SeparableModel):
        return time if operand.precompute is None else operand.precompute(theta, time)
    t, steps = from_half_a_frame(time), time[1:] - time[:-1]
    return tuple(
        rows_of(operand, Convention.PHYSICAL, theta, t, steps)[-2 if operand.needs_gap else -1 :]
    )


def _f(
    symbol: str, operands: tuple[Operand, Operand], theta: Any, t1: Any, t2: Any, bin: Bin
) -> Any:
    if symbol == "+":
        return _mean_field(operands, theta, t1, t2, bin) ** 2
    theta_1, theta_2 = _split(theta, operands)
    f_1 = f_of(operands[0], theta_1, t1[0], t2[0], bin)
    return f_1 * f_of(operands[1], theta_2, t1[1], t2[1], bin)


def f_of(operand: Operand, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    if isinstance(operand, SeparableModel):
        return operand.f(theta, t1, t2, bin)
    return _field(operand, theta, t1, t2, bin) ** 2


def _field(operand: Operand, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    """Return g of f = g²; its slope where f is 0 is 0."""
    xp = theta.__array_namespace__()
    if isinstance(operand, CompositeModel) and operand.symbol == "+":
        return _mean_field(operand.operands, theta, t1, t2, bin)
    if isinstance(operand, SeparableModel):
        f = xp.asarray(operand.f(theta, t1, t2, bin))
        positive = f > TINY
        return xp.where(positive, xp.sqrt(xp.where(positive, f, 1.0)), 0.0)
    q, phi = xp.asarray(bin.q), xp.asarray(bin.phi)
    scales = bin_scales(operand, Convention.PHYSICAL, theta, q, phi, bin.gap, 0.0)
    g = xp.exp(-0.5 * scales.k * (t2[-1] - t1[-1]))
    if not operand.shear:
        return g
    x = scales.s * (t2[-2] - t1[-2])
    if operand.shear is Shear.PARABOLIC:
        return g * xp.sqrt(parabolic_factor(wave(x))[0])
    return g * xp.sinc(x / np.pi)


def _mean_field(operands: tuple[Operand, Operand], theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    (theta_1, theta_2), fraction = _split(theta, operands), theta[-1]
    g_1 = _field(operands[0], theta_1, t1[0], t2[0], bin)
    return fraction * g_1 + (1 - fraction) * _field(operands[1], theta_2, t1[1], t2[1], bin)


WRAPPERS: dict[str, Callable[[Any], SeparableModel]] = {}
"""Functions of a model that texts may name, as exposure(brownian)."""


def parsed(text: str, models: Mapping[str, Parametrized]) -> SeparableModel | None:
    """Return the model of a text as 'static + brownian'; None of a text without + and * and parentheses."""
    if not set("+*(") & set(text):
        return None

    def model_of(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in _SYMBOLS:
            return composed(_SYMBOLS[type(node.op)], model_of(node.left), model_of(node.right))
        match node:
            case ast.Call(func=ast.Name(id=name), args=[operand], keywords=[]) if name in WRAPPERS:
                return WRAPPERS[name](model_of(operand))
        if not isinstance(node, ast.Name):
            raise OptionError(
                f"model {text!r} cannot be read: give names with + and *, such as 'static + brownian'"
            )
        if node.id not in models:
            raise unknown_model(node.id, models, f" of {text!r}")
        return models[node.id]

    try:
        return model_of(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return model_of(ast.Pass())  # neither a sum nor a name: the same sentence


# expressions come from files and command lines: what is not listed here is refused, not evaluated
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
        for option in ("initial", "fixed", "bounds", "prior", "profile"):
            for name, text in self.ties.expressions:
                if name in (getattr(options, option) or ()):
                    raise OptionError(
                        f"{option}: {name} is tied to {text}: remove it from {option} or from tie"
                    )
        super()._check_names(options)


def with_ties(
    model: TransportModel | SeparableModel | TiedModel, expressions: Mapping[str, str] | None
) -> TransportModel | SeparableModel | TiedModel:
    """Return the model with parameters tied by expressions of others, by name; tied anew where it was."""
    base = model.untied
    if not expressions:
        return base
    if base.splines:
        raise OptionError(
            f"{base.name} has rates without a formula, which cannot be tied: leave out tie"
        )
    for name, text in expressions.items():
        _check_tie(base, name, text)
    ties = Ties(base.parameters, tuple(_ordered(dict(expressions))))
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


def _check_tie(base: Parametrized, name: str, text: str) -> None:
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
        with np.errstate(all="ignore"):  # log(alpha - 1) is no mistake: only its value at 1 is
            _value(tree, dict.fromkeys(names, np.float64(1.0)), np)
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError):
        raise OptionError(
            f"tie of {name} = {shown(text)} cannot be read: give numbers and parameters with + - * / ** and "
            f"{', '.join(FUNCTIONS)}, such as 'alpha' or '0.1*D0'"
        ) from None
    return names


def _ordered(expressions: dict[str, str]) -> list[tuple[str, str]]:
    ordered: list[tuple[str, str]] = []
    while expressions:
        uses = {name: _names(name, text) for name, text in expressions.items()}
        ready = [name for name, used in uses.items() if expressions.keys().isdisjoint(used)]
        if not ready:
            cycle = " and ".join(expressions)
            raise OptionError(f"tie: {cycle} refer to each other: remove one of them")
        ordered += [(name, expressions.pop(name)) for name in ready]
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
