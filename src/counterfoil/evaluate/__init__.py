"""Retrieval metrics, protocols and reports."""
