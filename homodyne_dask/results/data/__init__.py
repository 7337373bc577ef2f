"""Results as values and tables: they know no picture, HTML or file."""
