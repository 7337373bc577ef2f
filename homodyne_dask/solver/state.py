"""Options, trials, states and outcomes of the solver, and the plain data of a state in a checkpoint."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field

from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import Search
from homodyne_dask.read_only import make_read_only
from homodyne_dask.solver.eigendirections import (
    Eigendirections,
    directions_of,
    movable,
    parameter_scales,
)
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem, Strengths
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.solver.step_control import Damping, StepControl, TrustRegion

Number = Annotated[float, Field(ge=-1e100, le=1e100)]
"""One whose square is a number, too."""
MIN_REJECTED_STEPS = 3
"""Rejected steps after which directions whose error exceeds every scale count as undetermined."""


class Outcome(Enum):
    """Outcome of a fit, with a sentence that describes it."""

    RUNNING = "the fit is still running"
    CONVERGED = "converged: the estimated distance to the minimum is far below a standard error"
    STALLED = "stalled: no step reduces χ² further, but the gradient is not zero"
    MAX_PASSES = "stopped at the limit of passes before converging"
    SINGULAR = "the data do not determine all parameters"
    NO_DECAY = "no decay seen: contrast times f describes the data no better than a constant"
    NONFINITE = "the model or the data gave a value that is not a number"
    INTERRUPTED = "interrupted before converging"


@dataclass(frozen=True)
class Options:
    """Criteria of convergence, and damping."""

    decrement: float = 1e-4
    """Converged when the estimated distance to the minimum is below this many standard errors."""
    relative_step: float = 0.0
    """Converged, too, when the next undamped step changes no parameter by more than this share of it."""
    relative_rounding: float = 0.0
    """Share of χ² below which a gain counts as rounding, if it is more than the rounding of sums."""
    trust_region: bool = False
    """Limit the length of steps by how well the last one was predicted: for starts far away."""
    max_passes: int = 100
    damping: float = 1e-3
    """The first damping, relative to the Hessian's diagonal."""


class Trial(NamedTuple):
    """A point to evaluate."""

    theta: Float[np.ndarray, " p"]
    linear_params: Float[np.ndarray, "bin 2"] | None = None
    """(offset - 1, contrast) to try with it, where they are not eliminated: under a loss."""
    predicted: float = np.nan
    """The reduction of χ² that the quadratic model expects of a step there."""


class SavedState(NamedTuple):
    """A state as plain data, with the Gram it was made from."""

    theta: list[Number]
    damping: Number
    accepted: bool
    gram: Gram
    nonmonotone_steps: int = 0
    rejected_steps: int = 0
    slow_steps: int = 0
    linear_params: list[list[Number]] | None = None
    """(offset - 1, contrast) of every bin, where they are not eliminated: under a loss."""
    trust_region: tuple[list[Number], Number] | None = None
    """Size and radius of a `TrustRegion`."""
    strengths: list[list[Number]] | None = None
    """The `Strengths` of the state's penalty."""
    secant: list[list[Number]] | None = None
    """The second-order term."""


@dataclass(frozen=True)
class State:
    """The state of a fit after a pass; the last one has the outcome. Its arrays are read-only."""

    theta: Float[np.ndarray, " p"]
    reduced: ReducedProblem
    control: StepControl
    """What limits the next step."""
    outcome: Outcome = Outcome.RUNNING
    passes: int = 1
    accepted: bool = True
    """Whether the last trial had the lowest χ² so far."""
    best: "State | None" = None
    """The lowest state so far, while steps above it are being tried (`solver.acceptance`)."""
    nonmonotone_steps: int = 0
    """Number of steps above it since then."""
    rejected_steps: int = 0
    """Since the fit began."""
    slow_steps: int = 0
    """Accepted steps in a row that hardly came closer to an optimum less than a standard error away."""
    second_order_term: Float[np.ndarray, "p p"] | None = None
    """S, what the Hessian has beside that of Gauss and Newton, once steps have failed or were slow."""
    decrement: float = np.inf
    """√(gᵀH⁻¹g/s²) over the free directions: estimated distance to the minimum in standard errors."""

    def __post_init__(self) -> None:
        make_read_only(self)  # users and callbacks have it while the fit goes on

    def __repr__(self) -> str:
        theta, chisqr = ", ".join(f"{value:.6g}" for value in self.theta), self.reduced.chisqr
        return f"<pass {self.passes}: χ² {chisqr:.8g} at ({theta}), {self.outcome.value}>"

    @property
    def lowest(self) -> "State":
        """The state with the lowest χ² so far."""
        return self.best or self

    @property
    def damping(self) -> float:
        """The damping of the next step."""
        return self.control.damping

    def movable(self, search: Search) -> Bool[np.ndarray, " p"]:
        """Return which parameters may move: not fixed, and no active bound."""
        return movable(search, self.theta, self.reduced.gradient)

    def directions(
        self,
        search: Search,
        which: Bool[np.ndarray, " p"],
        gradient: Float[np.ndarray, " p"] | None = None,
    ) -> Eigendirections:
        """Return the eigendirections of some parameters; gradient: another one than that of the problem.

        After MIN_REJECTED_STEPS those whose error exceeds every scale count as undetermined.
        """
        directions = directions_of(self.reduced, which, gradient)
        if not directions.determined.any() or self.rejected_steps < MIN_REJECTED_STEPS:
            return directions
        variance = self.reduced.variance(int(search.free.sum()))
        return directions.without_unbounded(parameter_scales(search, self.theta)[which], variance)

    def saved(self) -> SavedState:
        """Return the state as plain data."""
        reduced, S, penalty = self.reduced, self.second_order_term, self.reduced.penalty
        control, region = self.control, None
        if isinstance(control, TrustRegion):
            region = control.size.tolist(), control.radius
        return SavedState(
            self.theta.tolist(), self.damping, self.accepted, reduced.gram,
            self.nonmonotone_steps, self.rejected_steps, self.slow_steps,
            None if reduced.linear_step is None else reduced.linear_params.tolist(),
            region,
            penalty and [each.tolist() for each in penalty.strengths],
            None if S is None else S.tolist(),
        )  # fmt: skip

    @classmethod
    def restored(
        cls,
        saved: SavedState,
        search: Search,
        scaling: Scaling,
        sum_rounding: float,
        passes: int,
        best: Self | None = None,
    ) -> Self:
        """Return the state that was saved, without its decrement and outcome.

        sum_rounding: see `reduce`. passes: how many there were. best: the lowest state, if it is another one.
        """
        theta, S = np.array(saved.theta), saved.secant
        linear_params = None if saved.linear_params is None else np.array(saved.linear_params)
        prior = search.prior_terms(theta)
        reduced = reduce(saved.gram, scaling, sum_rounding, prior, linear_params)
        if saved.strengths is not None:
            strengths = Strengths(*map(np.array, saved.strengths))
            reduced = penalized(search, theta, reduced, strengths)
        control: StepControl = Damping(saved.damping)
        if saved.trust_region is not None:
            size, radius = saved.trust_region
            control = TrustRegion(np.array(size), radius, saved.damping)
        return cls(
            theta, reduced, control, passes=passes,
            accepted=saved.accepted, best=best, nonmonotone_steps=saved.nonmonotone_steps,
            rejected_steps=saved.rejected_steps, slow_steps=saved.slow_steps,
            second_order_term=None if S is None else np.array(S),
        )  # fmt: skip
