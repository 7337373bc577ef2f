"""χ² near an optimum without passes: draws around it, f at a sample of pairs, Grams by interpolation."""
