"""Libraries that only some features need, imported when these are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def optional_import(module: str, needs: str) -> Any:
    """Import a module; where it is not installed, the error says what needs it and how to get it.

    Raises:
        ValueError: with the text `needs`, as in 'features of timm need timm: pip install timm'.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(needs) from None
