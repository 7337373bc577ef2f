"""Scaling: contrast and offset, and what tying them to each other claims.

Contrast and offset of a bin enter c2 = offset + contrast·f linearly. For any (D0, alpha, ...) their
best values follow exactly from sums over the data, so they cost no search, no first values and no time:
the search is over 3 or 7 parameters however many bins there are. The mode says which of them are tied:

    individual (default)   each bin has its own contrast and its own offset
    shared                 one contrast and one offset for all bins
    fourier1 ... fourier3  each a Fourier series in φ of that order, the same for all q
    fixed                  given values: --contrast 0.2 --offset 1, or one for each bin

`individual` claims nothing about the detector and is the default for that. The others are claims about
the experiment: that speckle size, coherence and background are the same in all bins, or vary slowly
with φ. A claim that holds makes errors smaller. One that does not puts the difference into the
physics: in the test scan of 23 angles and 300 frames whose contrast is 0.15 + 0.03·cos 2φ, `individual`
ends at χ²/N = 1.00, and `shared` at 1.47 with a D0 that is 20 % too large.

With several q in one fit remember that contrast and background also depend on q, which no mode
but `individual` allows for.

Every fit compares the modes by one step from its own optimum: the table "scaling" of the report
(`result.scalings`) has χ², AIC and BIC of each, and the largest move of a parameter in standard errors.
Read it so:

    a simpler mode has the lower AIC and BIC, and no parameter moves by more than about 1:
        it may be used; quote which
    a parameter moves by several standard errors:
        the claim does not hold; stay with individual and look at the picture of contrast against φ
    a bin shows "no decay":
        its contrast is unknown, it adds nothing to the parameters; this is no failure

A negative or absurd contrast of one bin points at its mask, not at the model. homodyne's names (`auto`,
`constant`, ...) are read with a note on what they become.
"""
