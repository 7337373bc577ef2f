"""The end of a fit: its request, its last state, and the normal equations there, which are made once."""

from dataclasses import dataclass
from functools import cached_property

from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.array_shapes import Theta, Which
from homodyne_dask.solver.normal_equations import (
    JointEquations,
    equations_with_errors,
    joint_equations,
)
from homodyne_dask.solver.reduce import ReducedProblem


@dataclass(frozen=True)
class FitEnd:
    """Its sums may not be finite: then it has no `equations`."""

    request: Request
    state: lm.State

    @property
    def reduced(self) -> ReducedProblem:
        return self.state.reduced

    @property
    def theta(self) -> Theta:
        return self.state.theta

    @property
    def free(self) -> int:
        """The number of parameters that were searched."""
        return int(self.request.search.free.sum())

    @cached_property
    def inside(self) -> Which:
        """The free parameters that ended inside their bounds."""
        return self.request.search.free_inside_bounds(self.theta)

    @property
    def at_bound(self) -> Which:
        return self.request.search.free & ~self.inside

    @cached_property
    def equations(self) -> JointEquations:
        """The normal equations of the parameters whose errors are known."""
        return equations_with_errors(self.request.search, self.theta, self.reduced)

    @cached_property
    def equations_inside(self) -> JointEquations:
        """Those of the parameters inside their bounds: what single bins and clusters change."""
        return self.equations_of(self.inside)

    def equations_of(self, which: Which) -> JointEquations:
        # `equations` exist of finite sums alone
        made_before = self.reduced.finite and (self.equations.which == which).all()
        return self.equations if made_before else joint_equations(self.reduced, which)

    @property
    def moved(self) -> Which:
        """The parameters whose errors are known."""
        return self.equations.which if self.reduced.finite else self.inside
