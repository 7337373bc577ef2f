"""Files of ESRF's correlators of known truth, and the slow least squares over their cells."""

import h5py
import numpy as np
import scipy.optimize

from tests import reference


def edges(n: int, ages: int, decade: int, lags: int):
    """The edges of age and lag of n frames as the correlator makes them, in frames."""
    lag = np.concatenate([np.arange(10**decade) - 0.5, np.logspace(decade, np.log10(n - 1), lags)])
    lag[-1] = n - 1
    return np.linspace(0, n - 1, ages + 1), lag


def averaged(c2: np.ndarray, ages: int, decade: int, lags: int):
    """Average full matrices over cells of age and lag as their correlator does; times in frames."""
    n = c2.shape[-1]
    t2, t1 = np.indices((n, n))
    lag, age = t2 - t1, (t1 + t2) / 2
    age_edges, lag_edges = edges(n, ages, decade, lags)
    use = lag >= 0
    cells = (age[use], lag[use])
    count = np.histogram2d(*cells, bins=(age_edges, lag_edges))[0]
    with np.errstate(invalid="ignore"):
        bins = (age_edges, lag_edges)
        sums = [np.histogram2d(*cells, bins=bins, weights=matrix[use])[0] for matrix in c2]
        ttcf = np.stack(sums) / count
    split = np.searchsorted(lag_edges, 10**decade)
    middle = 0.5 * (lag_edges[1:] + lag_edges[:-1])
    root = np.sqrt(np.maximum(lag_edges[1:] * lag_edges[:-1], 0))
    lags_ = np.where(np.arange(len(middle)) < split, middle, root)
    return ttcf, 0.5 * (age_edges[1:] + age_edges[:-1]), lags_, count


def esrf(path, ttcf, age, lag, q=(0.05, 0.1), analysis="full", old=False):
    """Write the layout that XPCSUtilities reads, its second version or the one before."""
    base = "entry_0000/dynamix/correlations/directions" if old else "entry_0000/correlations"
    where = f"{base}/{analysis}/{'2times_correlation' if old else 'twotime'}"
    with h5py.File(path, "a") as file:
        file.attrs["MagicString"] = "XPCSResultFile_v2.0"
        file[f"{where}/ttcf"] = ttcf
        file[f"{where}/age"] = age
        file[f"{where}/{'timeshift' if old else 'lag'}"] = lag
        if not old:
            file[f"{base}/{analysis}/parameters/q"] = list(q)
            file[f"{base}/{analysis}/roi_masks"] = np.ones((2, 5, 7), dtype=bool)
    return path


def members(n: int, ages: int, decade: int, lags: int) -> np.ndarray:
    """(cell, i, j): which pairs are in which cell, for the cells that hold pairs."""
    i, j = np.triu_indices(n, 1)
    of_age, of_lag = edges(n, ages, decade, lags)
    inside = np.zeros((ages, len(of_lag) - 1, n, n), bool)
    for a in range(ages):
        for b in range(len(of_lag) - 1):
            x, y = (i + j) / 2, j - i
            age = (x >= of_age[a]) & ((x < of_age[a + 1]) | (a == ages - 1))
            lag = (y >= of_lag[b]) & ((y < of_lag[b + 1]) | (b == len(of_lag) - 2))
            inside[a, b, i[age & lag], j[age & lag]] = True
    inside = inside.reshape(-1, n, n)
    return inside[inside.any((1, 2))]


def mean_over(inside: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.array([values[cell].mean() for cell in inside])


def cell_columns(theta, c2, inside, time, q, phi, gap=None, convention="physical"):
    """X = [1, y - 1, f, ∂f/∂theta] of the means over cells (x, cell), and the pairs of each."""
    model = lambda p: reference.CONVENTIONS[convention](p, time, q, phi, gap)  # noqa: E731
    theta = np.asarray(theta, float)
    gradient = reference.gradient(model, theta)
    if convention == "homodyne":
        gradient[6] *= reference.unsmoothed(theta, time)
    fields = [np.ones_like(c2), c2 - 1, model(theta), *gradient]
    return np.array([mean_over(inside, one) for one in fields]), inside.sum((1, 2))


def cells_fit(start, data, loss="linear", f_scale=1.0, full=lambda theta: theta):
    """The joint least squares of means over cells; scipy does the work.

    data: a list of (c2 by cell, inside, time, q, sigma of a pair), phi = 0, static model.
    full: the parameters of the model from those that are free. Returns (theta, contrast, offset, twice
    the cost, naive errors of theta).
    """
    p, k, size = len(start), len(data), np.asarray(start, float)

    def residual(x):
        parts = []
        for b, (y, inside, time, q, sigma) in enumerate(data):
            f = mean_over(inside, reference.f_physical(full(x[:p] * size), time, q, 0.0))
            root = np.sqrt(inside.sum((1, 2))) / sigma
            parts.append((y - x[p + k + b] - x[p + b] * f) * root)
        return np.concatenate(parts)

    jacobian = reference.by_complex_step(residual)
    x = np.concatenate([np.ones(p), np.full(k, 0.2), np.ones(k)])
    for _ in range(2):
        best = scipy.optimize.least_squares(
            residual, x, jacobian, x_scale="jac", loss=loss, f_scale=f_scale,
            xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=200,
        )  # fmt: skip
        x = best.x
    J = jacobian(x)
    error = np.sqrt(np.diag(np.linalg.inv(J.T @ J)))[:p] * np.abs(size)
    return x[:p] * size, x[p : p + k], x[p + k :], 2 * best.cost, error
