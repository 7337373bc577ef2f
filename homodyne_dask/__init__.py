"""Fit transport models to X-ray two-time correlations, chunk by chunk, on Dask."""
