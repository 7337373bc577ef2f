"""What `homodyne-dask doctor` checks: machine, environment, rates, and whether a local cluster starts."""
