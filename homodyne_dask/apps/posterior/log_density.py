"""The density that is sampled: adjusted likelihood times prior.

The likelihood is nearly normal in coordinates u, far around the optimum: there the amplitude, exponent and
offset of a rate a t^b + c are replaced by its values at three times (the valley of χ² that is curved in
(a, b, c) is straight in them), and other parameters of logarithmic scale count by their log. Chains move in
u, but for rates with priors of a, b or c: these priors have a density in u that is infinite at b = 0.

Pairs share frames and speckle, so the sum of squares is a composite log-likelihood: as if they were not
correlated, its curvature is several times too large. The vertical adjustment of Chandler and Bate (2007)
keeps its shape and makes its curvature at the optimum that of the covariance V of the standard errors: with
d the distance from the optimum,

    log L_A = (dᵀV⁻¹d / dᵀHd) · (log L - log L at the optimum).

V is cluster-robust or, with few independent bins, that of the speckle and counting noise. With too few
bins for all directions of a cluster-robust V only the size is adjusted, by tr(HV)/p (Pauli, Racugno and
Ventura 2011); with some more V is drawn toward that size, as if p bins more had shown it. The noise of
speckle has all directions from one bin on. V itself is estimated: a Gaussian likelihood becomes one of
Student's t, in Q = -2 log L_A proportional to (1 + Q/dof)^(-(dof + p)/2). Its degrees of freedom are those of
what is estimated: for V the smallest of all parameters, else those of the trace.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.apps.posterior.chains import Places, Roots, Values
from homodyne_dask.apps.posterior.priors import Prior, rate_draws
from homodyne_dask.errors import OptionError
from homodyne_dask.models.parameters import Search, Theta, Thetas
from homodyne_dask.models.rate_forms import PowerLaw
from homodyne_dask.request.options import SPECKLE_WEIGHTS
from homodyne_dask.request.request import Request
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver.covariance import SPECKLE, clusters_in, freedom_of_size, uncertainty
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.normal_matrix import inverse_of
from homodyne_dask.solver.reduce import ReducedProblem

_FOR_SOME, _FOR_ALL = 2, 3
"""Independent bins for each direction from which directions are adjusted: in part, and as V says."""
_MIN_ESTIMATED = 0.1
"""Share of a variance that the data cause and not a prior, below which its degrees of freedom are many."""


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of the free parameters x; functions take arrays of any leading axes."""

    theta: Theta
    """The optimum, with the values of fixed parameters."""
    free: Bool[np.ndarray, " p"]
    lower: Values
    """Of x; of a periodic parameter half a period from the optimum."""
    upper: Values
    log: Bool[np.ndarray, " u"]
    laws: tuple[PowerLaw, ...]
    """Rates of which the coordinates are values, by their place in x."""

    @property
    def x(self) -> Values:
        """At the optimum."""
        return self.theta[self.free]

    def to_theta(self, x: Thetas) -> Thetas:
        theta = np.tile(self.theta, (*x.shape[:-1], 1))
        theta[..., self.free] = x
        return theta

    def inside(self, x: Thetas) -> Bool[np.ndarray, "*n"]:
        """Return whether x is within its bounds; NaN is not."""
        return ((x >= self.lower) & (x <= self.upper)).all(-1)

    def from_x(self, x: Thetas) -> Thetas:
        u = np.where(self.log, np.log(np.where(self.log, x, 1.0)), x)
        for law in self.laws:
            u[..., law.places] = rate_values(law, x[..., law.places])
        return u

    def to_x(self, u: Thetas) -> Thetas:
        """Return x of its coordinates; NaN where no rate a t^b + c has these values."""
        with np.errstate(all="ignore"):  # the result is NaN or infinite
            x = np.where(self.log, np.exp(np.where(self.log, u, 0.0)), u)
            for law in self.laws:
                rises = np.diff(u[..., law.places])
                b = np.log(rises[..., 1] / rises[..., 0]) / np.log(law.ratio)
                a = rises[..., 0] / (law.first**b * np.expm1(b * np.log(law.ratio)))
                x[..., law.places] = np.stack(
                    [a, b, u[..., law.places[0]] - a * law.first**b], axis=-1
                )
        return x

    def slope(self) -> Roots:
        """Return the matrix ∂u/∂x at the optimum."""
        x = self.x
        matrix = np.diag(np.where(self.log, 1 / np.where(self.log, x, 1.0), 1.0))
        for law in self.laws:
            a, b, _ = x[list(law.places)]
            power = law.times**b
            columns = [power, a * power * np.log(law.times), np.ones(3)]
            matrix[np.ix_(law.places, law.places)] = np.stack(columns, axis=1)
        return matrix


