"""Modules under their former names: `homodyne_dask.NAME` finds each module NAME of this folder."""
