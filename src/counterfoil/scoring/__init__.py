"""Streaming passes over the score matrix, and the reducers that read it."""
