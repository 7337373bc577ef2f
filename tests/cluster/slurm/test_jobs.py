"""Jobs of a real SLURM as workers."""
