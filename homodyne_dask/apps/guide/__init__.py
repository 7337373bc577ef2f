"""The user guide, and the command that prints it."""
