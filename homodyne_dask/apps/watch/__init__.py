"""A watched folder: its files, what has become of each, and the fits of new ones."""
