"""Results as people read them: text, HTML, figures."""
