"""Fits of the rings or windows of a scan."""
