"""Verbs of the laboratory."""
