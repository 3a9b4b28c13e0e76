"""timm, where it is installed, and the networks that it makes."""

from __future__ import annotations

from typing import Any

from torch import nn

PREFIX = "timm:"  # of names that this library builds itself from towers of timm


def library(what: str = "this") -> Any:
    """The package.

    Args:
        what: needs it, for the error.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import timm
    except ImportError as error:
        raise ValueError(f'{what} needs timm: pip install "counterfoil[vision]"') from error
    return timm


def network(name: str, *, pretrained: bool) -> nn.Module:
    """A network without its classifier.

    Raises:
        ValueError: timm is not installed, or cannot make it.
    """
    timm = library(f"the network {name!r}")
    try:
        made: Any = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except (RuntimeError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [repr(error)])[0]
        raise ValueError(f"timm cannot make {name!r}: {first}") from error
    assert isinstance(made, nn.Module)
    return made
