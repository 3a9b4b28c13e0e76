"""What makes a model itself, wherever it lies: its weights, and what is computed with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from torch import nn

from counterfoil.engine.kept import weights_digest
from counterfoil.matcher import Pretrained
from counterfoil.saved_names import short_name

_ELSEWHERE = {  # of a configuration: where it came from and how it was loaded
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "_attn_implementation",
    "_attn_implementation_internal",
}


def model_digest(module: nn.Module) -> str:
    """Sixteen hex digits of weights, activations and the configurations of pretrained parts.

    The same weights under another activation, or with another number of heads, are another model;
    in another folder they are the same.
    """
    told = [weights_digest(module), short_name(type(module)), *_layers(module)]
    return hashlib.sha256("\x00".join(told).encode()).hexdigest()[:16]


def _layers(module: nn.Module) -> Iterator[str]:
    """What the weights do not tell."""
    told: Any = None
    for name, part in module.named_modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "to_diff_dict") and config is not told:
            told = config
            yield f"{name} {json.dumps(_known(config.to_diff_dict()), sort_keys=True, default=str)}"
        if isinstance(part, Pretrained):
            yield f"{name} {json.dumps(_built(json.loads(part.written)), sort_keys=True)}"
        leaf = next(part.children(), None) is None
        if leaf and next(part.parameters(), None) is None and not isinstance(part, nn.Dropout):
            yield f"{name} {short_name(type(part))}({part.extra_repr()})"


def _built(value: object) -> object:
    """What a part is built from without configurations that it has as such."""
    if isinstance(value, dict):
        return None if "model_type" in value else {k: _built(v) for k, v in value.items()}
    return value


def _known(value: object) -> object:
    """A configuration without what says nothing of the model."""
    if isinstance(value, dict):
        return {str(k): _known(v) for k, v in value.items() if k not in _ELSEWHERE}
    return value
