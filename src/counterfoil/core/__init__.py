"""Foundations that every other package may import: console, artifacts, resumable work, literals."""
