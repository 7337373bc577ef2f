"""This machine and this process: cores, limits of cgroups, memory, threads, the code that runs."""
