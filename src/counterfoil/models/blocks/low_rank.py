"""Low-rank adapters on the attention of a pretrained model (LoRA, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

ATTENTION = r".*\.self_attn\.(q_proj|k_proj|v_proj|out_proj)"
_FROZEN, _ADDED = ".base_layer.", ".lora_"


def with_adapters(body: nn.Module, rank: int, where: str = ATTENTION) -> nn.Module:
    """The model, whose attention projections now learn a change of this rank and nothing else.

    The change is scaled by 1 (alpha equals the rank) and begins at zero.

    Args:
        body: the model.
        rank: of the change.
        where: regular expression of the names of the projections, or of whole attentions.

    Raises:
        ValueError: peft is not installed, or the model has no such projections.
    """
    peft = _library()
    body.requires_grad_(False)
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=where)
    try:
        adapted = peft.inject_adapter_in_model(config, body)
    except ValueError as error:
        raise ValueError(
            f"lora={rank} adapts the attention of CLIP and SigLIP, and {type(body).__name__} has "
            "none of that form; set lora=0"
        ) from error
    assert isinstance(adapted, nn.Module)
    return adapted


def merge(body: nn.Module) -> None:
    """Add the change to the weights and take the adapters out, in place."""
    from peft.tuners.lora import LoraLayer

    adapted = [name for name, module in body.named_modules() if isinstance(module, LoraLayer)]
    for name in adapted:
        if any(name.startswith(f"{outer}.") for outer in adapted):
            continue  # is merged with the attention it belongs to
        layer: Any = body.get_submodule(name)
        body.set_submodule(name, _merged(layer))


def adopted(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a model with adapters loads from one with or without them.

    Args:
        own: its weights, by name; those that are added stay where the other has none.
        other: weights of the other.
    """
    found = dict(other)
    for name, tensor in own.items():
        if name not in found:
            plain = name.replace(_FROZEN, ".")
            found[name] = tensor if _ADDED in name else found.pop(plain, tensor)
    return found


def _merged(layer: Any) -> nn.Module:
    """The layer without adapters."""
    if hasattr(layer, "unload_and_optionally_merge_module"):
        whole = {"merge": True, "safe_merge": False, "adapter_names": None}
        found = layer.unload_and_optionally_merge_module(**whole)
    else:
        layer.merge()
        found = layer.get_base_layer()
    assert isinstance(found, nn.Module)
    return found


def _library() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ValueError('lora above 0 needs peft: pip install "counterfoil[tune]"') from error
    return peft
