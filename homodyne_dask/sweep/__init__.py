"""A pass over the data: planned, cut into tasks, computed on workers and summed in a fixed order."""
