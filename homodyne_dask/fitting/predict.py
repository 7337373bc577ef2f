"""c2 from parameters: the model itself, on any times and bins."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from homodyne_dask.errors import OptionError, require_known, shown
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import ModelPoint, Problem
from homodyne_dask.models import Model, convention_named, scan_model
from homodyne_dask.models.transport import frame_spacing
from homodyne_dask.request.option_types import gap_in_angstrom


def predict(
    model: Model | str,
    params: Mapping[str, float] | ArrayLike,
    times: ArrayLike,
    *,
    q: ArrayLike,
    phi: ArrayLike = 0.0,
    gap: str | float | None = None,
    contrast: ArrayLike = 1.0,
    offset: ArrayLike = 0.0,
    convention: str = "physical",
) -> Float[np.ndarray, "bin t1 t2"]:
    """Compute c2(bin, t1, t2) = offset + contrast·f of a model, symmetric in t1 and t2.

    model: a model or its name. params: by name or in the model's order, without those that are constant in
    it; bounds of fits do not apply. Splines of rates without a formula are distributed over the times, one
    for each coefficient. times [s], q [1/Å], phi [degree], contrast and offset: one number or one per bin.
    gap: '200 um', or Å as a number; models without shear do not need it. Raises OptionError for unknown
    names, wrong lengths, or a missing gap. convention: physical or homodyne. The equations are in
    `homodyne_dask.models.transport`.

    >>> hd.predict("brownian", {"D0": 1e4}, [0.0, 0.1], q=0.005, contrast=0.2, offset=1.0).round(3)
    array([[[1.2  , 1.195],
            [1.195, 1.2  ]]])
    """
    time = numbers_of("times", times)
    if time.ndim != 1:
        raise OptionError(f"times = {shown(times)} is not a list of times in seconds")
    number = len(params) if isinstance(params, Mapping) else np.size(params)
    model = scan_model(model).current().with_coefficients(number, time)
    theta = vector_of(model, params)
    convention_used = convention_named(convention)
    width = required_gap(model, gap)
    per_bin = over_bins({"q": q, "phi": phi, "contrast": contrast, "offset": offset})
    frame_spacing(time, convention_used)
    point = evaluation_of(model).point(Problem(model, convention_used, width), theta, time)
    return c2_of_point(point, time, *per_bin.values())


def required_gap(model: Model, gap: str | float | None) -> float | None:
    model.require_gap(gap, "gap='200 um'")
    return None if gap is None else gap_in_angstrom(gap)


def c2_of_point(
    point: ModelPoint,
    time: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " bin"],
    phi: Float[np.ndarray, " bin"],
    contrast: Float[np.ndarray, " bin"],
    offset: Float[np.ndarray, " bin"],
) -> Float[np.ndarray, "bin t1 t2"]:
    f_at, t1, t2 = evaluation_of(point.problem.model).f_at, time[:, None], time[None, :]
    bins = zip(q[:, None], phi[:, None], strict=True)
    f = np.concatenate([f_at(point, time, *of_bin, t1, t2) for of_bin in bins])
    return offset[:, None, None] + contrast[:, None, None] * f


def numbers_of(name: str, value: Any) -> Float[np.ndarray, "..."]:
    try:
        values = np.asarray(value)
        real = values.dtype.kind == "O" and all(isinstance(x, Real) for x in values.flat)
        # NumPy would make numbers of text and None
        if values.dtype.kind not in "fiub" and not real:
            raise TypeError
        return values.astype(float)
    except (TypeError, ValueError):
        message = f"{name} = {shown(value)} is neither a number nor a list of numbers"
        raise OptionError(message) from None


def over_bins(named: Mapping[str, Any]) -> dict[str, Float[np.ndarray, " bin"]]:
    per_bin = {name: np.atleast_1d(numbers_of(name, value)) for name, value in named.items()}
    for name, numbers in per_bin.items():
        if numbers.ndim > 1 or not len(numbers):
            raise OptionError(
                f"{name} = {shown(named[name])} is neither a single number nor one per bin"
            )
    if len({len(numbers) for numbers in per_bin.values()} - {1}) > 1:
        lengths = ", ".join(f"{name} {len(numbers)}" for name, numbers in per_bin.items())
        raise OptionError(
            f"the arguments differ in length ({lengths}): give one number or one per bin"
        )
    return dict(zip(per_bin, np.broadcast_arrays(*per_bin.values()), strict=True))


def _number_of(name: str, value: Any) -> float:
    number = numbers_of(name, value)
    if number.size != 1:
        raise OptionError(f"{name} = {shown(value)} is not a single number")
    return float(number.item())


def vector_of(model: Model, params: Mapping[str, float] | ArrayLike) -> Float[np.ndarray, " p"]:
    constants = {p.name: p.constant for p in model.parameters if p.constant is not None}
    varying = [name for name in model.names if name not in constants]
    if not isinstance(params, Mapping):
        values = numbers_of("params", params)
        if values.shape != (len(varying),):
            raise OptionError(
                f"{model.name} has {len(varying)} parameters ({', '.join(varying)}), "
                f"but {values.size} values were given: give one for each"
            )
        params = dict(zip(varying, values.tolist(), strict=True))
    theta = constants.copy()
    for name, value in params.items():
        theta[name] = _number_of(str(name), value)
        require_known(name, model.names, f"{model.name} has no parameter {name!r}")
        if name in constants and theta[name] != constants[name]:
            raise OptionError(
                f"{name} is {constants[name]:g} in {model.name}, but {theta[name]:g} was given: leave it out"
            )
    for name in varying:
        if name not in theta:
            raise OptionError(f"{model.name} needs a value of {name}: give all parameters")
    return np.array([theta[name] for name in model.names], float)
