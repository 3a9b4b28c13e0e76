"""Weights between a pretrained model and the one that was fine-tuned from it (WiSE-FT)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from counterfoil.core.console import info
from counterfoil.model import MODEL, load_model
from counterfoil.pipelines.stages.base import Stage, models_content
from counterfoil.pipelines.state import RunContext
from counterfoil.training.interpolation import (
    ALPHAS,
    best_alpha,
    interpolate_models,
    load_original,
    rsum_by_alpha,
    save_interpolated,
)

WITHOUT_DEV = 0.5


@final
@dataclass(frozen=True, kw_only=True)
class Interpolate(Stage):
    """Average the weights of a model before and after a training. Writes a model folder.

    The share of the tuned weights is the one with the highest RSum on dev; 0.5 without a dev split.

    Attributes:
        original: the model that the training began with, as `counterfoil.model.load_model` opens
            it.
        tuned: stage of the training.
        alphas: shares to choose from.
    """

    kind: ClassVar[str] = "interpolate"
    takes: ClassVar[Mapping[str, str]] = {"tuned": "train"}
    original: str
    tuned: str
    alphas: tuple[float, ...] = ALPHAS

    def __post_init__(self) -> None:
        if not self.alphas or not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise ValueError(
                f"alphas={self.alphas}: shares of the tuned weights from 0 to 1 are needed"
            )

    def digest_content(self) -> dict[str, Any]:
        return {**models_content((self.original,)), "original": None}

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Choose the share on dev and save the interpolated model."""
        tuned = load_model(str(context.place(self.tuned)))
        original = load_original(self.original, tuned)
        dev, sums = context.dev, {}
        if dev is not None:
            sums = rsum_by_alpha(original, tuned, dev, self.alphas)
        without_dev = self.alphas[0] if len(self.alphas) == 1 else WITHOUT_DEV
        alpha = best_alpha(sums) if sums else without_dev
        place = context.place(self.name)
        origin = {"original": self.original, "tuned": self.tuned, "alpha": alpha}
        save_interpolated(interpolate_models(original, tuned, alpha), place / MODEL, origin, sums)
        chosen = f"RSum on dev {sums[alpha]:.1f}" if sums else "there is no dev split to choose on"
        info(f"{self.name}: {alpha:g} of the tuned weights ({chosen}), {place}")
