"""Readers: one file for each format of measured two-time matrices, and their common functions."""
