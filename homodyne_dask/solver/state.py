"""Options, states and outcomes of the solver."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.step_control import TrustRegion


class Outcome(Enum):
    """The outcome of a fit, with a sentence."""

    RUNNING = "the fit is still running"
    CONVERGED = "converged: the estimated distance to the minimum is below 1e-4 standard errors"
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


@dataclass(frozen=True)
class State:
    """The state of a fit after a pass; the last one has the outcome."""

    theta: Float[np.ndarray, " p"]
    reduced: ReducedProblem
    damping: float
    outcome: Outcome = Outcome.RUNNING
    passes: int = 1
    accepted: bool = True
    """Whether the last trial had the lowest χ² so far."""
    best: "State | None" = None
    """The lowest state so far, while steps above it are being tried (see `judge`)."""
    nonmonotone_steps: int = 0
    """Number of steps above it since then."""
    rejected_steps: int = 0
    """Since the fit began."""
    slow_steps: int = 0
    """Accepted steps in a row that hardly came closer to an optimum less than a standard error away."""
    secant: Float[np.ndarray, "p p"] | None = None
    """S, what the Hessian has beside that of Gauss and Newton, once steps have failed or were slow."""
    trust_region: TrustRegion | None = None
    """The limit of the next step's length, if steps are limited by it instead of damping."""
    decrement: float = np.inf
    """√(gᵀH⁻¹g/s²) over the free directions: estimated distance to the minimum in standard errors."""

    def __repr__(self) -> str:
        theta = ", ".join(f"{value:.6g}" for value in self.theta)
        return (
            f"<pass {self.passes}: χ² {self.reduced.chisqr:.8g} at ({theta}), {self.outcome.value}>"
        )

    @property
    def lowest(self) -> "State":
        """The state with the lowest χ² so far."""
        return self.best or self
