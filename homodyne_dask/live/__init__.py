"""A fit while it runs: progress, the page on Dask's dashboard, a notebook's cell."""
