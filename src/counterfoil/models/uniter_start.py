"""What a UNITER begins with: fresh weights, or those of one with other heads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from counterfoil.models.authors import State

SPREAD = 0.02  # of fresh weights
FREE = ("says.", "image.veil")  # what one UNITER may have and another not
COPIES = {"doubt": "match", "correct": "fill"}  # heads that begin as others were pre-trained


def freshen(model: nn.Module, spread: float = SPREAD) -> None:
    """Weights and free vectors from N(0, spread), biases 0; norms stay."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=spread)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        for name in ("kind", "veil"):
            vector = getattr(module, name, None)
            if isinstance(vector, nn.Parameter):
                nn.init.normal_(vector, std=spread)


def begun(state: Mapping[str, Tensor]) -> State:
    """The same weights with the heads that TAGS adds.

    Where they are missing, the rank begins as the yes of the match, doubt as the match, and correct
    as fill. Those that are there stay.

    Args:
        state: weights of a `UNITER`.
    """
    new = dict(state)
    for part in ("weight", "bias"):
        if (match := state.get(f"says.match.{part}")) is not None:
            new.setdefault(f"says.rank.{part}", match[1:].clone())
    for head, source in COPIES.items():
        before = f"says.{source}."
        own = {name: value for name, value in state.items() if name.startswith(before)}
        for name, value in own.items():
            new.setdefault(f"says.{head}.{name.removeprefix(before)}", value.clone())
    return new


def fitted(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> State:
    """What is given, of the heads that are there; heads that are not given stay as they are.

    Args:
        own: the weights of a `UNITER`.
        given: those it is to have, of another.

    Raises:
        ValueError: they are not of a UNITER with as many layers.
    """
    for name in {*own, *given}:
        if not name.startswith(FREE) and (name in own) != (name in given):
            lacks = "is not in the weights given" if name in own else "is not in this model"
            raise ValueError(f"weights of another model cannot be taken over: {name!r} {lacks}")
    return {name: given.get(name, value) for name, value in own.items()}
