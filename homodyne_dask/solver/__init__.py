"""From Gram matrices to a step and an answer: plain NumPy, without Dask or Zarr."""
