"""Error estimation after the last pass."""
