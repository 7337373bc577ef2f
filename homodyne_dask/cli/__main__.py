"""`python -m homodyne_dask.cli`: the command line without the script homodyne-dask."""

from homodyne_dask.cli import main

main()