def coordinates(search: Search, theta: Theta, laws: tuple[PowerLaw, ...]) -> Coordinates:
    """Return the coordinates of a fit that ended at theta; laws: the rates of which they are values."""
    free, place = search.free, np.cumsum(search.free) - 1
    laws = tuple(law._replace(places=tuple(int(place[n]) for n in law.places)) for law in laws)
    log = search.log[free] & (search.lower[free] > 0)
    log[[n for law in laws for n in law.places]] = False
    turn = np.outer([-0.5, 0.5], search.period[free]) + theta[free]
    bounds = np.stack([search.lower[free], search.upper[free]])
    lower, upper = np.where(np.isfinite(turn), turn, bounds)
    return Coordinates(theta, free, lower, upper, log, laws)


@dataclass(frozen=True)
class Adjustment:
    """How χ² becomes a log-likelihood."""

    kind: str
    """robust: it has the curvature of the covariance of stderr; magnitude: its size only, with too few
    independent bins for its directions; none: the naive posterior of uncorrelated noise."""
    note: str
    factor: float
    """χ² is divided by this, on average over directions."""
    dof: float
    """Of the t kernel; inf for a Gaussian likelihood."""
    centre: Values
    """Where the likelihood would be largest, were χ² quadratic and without bounds."""
    below: float
    """By how much χ² would be lower there than at the optimum."""
    hessian: Roots
    """H of ½χ² at the optimum."""
    precision: Roots
    """V⁻¹ where directions are adjusted, else H/factor."""

    def log_likelihood(self, u: Thetas, chisqr: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """Return the adjusted log-likelihood; chisqr: less that at the optimum."""
        q = (chisqr + self.below) / self.factor
        if self.kind == "robust":
            d = u - self.centre
            adjusted, raw = ((d @ form * d).sum(-1) for form in (self.precision, self.hessian))
            off_centre = raw > np.finfo(float).tiny  # from the centre, where the ratio is 0/0
            q = np.where(off_centre, q * self.factor * adjusted / np.where(off_centre, raw, 1.0), q)
        if np.isinf(self.dof):
            return -q / 2
        p = len(self.hessian)
        return -(self.dof + p) / 2 * np.log1p(np.maximum(q / self.dof, -0.5))


type _Width = tuple[str, float, float, Roots | None]
"""Note, factor and dof of an adjustment, and V of x where all directions are adjusted."""


def adjustment_of(
    request: Request, reduced: ReducedProblem, u: Coordinates, result: FitResult, adjust: str
) -> Adjustment:
    """Return the adjustment at the optimum; raises OptionError where only the naive error is known."""
    to_u = u.slope()
    to_x = np.linalg.inv(to_u)
    H = to_x.T @ reduced.hessian[np.ix_(u.free, u.free)] @ to_x
    gradient = to_x.T @ reduced.gradient[u.free]
    step = inverse_of(H) @ gradient
    independent = len(np.unique(request.clusters)) == len(
        request.clusters
    )  # no two see one speckle
    kind, factor, dof, V = "robust", 1.0, np.inf, None
    if request.options.weighting == SPECKLE_WEIGHTS and (independent or adjust == "none"):
        note = "the likelihood uses averages and the covariance of their speckle and counting noise"
    elif adjust == "none":
        kind, width = "none", "widths correspond to the naive errors"
        note = f"the noise of pairs is treated as uncorrelated: {width}"
    else:
        speckle = result.parameters.attrs["method"] == SPECKLE
        width_of = _width_of_speckle if speckle else _width_of_scatter
        note, factor, dof, V = width_of(request, reduced, u, result)
        kind = "magnitude" if V is None else kind
    precision = H / factor if V is None else inverse_of(to_u @ V @ to_u.T)
    centre, below = u.from_x(u.x) + step, float(step @ gradient)
    return Adjustment(kind, note, factor, dof, centre, below, H, precision)


def _width_of_speckle(
    request: Request, reduced: ReducedProblem, u: Coordinates, result: FitResult
) -> _Width:
    """Return the width of the speckle and counting noise.

    Its size alone where a parameter ended at a bound, or follows one that did.
    """
    assert result.covariance is not None
    free = request.search.free_inside_bounds(u.theta)
    prior = request.search.prior_terms(u.theta)
    finite = np.isfinite(np.diag(result.covariance.values)[free])
    naive = inverse_of(reduced.hessian[np.ix_(free, free)])[np.ix_(finite, finite)]
    places = np.flatnonzero(free)[finite]
    V, dof = result.covariance.values[np.ix_(places, places)], result.parameters["dof"].values
    dof = dof[places]
    if prior is not None:
        V, dof = _without_prior(naive, V, dof, prior.weight[places])
    factor, fewest = float(np.trace(inverse_of(naive) @ V)) / len(V), float(np.min(dof))
    if len(places) < u.free.sum():
        note = "widths correspond on average to the speckle and counting noise"
        return note, factor, fewest, None
    note = "widths and correlations correspond to the speckle and counting noise"
    return note, factor, fewest, V


def _without_prior(
    naive: Roots, of_fit: Roots, dof: Values, weight: Values
) -> tuple[Roots, Values]:
    """Return what the covariance of a fit and its degrees of freedom would be without the priors.

    naive: H⁻¹ of the data. weight: 1/sd² of the priors, Λ. The fit's is (H + Λ)⁻¹ (S + Λ) (H + Λ)⁻¹, S the
    covariance of the scores of the data; what is asked for is H⁻¹ S H⁻¹, in no direction below H⁻¹: where a
    prior is much narrower than the data, S is rounding.
    """
    joint_precision = inverse_of(naive) + np.diag(weight)
    root = np.linalg.cholesky(naive)
    ratios, vectors = np.linalg.eigh(
        root.T @ (joint_precision @ of_fit @ joint_precision - np.diag(weight)) @ root
    )
    of_data = (root @ vectors) * np.maximum(ratios, 1.0) @ (root @ vectors).T
    inverse = inverse_of(joint_precision)
    estimated = 1 - np.diag(inverse @ np.diag(weight) @ inverse) / np.diag(of_fit)
    from_data = estimated > _MIN_ESTIMATED
    return of_data, np.where(from_data, dof * np.where(from_data, estimated, 1.0) ** 2, np.inf)


def _width_of_scatter(
    request: Request, reduced: ReducedProblem, u: Coordinates, _: FitResult
) -> _Width:
    """Return the width of the scatter between bins, of which there are enough."""
    clusters, free = request.clusters, request.search.free_inside_bounds(u.theta)
    joint = joint_equations(reduced, free)
    errors = uncertainty(request.search.names, joint, clusters)
    both_moved, number, p = np.ix_(free, free), clusters_in(reduced, clusters), int(u.free.sum())
    if errors.robust is None or not np.isfinite(errors.robust[both_moved]).all():
        raise OptionError(
            "neither the scatter between bins nor speckle noise determines the width of the "
            "posterior (findings of the fit say why): sample a fit of 8 or more independent bins, or give "
            "adjust='none' for the naive posterior"
        )
    V, H = errors.robust[both_moved], reduced.hessian[both_moved]
    factor, of_size = float(np.trace(H @ V)) / len(V), freedom_of_size(joint, clusters)
    if number < _FOR_SOME * p or len(V) < p:
        note = f"widths correspond on average to the scatter between {number} independent bins"
        return note, factor, of_size, None
    note = f"widths and correlations correspond to the scatter between {number} independent bins"
    if number >= _FOR_ALL * p:
        return note, factor, float(np.nanmin(errors.dof)), V
    note += ", shrunk toward their mean size because there are few bins"
    return note, factor, of_size, (number * V + p * factor * inverse_of(H)) / (number + p)


class Target(NamedTuple):
    """Prior and adjustment of a posterior; χ² is given to it."""

    u: Coordinates
    """In which the likelihood is adjusted."""
    z: Coordinates
    """In which chains move: those of u whose rates have a prior of their own."""
    adjustment: Adjustment
    priors: tuple[Prior, ...]
    """Of the free parameters, in their order."""

    def log_prior(self, x: Places) -> Values:
        """Return the log density of the prior at free parameters, up to a constant."""
        of_rates, total = {n for law in self.z.laws for n in law.places}, np.zeros(len(x))
        for n in set(range(len(self.priors))) - of_rates:
            total += self.priors[n].log_density(x[:, n])
        for law in self.z.laws:
            total += log_volume(law, x[:, law.places])
            total -= 1.5 * np.log((rate_values(law, x[:, law.places]) ** 2).sum(1))
        return total

    def log_density(self, x: Places, chisqr: Values) -> Values:
        """Return the log density of z at x, up to a constant; chisqr: there, less that at the optimum."""
        total = self.adjustment.log_likelihood(self.u.from_x(x), chisqr) + self.log_prior(x)
        total += np.log(x[:, self.z.log]).sum(1)
        for law in self.z.laws:
            total -= log_volume(law, x[:, law.places])
        return total

    def prior_draws(self, n: int, rng: np.random.Generator) -> Thetas:
        x = np.column_stack([prior.sample(rng, n) for prior in self.priors])
        for law in self.z.laws:
            a, b, c = (self.priors[k] for k in law.places)
            x[:, law.places] = rate_draws(law, (a, b, c), n, rng)
        return self.u.to_theta(x)


def log_volume(law: PowerLaw, x: Float[np.ndarray, "n 3"]) -> Values:
    """Return the logarithm of |∂(J1, J2, J3)/∂(a, b, c)| = a (t2^b - t1^b)² r^b log r, but for log r."""
    rises = np.diff(law.times ** x[:, 1:2], axis=1)
    with np.errstate(divide="ignore"):
        return np.log(x[:, 0]) + np.log(np.abs(rises)).sum(1)


def rate_values(law: PowerLaw, x: Float[np.ndarray, "*at 3"]) -> Float[np.ndarray, "*at 3"]:
    """Return the rate of (a, b, c) at three times."""
    a, b, c = np.moveaxis(x[..., None], -2, 0)
    return a * law.times**b + c
