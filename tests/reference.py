"""The slow and obvious truth: dense NumPy, one bin and one matrix at a time.

Written from the formulas alone; it shares no code with the package. Derivatives are taken by the
complex step, exact to rounding. scipy's dense least squares finds the optimum.
"""

import numpy as np
import scipy.optimize

NAMES = ("D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0")


def integral(rate, time):
    total = np.zeros(len(time), rate.dtype)
    for i in range(1, len(time)):
        total[i] = total[i - 1] + 0.5 * (rate[i] + rate[i - 1]) * (time[i] - time[i - 1])
    return total


def floored(rate, floor):
    return np.where(rate.real < floor, floor, rate)


def f_physical(theta, time, q, phi, gap=None):
    """f(t1, t2) of one bin on all pairs t1 < t2, symmetric elsewhere."""
    dt = np.median(np.diff(time))
    t = np.where(time < dt / 2, dt / 2, time)
    C = integral(floored(theta[0] * t ** theta[1] + theta[2], 1e-10), time)
    f = np.exp(-(q**2) * (C[None, :] - C[:, None]))
    if len(theta) == 7:
        G = integral(theta[3] * t ** theta[4] + theta[5], time)
        x = 0.5 * q * gap * np.cos((theta[6] - phi) * np.pi / 180) * (G[None, :] - G[:, None])
        safe = np.where(np.abs(x) < 1e-6, 1.0, x)
        f = f * np.where(np.abs(x) < 1e-6, 1 - x * x / 6, np.sin(safe) / safe) ** 2
    return f


def f_homodyne(theta, time, q, phi, gap=None):
    dt = time[1] - time[0]
    t = np.where(time <= dt / 2, dt / 2, time)
    frames = np.arange(len(time), dtype=float)
    C = integral(floored(theta[0] * t ** theta[1] + theta[2], 1e-10), frames)
    dC = np.sqrt((C[None, :] - C[:, None]) ** 2 + 1e-12)
    g1 = np.exp(np.maximum(-0.5 * q**2 * dt * dC, -700))
    if len(theta) == 7:
        G = integral(floored(theta[3] * t ** theta[4] + theta[5], 1e-10), frames)
        dG = np.sqrt((G[None, :] - G[:, None]) ** 2 + 1e-12)
        x = q * gap * dt / (2 * np.pi) * np.cos((theta[6] - phi) * np.pi / 180) * dG
        small = np.abs(x) < 1e-4
        safe = np.where(small, 1.0, x)
        g1 = g1 * np.where(small, 1 - x**2 / 6 + x**4 / 120, np.sin(safe) / safe) ** 2
    return np.maximum(g1, 1e-10) ** 2


CONVENTIONS = {"physical": f_physical, "homodyne": f_homodyne}


def gradient(f, theta):
    """The derivatives of f by every parameter, by the complex step."""
    rows = []
    for p in range(len(theta)):
        shifted = np.array(theta, complex)
        step = 1e-30
        shifted[p] += 1j * step
        rows.append(f(shifted).imag / step)
    return np.array(rows)


def unsmoothed(theta, time):
    """ΔG² / (ΔG² + 1e-12): what the homodyne convention's ∂f/∂phi0 is short of (PHYSICS.md §3)."""
    dt = time[1] - time[0]
    t = np.where(time <= dt / 2, dt / 2, time)
    rate = floored(theta[3] * t ** theta[4] + theta[5], 1e-10)
    G = integral(rate, np.arange(len(time), dtype=float))
    square = (G[None, :] - G[:, None]) ** 2
    return square / (square + 1e-12)


def pairs_used(c2, min_lag):
    frames = np.arange(c2.shape[-1])
    return (frames[None, :] - frames[:, None] >= min_lag) & np.isfinite(c2)


def gram(
    theta, c2, time, q, phi, gap, sigma_row, min_lag=1, convention="physical", exact_phi0=False
):
    """(moments, count) of one bin: Xᵀ W X over all known pairs, X = [1, y - 1, f, ∂f/∂theta]."""
    model = lambda p: CONVENTIONS[convention](p, time, q, phi, gap)  # noqa: E731
    use = pairs_used(c2, min_lag)
    weight = 1 / (sigma_row[:, None] * sigma_row[None, :]) ** 2
    f, df = model(np.array(theta, float)), gradient(model, theta)
    if convention == "homodyne" and len(theta) == 7 and not exact_phi0:
        df[6] *= unsmoothed(np.asarray(theta, float), time)
    X = np.stack([np.ones(use.sum()), c2[use] - 1, f[use], *(d[use] for d in df)], axis=1)
    return X.T @ (weight[use][:, None] * X), int(use.sum())


def bin_residual(theta, contrast, offset, c2, time, q, phi, gap, sigma_row, min_lag, convention):
    f = CONVENTIONS[convention](theta, time, q, phi, gap)
    sigma = sigma_row[:, None] * sigma_row[None, :]
    return ((c2 - offset - contrast * f) / sigma)[pairs_used(c2, min_lag)]


def by_complex_step(residual):
    """The derivatives of residuals, exact but for rounding."""

    def jacobian(x):
        steps = 1e-30j * np.eye(len(x))
        return np.stack([residual(x + step).imag / 1e-30 for step in steps], axis=1)

    return jacobian


