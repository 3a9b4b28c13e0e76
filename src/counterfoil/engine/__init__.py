"""The one pass over a score matrix, and what is read off it."""
