"""The posterior of a fit: its draws, tables, files and pictures."""
