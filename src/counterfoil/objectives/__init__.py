"""Losses: pure functions of scores, one file per idea."""
