"""Migration from homodyne and xpcsjax: reads their configurations, writes homodyne's output files."""
