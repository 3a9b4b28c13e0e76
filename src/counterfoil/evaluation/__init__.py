"""Metrics, protocols and intervals of retrieval."""
