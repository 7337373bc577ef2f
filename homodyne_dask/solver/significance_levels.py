"""How few and how improbable: the limits by which a fit says that something is known, or is no chance."""

MIN_CLUSTERS = 8
"""Clusters of bins, with fewer of which no error is estimated from their scatter."""
MIN_FREEDOM = 4.0
"""Degrees of freedom of a cluster-robust error, below which it is often several times too small."""
MIN_CLUSTERS_OF_RATES = 3
"""Clusters with fewer of which their scores do not tell φ, on which the strength of smoothing depends: a
strength is needed to a factor, an error to some percent."""
MIN_BLOCKS = 6
"""Blocks into which frames are cut at least, in which a decay is sought: they give no error bar."""
IMPROBABLE = 1e-4
"""Probability below which noise is not that of speckle and counting, and a trend of contrast is no chance."""
LEVEL_OF_ALTERNATIVES = 0.005
"""Probability that a right model is called wrong by a named alternative, by Bonferroni's bound over names and
all of each name."""
LEVEL_OF_MISFIT = 0.005
"""Probability that a right model is called wrong by means of residuals, by Bonferroni's bound over them."""
LEVEL_OF_DECAY = 0.01
"""Probability that noise alone is taken for a decay."""
