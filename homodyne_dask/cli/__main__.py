"""python -m homodyne_dask.cli, where the script is not on the path."""

from homodyne_dask.cli import main

main()
