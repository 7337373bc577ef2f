"""Undetermined: what to do with a parameter that the data do not determine.

The report names such parameters first, in three degrees:

    "the data do not determine D_offset"
        nothing in the data depends on it; the fit ends as SINGULAR, exit status 3
    "D_offset and alpha are almost undetermined: fix one, or report only what they give together"
        a direction of the fit is flat to 1 part in 10 million
    "D_offset and alpha are determined only in combination (correlation -0.9951)"
        each has an error bar, but only with its covariance it means something

The usual cause is time: a power law and a constant look alike over one decade. In a static scan of 300
frames over 100 s with J = 2500·t^-0.3 + 100, the naive error of alpha is 8.0 times larger with D_offset
free than with it held, and the two have a correlation of -0.992. The fit is as good either way: what is
known is J(t), not its parts. So, in this order:

1. Ask whether you need the parts. The band of J(t) and γ̇(t) in the picture of the rates, and J and γ̇ at
   the mean age in a series (`--over q`, `--over age`), are well known where D0, alpha and D_offset are
   not: their errors come from the whole covariance.
2. Hold what you know: `--fixed D_offset=0`, alpha = 0 for a sample in equilibrium. A held value is a
   claim; say it. `--bounds` are no substitute: a fit that ends at a bound is one with the value held
   there, and says so.
3. Give more: other angles for phi0 and γ̇ (at φ at right angles to the flow there is no shear), longer
   records or several q for D_offset, shorter lags (`--min-lag 1`) for a fast decay.
4. Follow χ² along it: `--profile-of D_offset` fits the others anew at one and two standard errors on
   both sides. A profile that stays flat on one side gives a limit, not a value: quote "D_offset < ...".
5. Quote the combination: `result.identifiability` holds the eigenvectors of the Hessian of unit diagonal,
   the flattest first; large parts of the first name what trades against what. With `result.covariance`
   any function of the parameters has its error.

γ̇ needs an angle at which shear decays f before diffusion does. Where it does not, gamma_dot_t0 runs to
its lower bound, and what is known is an upper limit. phi0 is known only up to half a turn. Where q is
unknown, only q²·D0 and q²·D_offset are determined, in 1/s.

A value from a fit that did not converge (any outcome but CONVERGED) is where it stopped, not a result.
"""
