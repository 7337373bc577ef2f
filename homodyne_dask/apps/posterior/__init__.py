"""The posterior of a fit: draws from the likelihood of all pairs, adjusted for correlated noise."""
