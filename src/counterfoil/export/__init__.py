"""Negatives and models in the files of other tools."""
