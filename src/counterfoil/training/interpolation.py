"""Interpolation between a model's weights before and after fine-tuning.

WiSE-FT (Wortsman et al., CVPR 2022, https://arxiv.org/abs/2109.01903): every tensor is
``(1 - alpha) original + alpha tuned``. Fine-tuning on some photos forgets a part of what the model
could do before; weights in between often keep more of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from counterfoil.core import distributed
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.loading import starts_untrained
from counterfoil.model import Model, load_model
from counterfoil.models.base import SupportsLoRA
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.saved import save_model

ALPHAS = tuple(tenth / 10 for tenth in range(11))


def load_original(name: str, tuned: Model) -> Model:
    """Open the model that a training began with, with stretched text positions where it had."""
    call = tuned.spec.arguments if tuned.spec else {}
    return load_model(name, long_captions=bool(call.get("positions")))


def interpolate_models(original: Model, tuned: Model, alpha: float) -> Model:
    """A model with the weights (1 - alpha) original + alpha tuned; LoRA is merged first."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} is not between the two; give 0 (original) to 1 (tuned)")
    _check_pair(original, tuned)
    assert tuned.spec is not None
    spec, model, before = tuned.spec, deepcopy(tuned.model), deepcopy(original.model)
    for part in (model, before):
        if isinstance(part, SupportsLoRA) and part.lora:
            part.merge()
    if "lora" in spec.arguments and isinstance(model, SupportsLoRA):
        spec = spec.replace(lora=0)
    tuned_state, original_state = model.state_dict(), before.state_dict()
    states = tuned_state, original_state
    tuned_shapes, shapes = ({name: t.shape for name, t in state.items()} for state in states)
    if tuned_shapes != shapes:
        raise ValueError(
            f"{tuned.name} does not have the weights of {original.name}: one has to come from the "
            "other by training; name the model that its training began with"
        )
    model.load_state_dict(
        {name: _lerp(original_state[name], t, alpha) for name, t in tuned_state.items()}
    )
    return replace(tuned, model=model.eval(), name=f"alpha {alpha:g}", spec=spec)


def rsum_by_alpha(
    original: Model, tuned: Model, dev: ImageTextDataset, alphas: Sequence[float] = ALPHAS
) -> dict[float, float]:
    """Return the RSum on dev of the interpolated weights, by the share of the tuned ones."""
    return {
        alpha: evaluate_protocol([interpolate_models(original, tuned, alpha).embed(dev)], dev).rsum
        for alpha in alphas
    }


def best_alpha(sums: Mapping[float, float]) -> float:
    """Return the share with the highest RSum; of equal ones the smallest."""
    return max(sums, key=lambda alpha: (sums[alpha], -alpha))


def save_interpolated(
    model: Model, folder: Path, origin: Mapping[str, object], sums: Mapping[float, float]
) -> None:
    """Save a result of `interpolate_models` with its `origin` and the RSum on dev that chose it.

    Collective: every process calls this, the first one writes.
    """
    assert model.spec is not None
    assert model.processor is not None
    assert model.card is not None
    tried = {f"{alpha:g}": rsum for alpha, rsum in sums.items()}
    if distributed.rank() == 0:
        save_model(
            folder,
            spec=model.spec,
            model=model.model,
            processor=model.processor,
            provenance={**model.card.provenance, "interpolated": {**origin, "dev_rsum": tried}},
            metrics={"rsum": max(sums.values())} if sums else {},
        )
    distributed.barrier()


def _check_pair(original: Model, tuned: Model) -> None:
    """Refuse two models between whose weights there is nothing."""
    if tuned.spec is None or tuned.processor is None or tuned.card is None:
        raise ValueError(f"{tuned.name} is no saved model; name a model that training has saved")
    if isinstance(tuned.model, FrozenWithAdapters):
        raise ValueError(
            f"{tuned.name} has frozen towers, whose weights are those of the original: there is "
            "nothing in between; tune all of a model, or with lora"
        )
    if starts_untrained(original.name):
        raise ValueError(
            f"{original.name} begins with weights at random, so there is nothing between it and "
            f"{tuned.name}; name a pretrained model that training began with"
        )
    processor = original.processor
    if processor is None or processor.image_processor != tuned.processor.image_processor:
        raise ValueError(
            f"{tuned.name} preprocesses images in another way than {original.name}; name the model "
            "that its training began with"
        )


def _lerp(before: Tensor, after: Tensor, alpha: float) -> Tensor:
    if not after.is_floating_point():
        return after
    return before.to(after).lerp(after, alpha)
