"""A pass over the data: planned, cut into tasks, computed on workers, summed in a fixed order."""
