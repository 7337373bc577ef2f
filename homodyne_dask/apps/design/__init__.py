"""Errors that a planned scan will give."""
