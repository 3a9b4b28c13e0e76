"""What all writers of foils go by: when two captions are one, and chance that has a name."""

from __future__ import annotations

import hashlib
import re

import torch

_WORD = re.compile(r"\w+(?:[-']\w+)*")


def as_compared(text: str) -> str:
    """A caption's words, without case, points and blanks.

    >>> as_compared("A man's  T-shirt.")
    "a man's t-shirt"
    """
    return " ".join(_WORD.findall(text.lower()))


def dice(name: str) -> torch.Generator:
    """A random state that depends on a name only."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(digest)
