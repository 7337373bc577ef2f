"""Initial values, searched in the data."""
