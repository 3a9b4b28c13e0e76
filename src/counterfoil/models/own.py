"""Anybody's module as a retrieval model: with two encoders, or with a score of pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import RetrievalModel, SingleVectorModel
from counterfoil.models.layers.pooling import single_vector, unit_vectors

ENCODERS = ("encode_image", "encode_text")


def as_retrieval_model(module: nn.Module) -> RetrievalModel:
    """The module itself if it is a `RetrievalModel`; else one around it.

    - With ``encode_image`` and ``encode_text``, which return (N, D), a score is the cosine.
    - With a method ``score(images, texts)`` a score is what it returns for P images and P texts,
      (P,): of what the encoders return, or of the inputs themselves where there are none.
    - A module with neither scores pairs of inputs by its ``forward(images, texts)``, whose first
      argument has such a name.

    Texts are ids (N, L). A function of texts whose next argument is called a mask gets theirs.

    Raises:
        ValueError: the module has one of the two encoders, or none and no forward of two arguments.
    """
    if isinstance(module, RetrievalModel):
        return module
    name = type(module).__name__
    has = [encoder for encoder in ENCODERS if callable(getattr(module, encoder, None))]
    score = getattr(module, "score", None)
    if len(has) == 1:
        (missing,) = set(ENCODERS) - {*has}
        raise ValueError(f"{name} has {has[0]} and no {missing}; add it, (N, …) -> (N, D)")
    if has and not callable(score):
        return OwnEncoders(module)
    if callable(score) or _scores_pairs(module.forward):
        return OwnScore(module)
    library = hasattr(module, "get_image_features") or hasattr(module, "similarity_fn_name")
    raise ValueError(
        f"{name} has neither encode_image and encode_text nor score(images, texts); "
        + (
            "a model of a library is opened by its name or folder, cf.load_model(NAME)"
            if library
            else "add the two encoders, each (N, …) -> (N, D)"
        )
    )


@final
class OwnEncoders(SingleVectorModel):
    """A module with ``encode_image`` and ``encode_text``, compared by cosine."""

    normalise = (True, True)

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @property
    def own_module(self) -> nn.Module:
        return self.module

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return self._vectors("encode_image", images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return self._vectors("encode_text", texts)

    def _vectors(self, encoder: str, items: ModalityBatch) -> Embeddings:
        vectors = _encoded(self.module, encoder, items)
        if vectors.ndim != 2:
            raise ValueError(
                f"{type(self.module).__name__}.{encoder} returned a tensor of shape "
                f"{tuple(vectors.shape)} for {len(items)} items; return one vector each, (N, D), "
                "or give the module a method score(images, texts) -> (P,)"
            )
        return unit_vectors(single_vector(vectors))


@final
class OwnScore(RetrievalModel):
    """A module with ``score(images, texts)``, or with a ``forward`` that does the same."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._method = "score" if callable(getattr(module, "score", None)) else "forward"
        self._encodes = all(callable(getattr(module, encoder, None)) for encoder in ENCODERS)
        self._masked = _takes_mask(getattr(module, self._method), 2)
        self._shapes: dict[str, tuple[torch.Size, torch.dtype]] = {}

    @property
    def own_module(self) -> nn.Module:
        return self.module

    @property
    def score_name(self) -> str:
        return f"as {type(self.module).__name__} scores"

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        if self._encodes:
            return self._flat("image", _encoded(self.module, "encode_image", images))
        _check_lengths(self.module, self._method, images)
        return self._flat("image", images.values)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        if self._encodes:
            return self._flat("text", _encoded(self.module, "encode_text", texts))
        if not self._masked:
            _check_lengths(self.module, self._method, texts)
        self._shapes["text"] = texts.values.shape[1:], texts.values.dtype
        return Embeddings(texts.values.unsqueeze(-1).float(), texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        if not len(images):
            return images.tokens.new_zeros(0)
        inputs = [self._restored("image", images)]
        if self._encodes:
            inputs.append(self._restored("text", texts))
        else:
            inputs.append(texts.tokens[..., 0].to(self._shapes["text"][1]))
            inputs += [texts.mask] if self._masked else []
        score: Any = self.module.score if self._method == "score" else self.module
        scores = score(*inputs)
        if not isinstance(scores, Tensor) or scores.numel() != len(images):
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"{type(self.module).__name__} returned {shape} for {len(images)} pairs of an "
                "image and a text; return a score each, (P,)"
            )
        return scores.reshape(len(images)).float()

    def _flat(self, side: str, values: Tensor) -> Embeddings:
        """Items as one long vector each, whatever their shape is."""
        self._shapes[side] = values.shape[1:], values.dtype
        return single_vector(values.flatten(1).float())

    def _restored(self, side: str, items: Embeddings) -> Tensor:
        shape, dtype = self._shapes[side]
        return items.tokens.reshape(len(items), *shape).to(dtype)


def _encoded(module: nn.Module, encoder: str, items: ModalityBatch) -> Tensor:
    """The output of an encoder of a module for N items."""
    encode = getattr(module, encoder)
    values = items.values
    if values.ndim == 3 and values.shape[1] == 1:  # one stored vector an item
        values = values[:, 0]
    if _takes_mask(encode, 1):
        output = encode(values, items.mask)
    else:
        _check_lengths(module, encoder, items)
        output = encode(values)
    if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(items):
        shape = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ValueError(
            f"{type(module).__name__}.{encoder} returned {shape} for {len(items)} items; return "
            "one vector each, a tensor (N, D)"
        )
    return output


def _check_lengths(module: nn.Module, method: str, items: ModalityBatch) -> None:
    if not bool(items.mask.all()):
        raise ValueError(
            f"items of one batch have different lengths, and {type(module).__name__}.{method} "
            "takes no mask, so that a score would depend on the batch; name one behind them, "
            f"{method}(items, mask), which is (N, L) and False where an item has ended, or let "
            "tokenize pad captions to one length"
        )


def _arguments(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """The positional arguments of a bound method."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in inspect.signature(call).parameters.values() if p.kind in kinds]


def _scores_pairs(forward: Callable[..., Any]) -> bool:
    """Return True if a forward takes an image, by its name, and then a text."""
    arguments = _arguments(forward)
    return len(arguments) > 1 and arguments[0].name.startswith(("image", "img", "pic", "pixel"))


def _takes_mask(call: Callable[..., Any], place: int) -> bool:
    """Return True if the argument at a place is a mask: it is called so."""
    arguments = _arguments(call)
    return len(arguments) > place and "mask" in arguments[place].name
