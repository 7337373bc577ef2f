"""Results on disk: folders, JSON, CSV, netCDF, NeXus."""
