"""Normal equations of theta and of the linear parameters that bins share: the basis of error estimates.

In `individual` and `fixed` the bins share theta alone. In the other modes they share the linear
parameters β too, and a bin has leverage on them: without it CR3 comes out too small. The columns are
those of theta with β projected out, so that the sum is block-diagonal: JᵀWZ = 0.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.gram import summed
from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.array_shapes import (
    LinearParams,
    Matrix,
    Moved,
    MovedMatrix,
    Theta,
    Values,
    Vector,
    Which,
)
from homodyne_dask.solver.normal_matrix import SINGULAR_REST, eigensystem, sizes
from homodyne_dask.solver.reduce import ReducedProblem, Z

MOST_BEYOND = 15.0
"""Naive errors by which the optimum may lie beyond a bound; those of correlated pairs were 8 to 18 times as
large. Intervals that allow for the bound held another parameter up to 14 naive errors beyond it."""


@dataclass(frozen=True)
class PriorEquations:
    """What priors and penalties of theta add to the normal equations of the scaled parameters; 0 without."""

    normal: Matrix
    gradient: Vector
    scores: Matrix
    """The variance of that gradient: of a prior its weight 1/sd², of a penalty φ times its weight."""
    noise: Matrix
    """The part of `scores` that does not grow with the noise of the data: that of priors."""


@dataclass(frozen=True)
class JointEquations:
    """Normal equations in the parameters that moved, then β; each divided by its `size`."""

    reduced: ReducedProblem
    """The problem that they are of."""
    moved: int
    linear: int
    which: Which
    """The parameters that moved, and those that a bound holds but whose errors are known."""
    hessian: MovedMatrix
    """Of theta; of unit diagonal."""
    values: Moved
    vectors: MovedMatrix
    determined: Bool[np.ndarray, " m"]
    inverse: Matrix
    """NaN where a direction is not determined."""
    blocks: Float[np.ndarray, "bin own own"]
    """They sum to the normal matrix, but for priors."""
    place: Int[np.ndarray, "bin own"] | None
    """Their rows in it; n of a row of zeros. None where they are all."""
    scores: Float[np.ndarray, "bin n"]
    """They sum to the gradient, but for priors."""
    size: Vector
    """A parameter is its scaled value over this."""
    follow: Float[np.ndarray, "bin 2 n"]
    """Derivatives of (offset, contrast) of a bin by the scaled parameters."""
    prior: PriorEquations

    @property
    def axes(self) -> Matrix:
        axes = np.eye(len(self.size))
        axes[: self.moved, : self.moved] = self.vectors
        return axes

    @property
    def to_axes(self) -> Matrix:
        """The map from scores to steps along the axes."""
        to = self.inverse.copy()
        to[: self.moved, : self.moved] = (self.vectors / self.values).T
        return to

    @property
    def normal(self) -> Matrix:
        n = len(self.size)
        return summed(self.blocks, self.place, n + 1)[:n, :n] + self.prior.normal

    @property
    def gradient(self) -> Vector:
        return self.scores.sum(0) + self.prior.gradient

    def caused_by(self, scores: Matrix) -> Matrix:
        """Return H⁻¹ scores H⁻¹: the covariance that a variance of scores, as of priors, causes."""
        return self.inverse @ scores @ self.inverse

    def of_theta(self, covariance: Matrix) -> MovedMatrix:
        size = self.size[: self.moved]
        return covariance[: self.moved, : self.moved] / np.outer(size, size)

    def of_scaling(self, covariance: Matrix) -> LinearParams:
        return deviation(np.einsum("kzn,nm,kzm->kz", self.follow, covariance, self.follow))


def deviation(variance: Values) -> Values:
    """Return the roots of variances, NaN where rounding made one negative: it is not known."""
    return np.sqrt(np.where(variance >= 0, variance, np.nan))


def joint_equations(reduced: ReducedProblem, moved: Which) -> JointEquations:
    """Return the joint normal equations at theta, of the parameters that moved."""
    block_of_moved = np.ix_(moved, moved)
    H = reduced.hessian[block_of_moved]
    size = sizes(H)
    hessian = H / np.outer(size, size)
    scaled = eigensystem(hessian, np.ones(len(H)))
    determined = scaled.above_rounding(reduced.relative_hessian_rounding[moved])
    bins = len(reduced.count)
    place, own_size = reduced.gram.place, size
    if place is None:
        blocks = reduced.bin_hessian[:, moved][:, :, moved]
    else:
        moved_of_bin = moved[place]
        place = np.where(moved_of_bin, (np.cumsum(moved) - 1)[place], len(size))
        both_moved = moved_of_bin[:, :, None] & moved_of_bin[:, None, :]
        blocks, own_size = (
            np.where(both_moved, reduced.bin_hessian, 0.0),
            np.append(size, 1.0)[place],
        )
    scores = reduced.bin_gradient[:, moved]
    follow = -reduced.projection[:, :, moved]
    shared = len(reduced.inverse) == 1 and reduced.columns.shape[1] > 0
    inverse = scaled.inverse if determined.all() else np.full_like(hessian, np.nan)
    if shared:
        error = np.sqrt(np.diag(reduced.inverse[0]))
        linear_size = np.where(error > 0, 1 / np.where(error > 0, error, 1.0), 1.0)
        inverse_of_scaling = reduced.inverse[0] * np.outer(linear_size, linear_size)
        nothing = np.zeros((len(size), len(inverse_of_scaling)))
        inverse = np.block([[inverse, nothing], [nothing.T, inverse_of_scaling]])
        A, C = _of_linear_params(reduced, moved)
        z = np.einsum("km,kz->kzm", reduced.columns, reduced.linear_gradient).reshape(bins, -1)
        blocks = np.block([[blocks, np.swapaxes(C, 1, 2)], [C, A]])
        scores = np.concatenate([scores, z], axis=1)
        own_columns = np.einsum("km,zy->kzym", reduced.columns, np.eye(2)).reshape(bins, 2, -1)
        follow = np.concatenate([follow, own_columns], axis=2)
        size = own_size = np.concatenate([size, linear_size])
    return JointEquations(
        reduced=reduced,
        moved=int(moved.sum()),
        linear=len(size) - int(moved.sum()),
        which=moved,
        hessian=hessian,
        values=scaled.values,
        vectors=scaled.vectors,
        determined=determined,
        inverse=inverse,
        blocks=blocks / (own_size[..., :, None] * own_size[..., None, :]),
        place=place,
        scores=scores / size,
        size=size,
        follow=follow / size,
        prior=_prior(reduced, moved, size),
    )


def solve_normal_equations(
    normal: Float[np.ndarray, "*group n n"], right: Float[np.ndarray, "*group n"], first: int
) -> tuple[Float[np.ndarray, "*group n"], Bool[np.ndarray, "*group"]]:
    """Return solutions, and whether they determine the first parameters."""
    # not to unit diagonal: what was subtracted may leave rounding there
    scaled = eigensystem(normal, np.ones(right.shape))
    determined = scaled.determined(SINGULAR_REST)[..., :first].all(-1)
    return (scaled.pseudoinverse(SINGULAR_REST) @ right[..., None])[..., 0], determined


def _prior(reduced: ReducedProblem, moved: Which, size: Vector) -> PriorEquations:
    terms, penalty, m = reduced.theta_prior, reduced.penalty, int(moved.sum())
    of_priors, normal, scores = (np.zeros((len(size), len(size))) for _ in range(3))
    gradient = np.zeros(len(size))
    if terms is not None:
        of_priors[:m, :m] = np.diag(terms.weight[moved] / size[:m] ** 2)
        gradient[:m] += terms.gradient[moved] / size[:m]
    if penalty is not None:
        block, sizes = np.ix_(moved, moved), np.outer(size[:m], size[:m])
        normal[:m, :m] = penalty.weight[block] / sizes
        scores[:m, :m] = penalty.score_variance[block] / sizes
        gradient[:m] += penalty.gradient[moved] / size[:m]
    return PriorEquations(of_priors + normal, gradient, of_priors + scores, of_priors)


def _of_linear_params(reduced: ReducedProblem, moved: Which) -> tuple[np.ndarray, np.ndarray]:
    M, columns, bins = reduced.normal, reduced.columns, len(reduced.count)
    determined = (reduced.count > 0) & ~reduced.undetermined
    contrast = np.where(determined, reduced.contrast, 0.0)
    A_k = M[:, Z, Z]
    B_k = M[:, Z, 3:] * contrast[:, None, None] - A_k @ reduced.projection
    n = 2 * columns.shape[1]
    A = np.einsum("km,kzy,kn->kzmyn", columns, A_k, columns).reshape(bins, n, n)
    C = np.einsum("km,kzp->kzmp", columns, B_k[:, :, moved]).reshape(bins, n, -1)
    return A, C


def equations_with_errors(search: Search, theta: Theta, reduced: ReducedProblem) -> JointEquations:
    """Return the equations of the parameters of which a fit that ends at theta knows errors.

    All free ones, those at a bound included: held there, errors would be those of the repeats in which the
    bound was reached. Only those inside their bounds where the data do not determine all together, or the
    optimum lies beyond a bound by more than any error.
    """
    inside = search.free_inside_bounds(theta)
    if not (inside == search.free).all():
        joint = joint_equations(reduced, search.free)
        held = np.append(~inside[search.free], np.zeros(joint.linear, bool))
        beyond = joint.inverse @ np.where(held, joint.gradient, 0.0)
        naive = deviation(np.diag(joint.inverse))
        far = np.abs(beyond[held]) > MOST_BEYOND * naive[held]
        if joint.determined.all() and not far.any():
            return joint
    return joint_equations(reduced, inside)
