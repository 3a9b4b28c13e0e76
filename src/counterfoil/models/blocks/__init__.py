"""Encoders that several models share."""
