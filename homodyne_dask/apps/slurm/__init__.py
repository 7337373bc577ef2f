"""Workers as jobs of a batch system: sites, job scripts, adaptive clusters, persistent schedulers."""
