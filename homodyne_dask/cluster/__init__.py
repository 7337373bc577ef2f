"""Workers: on this machine, on a running scheduler, or as jobs of a batch system."""
