"""Names of the arrays of a fit, each with its shape, in the units of what it holds."""

import numpy as np
from jaxtyping import Bool, Float, Int

Theta = Float[np.ndarray, " p"]
"""Of each physical parameter; `Which`: of some of them."""
Which = Bool[np.ndarray, " p"]
ThetaMatrix = Float[np.ndarray, "p p"]
Moved = Float[np.ndarray, " m"]
MovedMatrix = Float[np.ndarray, "m m"]
Vector = Float[np.ndarray, " n"]
"""Of each parameter of a linear system, such as those that moved and the linear ones that bins share."""
Matrix = Float[np.ndarray, "n n"]
PerBin = Float[np.ndarray, " bin"]
SomeBins = Bool[np.ndarray, " bin"]
BinNumbers = Int[np.ndarray, " bin"]
"""A number for each bin: those of one number belong together."""
LinearParams = Float[np.ndarray, "bin 2"]
"""(offset - 1, contrast) of each bin, or the errors of offset and contrast."""
Moments = Float[np.ndarray, "bin k k"]
PerRate = Float[np.ndarray, " rate"]
PerCell = Float[np.ndarray, " cell"]
PerCounts = Float[np.ndarray, " mu"]
"""At each of several mean counts of a pixel in a frame."""
PerFrame = Float[np.ndarray, " t"]
Values = Float[np.ndarray, "..."]
