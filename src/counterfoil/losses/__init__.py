"""Losses: pure functions of scores, one file per family."""
