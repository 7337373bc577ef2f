"""The command doctor: checks of the machine, the environment and the rate of the kernel."""
