"""Workers as jobs of a batch system: sites, keys, job scripts, clusters that heal, standing schedulers."""
