"""Errors: what the error bars mean, and when there are none.

Every pair of frames is counted once: counting c2(t1, t2) and c2(t2, t1) as two doubles χ² and makes
errors smaller by √2. Three kinds of error bars stand in a result:

stderr (column "value ± stderr") is cluster-robust, CR2 with the bin as the cluster. Pairs of one bin
share frames and speckle, so they are correlated, by how much nobody knows; bins are independent of each
other. CR2 takes the scatter of what the bins say, corrected for the pull of each on the fit. Bins of one
q that are 180° apart see the same speckle and are one cluster. It needs 8 clusters and is absent with
fewer. It does not depend on σ being right in size.

Because it rests on few bins it has few degrees of freedom of its own (Bell and McCaffrey; column dof of
parameters.csv). A 95 % interval is value ± t·stderr, with t for 2, 4, 8 and 20 degrees of freedom

>>> from scipy.stats import t
>>> [round(float(t.ppf(0.975, dof)), 1) for dof in (2, 4, 8, 20)]
[4.3, 2.8, 2.3, 2.1]

instead of 1.96; below 2 the report says that the error rests on one or two bins. On counted photons of
known motion (`make benchmark`) intervals of 68 % and 95 % hold the truth in 60 to 76 and 90 to 99.5 %
of repeats; with contrast and offset `shared` by 10 angles 62 and 89.5 %, from 14 angles on as the others.

naive error is the square root of the diagonal of (JᵀWJ)⁻¹. It is right for white noise of the stated σ,
which simulated noise may be and speckle is not: for slow dynamics it is several times too small. It is
for comparison. (stderr/naive)² is the design effect: how many pairs are worth one. Under a loss it is the
sandwich of M-estimators for white noise: (JᵀWJ)⁻¹ times the mean of ψ² over the square of the mean of ψ',
ψ being what the loss makes of a residual, from all pairs, so that outliers count as the loss leaves them.

at least (`result.covariance_lower`) comes with fewer than 8 clusters, from one more pass: dyadic-robust
over blocks of frames. The true error is that or larger. Where even it is smaller than the naive error,
the naive one is the better bound.

None of them knows of a wrong model. A reduced χ² far from 1 with σ from counts, or residuals with a
pattern, says that the error bars answer another question than yours. `result.influence` says how many
standard errors each parameter moves when one bin is left out. A parameter at a bound has no error, and
those of the others hold with it there. An error that is not known is absent ("-", an empty cell, null),
never zero.

σ from counts is that of pairs far apart; pairs that still see the same speckle are noisier, at f = 1
1.5 times in variance with a contrast of 1/3 and 2 counts per pixel. Reduced χ² is 1.00 in a record of
many memories, 1.06 where the mean of f over all pairs is 0.2, and a few per cent more with fewer than
some hundred counts per bin and frame.

A series (`fit --over q`) asks of independent fits whether they agree: χ² about the weighted mean, and p,
the probability of as much scatter by chance, allowing for the degrees of freedom (Welch). With errors
that are too small p is too small: a rejection then says little, an agreement stands.
"""
