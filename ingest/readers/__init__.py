"""One file for each format of measured two-time matrices, and what they share."""
