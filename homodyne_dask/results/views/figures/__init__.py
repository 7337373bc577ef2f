"""Figures of a result."""

DPI = 150
"""Pixels per inch of a figure."""
