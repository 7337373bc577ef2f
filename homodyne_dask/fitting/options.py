"""A fit that a user asks for, checked: data, model, search and options that can be started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, SelectionError, nearest
from homodyne_dask.kernels.problem import LOSSES, PRECISIONS, Problem
from homodyne_dask.models import Model, SeparableModel, convention_named
from homodyne_dask.models.parameters import Parameter, Search, search
from homodyne_dask.models.power_law_step import power_laws
from homodyne_dask.models.transport import Convention, frame_spacing
from homodyne_dask.models.units import gap_in_angstrom
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.priors import scaling_prior
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of
from homodyne_dask.store.scan import Scan, open_dataset

ON_BAD_TILE = ("raise", "skip")
MEMORY = ("auto", "resident", "stream")
_UNKNOWN_Q = 1e10
"""1/s: bounds of q²·D where q is unknown."""


@dataclass(frozen=True)
class Request:
    """A fit that has been checked and can be started."""

    scan: Scan
    problem: Problem
    search: Search
    parameters: tuple[Parameter, ...]
    scaling: Scaling
    options: lm.Options
    memory: str
    starts: int | None
    profile: tuple[str, ...]
    """Parameters whose profile is asked for."""
    config: dict[str, Any]
    """The options as given, for the record."""


def prepare(
    data: Scan | str | Path,
    model: Model,
    *,
    gap: str | float | None = None,
    convention: str = "physical",
    scaling: str = "individual",
    contrast: float | Sequence[float] | None = None,
    offset: float | Sequence[float] | None = None,
    contrast_bounds: tuple[float, float] | None = None,
    offset_bounds: tuple[float, float] | None = None,
    contrast_prior: tuple[float, float] | None = None,
    offset_prior: tuple[float, float] | None = None,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    min_lag: int = 1,
    loss: str = "linear",
    loss_scale: float | None = None,
    precision: str = "float64",
    memory: str = "auto",
    starts: int | None = None,
    profile: tuple[str, ...] = (),
    max_passes: int = 100,
    on_bad_tile: str = "raise",
) -> Request:
    """Return the checked fit of these options (see `fit`); raises a HomodyneDaskError for mistakes."""
    config = {k: v for k, v in locals().items() if k not in ("data", "model")}
    scan = data if isinstance(data, Scan) else open_dataset(data)
    _one_of("loss", loss, LOSSES)
    config["loss_scale"] = _loss_scale(loss, loss_scale)
    _one_of("precision", precision, PRECISIONS)
    if loss != "linear" and precision != "float64":
        raise OptionError(
            f"precision {precision!r} is too coarse for the loss {loss!r}, whose sums tell one step "
            f"from the next: leave precision at 'float64'"
        )
    _one_of("memory", memory, MEMORY)
    _one_of("on_bad_tile", on_bad_tile, ON_BAD_TILE)
    for name in profile:
        if name not in model.names:
            raise OptionError(
                f"profile: unknown parameter {name!r}; {nearest(str(name), model.names)}"
            )
    if isinstance(min_lag, bool) or not isinstance(min_lag, int) or min_lag < 1:
        raise OptionError(f"min_lag = {min_lag!r} is not a number of frames from 1 up")
    for name, value in (("starts", starts), ("max_passes", max_passes)):
        if value is not None and value < 1:
            raise OptionError(f"{name} = {value} is below 1: leave it out for the default")
    if int(scan.use.sum()) < 3:
        raise SelectionError(
            f"{int(scan.use.sum())} of {scan.n_frames} frames are in use, and a fit needs 3: "
            f"widen the selection"
        )
    kind = convention_named(convention)
    frame_spacing(scan.time, kind)
    width = gap_in_angstrom(gap) if gap is not None else scan.attrs["gap_angstrom"]
    needs_q = model.shear
    if isinstance(model, SeparableModel):
        needs_q = _of_own(model, scan, kind, precision)
    parameters = _with_known_q(model, scan, needs_q)
    laws = power_laws(model.names, model.power_laws, scan.time[scan.use])
    chosen = search(parameters, initial, fixed, bounds, laws)
    prior = scaling_prior(contrast_bounds, offset_bounds, contrast_prior, offset_prior)
    tied = scaling_of(scaling, scan.phi, contrast, offset, prior)
    config |= {"model": model.name, "gap_angstrom": width, "scaling": tied.mode}
    if tied.given is not None:
        config |= {"offset": (1 + tied.given[:, 0]).tolist(), "contrast": tied.given[:, 1].tolist()}
    config["max_passes"] = max_passes
    return Request(
        scan=scan,
        problem=Problem(
            model,
            kind,
            width if model.shear else None,
            min_lag,
            precision,
            loss,
            config["loss_scale"],
        ),
        search=chosen,
        parameters=parameters,
        scaling=tied,
        options=lm.Options(max_passes=max_passes),
        memory=memory,
        starts=starts,
        profile=tuple(profile),
        config=config,
    )


def require_gap(request: Request) -> None:
    """Raise OptionError where the model needs a gap and neither the user nor the store knows it.

    A plan does not need it; a fit does.
    """
    if request.problem.model.shear and request.problem.gap is None:
        raise OptionError(
            f"{request.problem.model.name} needs the gap between the plates: --gap '200 um'"
        )


def _one_of(what: str, value: str, known: Any) -> None:
    if value not in known:
        raise OptionError(f"{what} {value!r} is unknown; {nearest(str(value), known)}")


def _of_own(model: SeparableModel, scan: Scan, convention: Convention, precision: str) -> bool:
    """Check a model of one's own and return whether it uses q.

    Raises OptionError for mistakes in its functions, and for options of the transport models.
    """
    if convention is not Convention.PHYSICAL:
        raise OptionError(
            f"convention {convention.value!r} is one of the transport models: leave it out for "
            f"{model.name}"
        )
    if precision != "float64":
        raise OptionError(f"{model.name} is computed in float64 only: leave precision out")
    from homodyne_dask.kernels.checks import check_separable  # JAX, which transport loads later

    return check_separable(model, scan.n_frames)


def _loss_scale(loss: str, scale: Any) -> float:
    if scale is None:
        return 1.0
    if loss == "linear":
        raise OptionError(
            f"loss_scale = {scale!r} is given, but the loss is the sum of squares: choose a loss, "
            f"as loss='huber'"
        )
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < np.inf:
        raise OptionError(
            f"loss_scale = {scale!r} is not a positive number: it is the residual, in standard "
            f"deviations, from which on the loss takes less than the square"
        )
    return float(scale)


def _with_known_q(model: Model, scan: Scan, needs_q: bool) -> tuple[Parameter, ...]:
    """Return the model's parameters, in 1/s where q is unknown and only q² times them is determined."""
    unknown = np.isnan(scan.q)
    if not unknown.any():
        return model.parameters
    if not unknown.all():
        raise SelectionError(
            f"q is unknown for {int(unknown.sum())} of {len(unknown)} selected bins: "
            f"select those with q, or those without"
        )
    if needs_q:
        raise OptionError(f"{model.name} needs q, and the store does not know it: ingest with --q")
    return tuple(
        replace(p, unit="1/s", bounds=_q_free(p.bounds)) if p.q_power else p
        for p in model.parameters
    )


def _q_free(bounds: tuple[float, float]) -> tuple[float, float]:
    low = 1 / _UNKNOWN_Q if bounds[0] > 0 else -_UNKNOWN_Q
    return low, _UNKNOWN_Q
