"""Figures that a training hangs on."""

from __future__ import annotations

import math
from collections.abc import Mapping

from counterfoil.core.literals import parse_choice

IMAGES = "images"  # how many were drawn of dev, where they are not all


def sampled(dev: Mapping[str, float]) -> str:
    """On how many images dev figures are measured, to stand behind them; empty for all of dev."""
    return f" on {dev[IMAGES]:,.0f} images" if IMAGES in dev else ""


def finite(losses: Mapping[str, float], step: int) -> None:
    """Stop a training that broke down.

    Raises:
        ValueError: a loss is no number.
    """
    if bad := [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]:
        raise ValueError(
            f"training broke down by step {step}: {', '.join(bad)}; use a lower learning rate or "
            "a longer warm-up, and look for NaN features with `counterfoil data check`"
        )


def chosen(dev: Mapping[str, float], select: str) -> float:
    """The dev figure that an epoch is chosen by.

    Raises:
        ValueError: there is none of this name, or it is no number.
    """
    parse_choice(dev, select, "a dev figure to select by")
    if math.isnan(dev[select]):
        raise ValueError(
            f"the dev figure {select!r} is not a number, so no epoch can be chosen by it"
        )
    return dev[select]
