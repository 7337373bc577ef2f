"""The Zarr store: its schema, and a scan opened and selected from it."""
