"""Migration from homodyne and xpcsjax: reads their configurations."""
