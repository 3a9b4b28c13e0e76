"""Experiments as data, and the one verb that runs them."""
