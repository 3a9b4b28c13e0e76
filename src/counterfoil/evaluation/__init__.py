"""Metrics, protocols, bootstrap intervals, foil sets and explanations."""