def dense_fit(start, data, scaling="individual", min_lag=1, convention="physical"):
    """The joint least squares over theta and every contrast and offset; scipy does the work.

    data: a list of (c2, time, q, phi, gap, sigma_row). Returns (theta, contrast, offset, chisqr).
    """
    p, k = len(start), len(data) if scaling == "individual" else 1
    size = np.maximum(np.abs(np.asarray(start, float)), 1e-3)

    def residual(x):
        theta, contrast, offset = x[:p] * size, *np.tile(x[p:].reshape(2, k), len(data) // k)
        each = zip(contrast, offset, data, strict=True)
        return np.concatenate(
            [bin_residual(theta, a, b, *part, min_lag, convention) for a, b, part in each]
        )

    x0 = np.concatenate([np.asarray(start) / size, np.full(k, 0.2), np.ones(k)])
    exact = {"method": "lm", "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    with np.errstate(all="ignore"):  # far from the optimum it may try anything
        best = scipy.optimize.least_squares(residual, x0, by_complex_step(residual), **exact)
    return best.x[:p] * size, best.x[p : p + k], best.x[p + k :], 2 * best.cost


LOSSES = {
    "huber": lambda z: np.where(z <= 1, [z, 1 + 0 * z], [2 * np.sqrt(z) - 1, z**-0.5]),
    "soft_l1": lambda z: [2 * (np.sqrt(1 + z) - 1), 1 / np.sqrt(1 + z)],
    "cauchy": lambda z: [np.log1p(z), 1 / (1 + z)],
}
"""rho(z) and its derivative."""


def robust_gram(theta, linear_params, part, min_lag, loss, f_scale):
    """(moments, twice the cost, count) of one bin, (offset - 1, contrast) = linear_params."""
    c2, time, q, phi, gap, sigma_row = part
    model = lambda p: f_physical(p, time, q, phi, gap)  # noqa: E731
    use = pairs_used(c2, min_lag)
    sigma = (sigma_row[:, None] * sigma_row[None, :])[use]
    r = bin_residual(theta, linear_params[1], 1 + linear_params[0], *part, min_lag, "physical")
    with np.errstate(divide="ignore"):
        rho, slope = LOSSES[loss]((r / f_scale) ** 2)
    f, df = model(np.array(theta, float))[use], [d[use] for d in gradient(model, theta)]
    X = np.stack([np.ones(use.sum()), c2[use] - 1, f, *df], axis=1)
    return X.T @ ((slope / sigma**2)[:, None] * X), f_scale**2 * rho.sum(), int(use.sum())


def linear_for_the_last(loss, rows):
    """scipy's callable: rho, rho' and rho'' by z; the last rows, those of priors, count as squares."""

    def rho(z):
        values, slope = np.array(LOSSES[loss](z))
        step = 1e-6 * np.maximum(z, 1e-6)
        bend = (LOSSES[loss](z + step)[1] - slope) / step
        found = np.array([values, slope, bend])
        if rows:
            found[:, -rows:] = z[-rows:], np.ones(rows), np.zeros(rows)
        return found

    return rho


def robust_fit(
    start, data, columns, linear_params, loss, f_scale, limits=None, prior=(), of_theta=()
):
    """The joint fit under a loss; scipy does the work. Returns (theta, offset, contrast, cost).

    Bin k has (offset - 1, contrast) = linear_params[k] plus columns[k] times what is free of
    each; the search starts there, too. limits: (low, high) of (offset - 1, contrast). prior: rows (bin, part,
    mean, standard deviation), part 0 for the offset - 1, 1 for the contrast. of_theta: rows (parameter, mean,
    standard deviation).
    """
    p, m = len(start), columns.shape[1]
    size = np.asarray(start, float)

    def of_bins(x):
        free = np.stack([columns @ x[p : p + m], columns @ x[p + m :]], axis=1)
        return x[:p] * size, linear_params + free

    def residual(x):
        theta, each = of_bins(x)
        parts = [
            bin_residual(theta, each[b, 1], 1 + each[b, 0], *part, 1, "physical")
            for b, part in enumerate(data)
        ]
        known = [(each[b, part] - mean) / sd for b, part, mean, sd in prior]
        known += [(theta[at] - mean) / sd for at, mean, sd in of_theta]
        return np.concatenate([*parts, np.array(known)])

    options = {"loss": loss}
    if limits is not None:  # columns are those of one bin each, or all ones
        first = np.array([linear_params[np.argmax(column)] for column in columns.T])
        edges = [np.concatenate([np.full(p, end), *(limit - first).T])
                 for end, limit in zip((-np.inf, np.inf), np.array(limits), strict=True)]  # fmt: skip
        options |= {"bounds": edges, "method": "dogbox"}
    if loss != "linear" and (known := len(prior or ()) + len(of_theta)):
        options["loss"] = linear_for_the_last(loss, known)
    x = np.append(np.ones(p), np.zeros(2 * m))
    for _ in range(2):  # the second goes on where the first sees no more gain
        best = scipy.optimize.least_squares(
            residual, x, by_complex_step(residual), x_scale="jac", f_scale=f_scale, xtol=1e-15, ftol=1e-15,
            gtol=1e-15, max_nfev=400, **options,
        )  # fmt: skip
        x = best.x
    theta, each = of_bins(x)
    return theta, 1 + each[:, 0], each[:, 1], best.cost
