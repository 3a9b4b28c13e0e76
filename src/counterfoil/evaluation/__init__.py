"""Evaluation: metrics, protocols, intervals, foils and explanations."""
