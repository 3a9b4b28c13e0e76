"""Data sets: readers, features, images, tokenizers and batching."""
