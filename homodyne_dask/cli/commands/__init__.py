"""The commands of homodyne-dask, one to a file."""
