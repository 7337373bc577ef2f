"""A block of data and one theta become a Gram matrix per bin."""
