"""Negatives: mining, filtering, sampling, generation and diagnosis."""
