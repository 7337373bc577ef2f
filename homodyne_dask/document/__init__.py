"""Documents: sections of sentences, tables and figures, shown as text, as a page and in notebooks."""
