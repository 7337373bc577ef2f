"""A model of any data: a residual over the variables of a dataset."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from homodyne_dask.errors import OptionError, require_function
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.separable import checked_parameters, name_of_model
from homodyne_dask.models.user_defined import UserDefined


@dataclass(frozen=True, eq=False, repr=False)
class ResidualModel(UserDefined):
    """residual(theta, *columns) as a JAX function; JAX differentiates it. Made by `model`."""

    of_scans = False

    residual: Callable[..., Any]
    variables: tuple[str, ...]
    """Of the dataset, in the order of the columns."""
    written: Callable[..., Any]
    """The user's function: errors name its lines."""

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The residual, and the function it is made of."""
        return self.residual, self.written


def model(
    residual: Callable[..., Any], parameters: Sequence[Parameter], name: str | None = None
) -> ResidualModel:
    """Return a model of any data: a fit minimizes the sum of squares of residual(theta, x, y, ...).

    residual is a JAX function. theta holds the parameters in their order; the names of the other
    arguments are those of variables or coordinates of the dataset it is fitted to, which come as
    arrays of one shape. It returns one residual per point, over its standard deviation. Fit it with
    `hd.fit(dataset, model, initial={...})`. name: in reports; that of the function by default.

    Raises OptionError without parameters, with two of one name, or without arguments beside theta.

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
            f"model {name!r}: the arguments of the residual after theta name the variables it needs, "
            f"as in residual(theta, x, y)"
        )
    return ResidualModel(name, checked, residual, tuple(a.name for a in arguments), residual)
