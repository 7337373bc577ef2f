"""The interface between passes and models: the functions that a backend provides.

A pass turns blocks into Grams without knowing f. There are two backends, modules that have these functions:
`transport_backend`, with derivatives by hand, and `separable_backend`, differentiated by JAX. f itself is an
`Evaluation`; that of transport models, `transport_evaluation`, does without JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels.decayed_subblocks import SubBlocks
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.problem import Problem

MAX_CANDIDATES = 8
"""Thetas of one call of `candidate_grams`; fewer are padded, so that its kernel is compiled once."""


class ModelPoint(Protocol):
    """A model at one theta, on all frames of a level: made once, used by every block."""

    @property
    def problem(self) -> Problem:
        """The problem that is fitted."""
        ...

    @property
    def theta(self) -> Float[np.ndarray, " p"]:
        """Its parameters."""
        ...

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, active ones first."""
        ...


class RateCurve(NamedTuple):
    """A rate of transport, or the integral of one, at the selected frames."""

    time: Float[np.ndarray, " n"]
    """s; not below half a frame."""
    value: Float[np.ndarray, " n"]
    gradient: Float[np.ndarray, "p n"]
    """By its parameters."""
    parameters: tuple[str, ...]


class PairTimes(NamedTuple):
    """Times of all frames, as f of theta takes them."""

    t: Any
    """s."""
    steps: Any
    """From each to the next, where a model integrates over them."""
    spacing: Any
    """s."""


class PairSet(NamedTuple):
    """Some pairs of frames of some bins; arrays of NumPy, or traced by JAX."""

    times: PairTimes
    i: Any
    """(pair)."""
    j: Any
    q: Any
    """(bin) [1/Å]."""
    phi: Any
    """(bin) [degree]."""
    gap: Any
    """Å; 0 where a model has none."""


class Evaluation(Protocol):
    """What is computed of the models of one family without data. Arrays are NumPy's, float64."""

    point: Callable[..., ModelPoint]
    """(problem, theta, time, factor=1, frames=None): times of the full resolution, of which `factor`
    are averaged; frames that are selected, the first and the one after the last, by default all."""
    f_at: Callable[..., Float[np.ndarray, "bin ..."]]
    """(point of the full resolution, time, q, phi, t1, t2): f of any bins at times that broadcast."""
    f_and_derivatives_at: Callable[
        ..., tuple[Float[np.ndarray, "bin ..."], Float[np.ndarray, "bin p ..."]]
    ]
    """The same arguments: f, and its derivatives by theta."""
    rates: Callable[..., dict[str, RateCurve]] | None
    """(point of the full resolution, time, frames): J, and with shear gamma_dot and the strain; None
    for models that have no such rates."""
    rates_of_draws: Callable[..., dict[str, Float[np.ndarray, "draw at"]]] | None
    """(problem, thetas, time, frames, at): the values of `rates` for many thetas, at some of its points."""
    sign_at: Callable[..., Float[np.ndarray, "bin ..."]] | None
    """As f_at: the sign of the field correlation g, f = g²; None for models that are given as f alone."""


class Backend(Evaluation, Protocol):
    """How the models of one family are computed, with their kernels."""

    gram: Callable[..., tuple[Gram, Float[np.ndarray, "padded 4"]]]
    """(point, block, sums or None): the Gram, and the sums of the data alone."""
    robust_gram: Callable[..., Gram]
    """(point, block, linear_params of its bins): the Gram under the loss of the problem."""
    candidate_grams: Callable[..., Gram]
    """(points, block): at most MAX_CANDIDATES points of one problem."""
    wide_gram: Callable[..., tuple[Gram, Float[np.ndarray, "padded 4"]]]
    """(points, block, sums or None): the wide Gram at any number of points of one problem, in float64,
    and the sums of the data alone."""
    tile_grams: Callable[..., list[tuple[Gram, Float[np.ndarray, "bin 4"]]]]
    """(points, `tile_sums.TileWork`): the Gram of several tiles that lie on a device, and the sums of the
    data of each."""
    cell_sums: Callable[..., Float[np.ndarray, "padded cell 1+p"]]
    """(point, block, cell of each pair, sums): the sums over cells of f and ∂f/∂theta, with those of
    the pairs of a block added; c2 of the block is not used."""
    pair_times: Callable[..., PairTimes]
    """(problem, time): the times of a `PairSet`, all of the full resolution."""
    f_of_theta: Callable[..., Any]
    """(theta, pair set, model, convention): f of bins at pairs of frames (bin, pair), for JAX to trace."""
    adequate: Callable[..., bool]
    """(point, q, phi, frames, factor): whether f changes little enough over `factor` frames for
    means over that many frames to resolve it; frames are the first selected and the one after the last."""
    correlation_time: Callable[..., float]
    """(point, q, phi, frames): frames in which f decays to 1/e, at the middle of the record."""
