"""Models of the papers and of their tables, one file per model, with its checkpoint conversion."""
