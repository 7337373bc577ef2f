"""NeXus files of fits."""
