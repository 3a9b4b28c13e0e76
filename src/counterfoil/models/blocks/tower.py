"""What stands at the foot of a model: raw items to bags of vectors of one width."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from counterfoil.records import Encoded, Items


class ImageTower(nn.Module, ABC):
    """Images to region vectors.

    Attributes:
        width: of the vectors.
    """

    width: int

    @abstractmethod
    def forward(self, items: Items) -> Encoded:
        """N images to (N, R, width) vectors, not normalised; what the mask hides is arbitrary."""


class TextTower(nn.Module, ABC):
    """Texts to word vectors.

    Attributes:
        width: of the vectors.
    """

    width: int

    @abstractmethod
    def forward(self, items: Items) -> Encoded:
        """N texts to (N, L, width) vectors, not normalised; what the mask hides is arbitrary."""


def projection(features: int, width: int) -> nn.Linear:
    """A linear layer as VSE++ and SCAN start it: uniform within sqrt(6 / (in + out)), bias 0."""
    layer = nn.Linear(features, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def hidden(values: Tensor, mask: Tensor) -> Tensor:
    """(N, L, F) with zeros at padding, so that garbage there reaches no gradient."""
    return values.masked_fill(~mask.unsqueeze(-1), 0)


def fits(items: Items, features: int) -> None:
    """Check that items hold vectors of the width that a model reads.

    Raises:
        ValueError: they do not.
    """
    given = items.values.shape
    if len(given) != 3 or given[-1] != features:
        raise ValueError(
            f"image features of shape {tuple(given)} do not fit a model that reads "
            f"(images, regions, {features}); use the features it was trained on"
        )


def masked_ids(items: Items) -> Tensor:
    """(N, L) token ids, 0 at padding."""
    return items.values.masked_fill(~items.mask, 0)


def positive(**sizes: int) -> None:
    """Check that sizes are at least 1.

    Raises:
        ValueError: one is not.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} is not possible; it must be at least 1")
