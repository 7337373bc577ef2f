"""`make benchmark-peers`: the same data fitted by homodyne_dask, homodyne and a script that uses nlsq."""
