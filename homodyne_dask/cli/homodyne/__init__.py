"""For those who come from homodyne or xpcsjax: their configurations read, their files written."""
