"""Least squares of any function over any dataset."""
