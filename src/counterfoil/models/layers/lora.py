"""Low-rank adapters on the attention of a pretrained model (LoRA, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor, nn

from counterfoil.core.optional import optional_import
from counterfoil.models.base import SingleVectorModel

ATTENTION = r".*\.self_attn\.(q_proj|k_proj|v_proj|out_proj)"
_FROZEN, _ADDED = ".base_layer.", ".lora_"
_NAME = "default"  # that peft gives to adapters


def add_lora(body: nn.Module, rank: int, where: str = ATTENTION) -> nn.Module:
    """Freeze a model and add low-rank adapters to its attention projections.

    The adapters are scaled by 1 (alpha equals the rank) and start at zero.

    Args:
        body: the model.
        rank: rank of the adapters.
        where: regular expression of the names of the projections, or of whole attention modules.
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
    for module in adapted.modules():
        if isinstance(module, _attention()):
            hooks = _MergeForCall()
            module.register_forward_pre_hook(hooks.before)
            module.register_forward_hook(hooks.after, always_call=True)
    return adapted


def merge_lora(body: nn.Module) -> None:
    """Merge the adapters into the weights and remove them, in place."""
    from peft.tuners.lora import LoraLayer

    adapted = [name for name, module in body.named_modules() if isinstance(module, LoraLayer)]
    for name in adapted:
        if any(name.startswith(f"{outer}.") for outer in adapted):
            continue  # merged with the attention module that contains it
        layer: Any = body.get_submodule(name)
        body.set_submodule(name, _merged(layer))


def lora_state(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict that a model with adapters loads from one with or without them.

    Args:
        own: weights of the model; its adapters stay where the other model has none.
        other: weights of the other model.
    """
    state = dict(other)
    for name, tensor in own.items():
        if name not in state:
            plain = name.replace(_FROZEN, ".")
            state[name] = tensor if _ADDED in name else state.pop(plain, tensor)
    return state


class LoRADualEncoder(SingleVectorModel):
    """A pretrained dual encoder whose attention may have low-rank adapters."""

    body: nn.Module
    normalise = (True, True)
    keeps_vectors = True

    def __init__(self, lora: int, *, apart: bool) -> None:
        super().__init__()
        if lora < 0:
            raise ValueError(f"lora={lora} is not possible; give a rank, or 0 to train everything")
        self.lora, self.apart = lora, apart

    def merge(self) -> None:
        """Merge the adapters into the weights and remove them."""
        if self.lora:
            merge_lora(self.body)
            self.lora = 0

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict to load, from the same model with or without adapters."""
        return lora_state(self.state_dict(), state) if self.lora else dict(state)


@final
class _MergeForCall:
    """Hooks that merge the adapters of an attention module for one call, then restore its weights.

    peft itself (0.21) adds the change of the output projection twice, with the gradient of one, and
    restores the weights only up to rounding.
    """

    def __init__(self) -> None:
        self.own: list[nn.Parameter] = []

    def before(self, attention: Any, inputs: object) -> None:
        for module, name, weight in _changed(attention):
            self.own.append(getattr(module, name))
            delattr(module, name)
            setattr(module, name, weight)  # a tensor, so that gradients reach the adapters
        attention.merged_adapters.append(_NAME)

    def after(self, attention: Any, inputs: object, output: object) -> None:
        for (module, name), own in zip(_weights(attention), self.own, strict=True):
            setattr(module, name, own)
        self.own.clear()
        attention.merged_adapters.clear()


def _attention() -> Any:
    from peft.tuners.lora.layer import MultiheadAttention

    return MultiheadAttention


def _weights(attention: Any) -> tuple[tuple[nn.Module, str], tuple[nn.Module, str]]:
    inner = attention.get_base_layer()
    return (inner, "in_proj_weight"), (inner.out_proj.get_base_layer(), "weight")


def _changed(attention: Any) -> list[tuple[nn.Module, str, Tensor]]:
    """Return the weights with the adapters merged."""
    layers = attention, attention.get_base_layer().out_proj
    return [
        (module, name, getattr(module, name) + layer.get_delta_weight(_NAME))
        for (module, name), layer in zip(_weights(attention), layers, strict=True)
    ]


def _merged(layer: Any) -> nn.Module:
    """Return the layer without adapters."""
    if not isinstance(layer, _attention()):
        layer.merge()
        base = layer.get_base_layer()
    else:
        for module, name, weight in _changed(layer):
            setattr(module, name, nn.Parameter(weight.detach(), requires_grad=False))
        base = layer.get_base_layer()
        base.out_proj = base.out_proj.get_base_layer()
    assert isinstance(base, nn.Module)
    return base


def _library() -> Any:
    return optional_import("peft", 'lora above 0 needs peft: pip install "counterfoil[tune]"')
