"""What ``make demo`` runs: both rounds of AOQ on rendered scenes, in minutes."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.recipes import aoq
from counterfoil.recipes.recipe import Recipe


def recipe() -> Recipe:
    """VSE++ on pixels of `scenes`: online triplet, mining, AdapOffQuin, side by side."""
    return replace(
        aoq.recipe("vsepp", "scenes"),
        name="demo",
        data="scenes",
        about="first light: train, mine, train again and compare on rendered scenes",
    )
