"""Results as people read them: text, files, pictures."""
