"""Data sets, their readers, transforms and tokenizers, and the phrases of captions."""
