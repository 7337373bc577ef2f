"""Whether a fitted model describes the data: the test of averaged residuals, as numbers."""

from typing import NamedTuple

from homodyne_dask.solver.significance_levels import IMPROBABLE


class Alternative(NamedTuple):
    """What explains the deviations of a model from the data, by a score test."""

    name: str
    """rate, jump, stretching, lag, power_of_q, shear, contrast_drift, baseline, own_average, bin, frames,
    frame or smoothness."""
    place: tuple[int | str, ...]
    """What it is of: (label,) of a bin, or (label, scan) in one of several scans; the first frame and the
    last; the frame of a jump; (rate,); or ()."""
    size: float
    """One step from the fit, about: of the exponent, of the power of q, of a rate, of the contrast."""
    share: float
    """The largest change of c2 by it that no parameter of the model could make, over the contrast."""
    p_value: float
    """Probability of so large a score of any alternative if the model is right."""


LARGEST_P, SMALLEST = IMPROBABLE, 0.05
"""p below which, and deviation from 2 above which, rates scale with another power of q."""


class PowerOfQ(NamedTuple):
    """The power of q with which rates scale, by the score test of it, and the test whether it is 2."""

    power: float
    """2 and one step from the fit: far from 2 it is about right only."""
    stderr: float
    """From the speckle and counting noise."""
    dof: float
    """Degrees of freedom of the size of that noise."""
    p: float
    """Probability of so much from 2 if rates scale as q²."""

    @property
    def differs(self) -> bool:
        """Whether rates do not scale as q²."""
        return self.p < LARGEST_P and abs(self.power - 2) > SMALLEST


class ModelCheck(NamedTuple):
    """The means of residuals over cells of age and lag against what counted photons allow.

    Each cell is tested in every bin, in the mean of the bins of each q, and in that of all.
    """

    tests: int
    """Number of means tested."""
    threshold: float
    """Standard errors that no mean exceeds in 199 of 200 fits of a right model, by what is known of the noise
    of the one that deviates most."""
    deviating: int
    """Number of means beyond it."""
    largest: float
    """The largest deviation, in standard errors."""
    where: str
    """Of the largest deviation: 'all bins', 'the bins at q = 0.004 1/Å' or 'the bin labelled 5'."""
    age: tuple[float, float]
    """Its ages, s."""
    lag: tuple[float, float]
    """Its lags, s."""
    residual: float
    """c2 - model there."""
    share: float
    """The same over the contrast."""
    depends_on: str
    """What the deviations depend on most: q, bin, age or lag."""
    p_of_largest: float = 1.0
    """Probability of so large a deviation of any mean if the model is right, by Bonferroni's bound."""
    p_value: float | None = None
    """Probability of so large a χ² of the means over cells, made uncorrelated, if the model is right."""
    alternative: Alternative | None = None
    """What explains the deviations best; None where nothing that has a name does."""

    @property
    def misfit(self) -> bool:
        """Whether the model does not describe the data."""
        return self.deviating > 0 or self.alternative is not None

    @property
    def p(self) -> float:
        """Probability of the misfit, the less of those of a mean and of an alternative."""
        of_means = self.p_of_largest if self.deviating else 1.0
        return of_means if self.alternative is None else min(of_means, self.alternative.p_value)
