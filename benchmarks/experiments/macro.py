"""Foil accuracy by every kind alike: the claims, declared before their seeds are trained.

Macro is the mean of the accuracies of all kinds of edit, micro that of all foils. Intervals are
over seeds and images, and a claim is judged by those of dev and of test together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from benchmarks.experiments.tags import MODELS, OWN, RULES, WRITTEN, method
from benchmarks.truths.table import Claim
from counterfoil.recipes.base import MARGIN

RULE_FOILS, TAGS_FOILS = method(RULES, MARGIN), method(WRITTEN, MARGIN)
MICRO, MACRO, OTHERS, NUMBER, RSUM = "micro", "macro", "macro without number", "number", "RSum"


@final
@dataclass(frozen=True)
class Declared:
    """A claim about one model.

    Attributes:
        model: its title.
        claim: of its rows.
    """

    model: str
    claim: Claim


def _of(model: str) -> tuple[Claim, ...]:
    """What seeds 2 to 9 suggested or left open, of a model; the last ones hold of any."""
    limit = f"any gain of {model} by rule foils is below one point"
    return (
        Claim(f"Foils by rule teach {model} more than its own loss.", RULE_FOILS, OWN, MACRO),
        Claim(
            f"Foils of TAGS teach {model} less than those by rule.",
            TAGS_FOILS,
            RULE_FOILS,
            MACRO,
            "less",
        ),
        Claim(f"Foils by rule teach {model} number.", RULE_FOILS, OWN, NUMBER),
        Claim(f"Without number, {limit}.", OWN, RULE_FOILS, OTHERS, "level"),
        Claim(f"By the micro-average, {limit}.", OWN, RULE_FOILS, MICRO, "level"),
        Claim(f"Foils by rule cost {model} recall.", RULE_FOILS, OWN, RSUM, "less"),
    )


CLAIMS = tuple(
    Declared(model, claim) for model in reversed(MODELS.values()) for claim in _of(model)
)
