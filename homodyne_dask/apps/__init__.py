"""Applications, each in a folder of its own, that stand on the library; the library imports none of them.

It finds them by entry points (`homodyne_dask.plugins`) and by lazy public names (`homodyne_dask.__init__`).
"""
