"""Pixels through a convolutional network of timm, one vector for each cell of its last map."""

from __future__ import annotations

from typing import Self, final

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from counterfoil.models.blocks.augment import drop_cells, share_of
from counterfoil.models.blocks.timm_library import network
from counterfoil.models.blocks.tower import ImageTower, every, positive, projection
from counterfoil.records import Encoded, Items


@final
class Grids(ImageTower):
    """Grid features of a network that is trained along (GPO, CVPR 2021, section 4.1), projected.

    The network stays in evaluation mode, so its batch norms keep their statistics. To keep it still
    at first and slower afterwards, give the optimiser a group, as in
    ``Group(match="image.body.*", rate=0.1, begins=1)``.

    In training pictures are cut to a random part and mirrored at random, on the device, each with
    its own draw.

    Departs from the authors' code in: pictures are cut after they have been brought to one size,
    which the lens does by cubic instead of linear interpolation.
    """

    def __init__(
        self,
        *,
        name: str = "resnext101_32x8d",
        width: int = 1024,
        trained: bool = True,
        pretrained: bool = True,
        smallest: float = 1.0,
        mirror: float = 0.0,
        cell_drop: float = 0.0,
    ) -> None:
        """Keyword arguments.

        Args:
            name: timm's name of the network.
            width: of the joint space.
            trained: train the network too.
            pretrained: load its weights; else it starts from fresh ones.
            smallest: least share of both sides that is left of a picture in training; the authors
                take 0.6.
            mirror: share of pictures that are mirrored in training; the authors take 0.5.
            cell_drop: see `drop_cells`; the authors take 0.2.

        Raises:
            ValueError: timm is not installed or does not know the network, or a share is not
                possible.
        """
        super().__init__()
        positive(width=width)
        if not (0 < smallest <= 1 and 0 <= mirror <= 1):
            raise ValueError(
                f"smallest={smallest}, mirror={mirror}: give shares up to 1, of which the first is "
                "above 0"
            )
        self.cell_drop = share_of(cell_drop, "cell_drop")
        self.width, self.trained, self.smallest, self.mirror = width, trained, smallest, mirror
        self.body = network(name, pretrained=pretrained).requires_grad_(trained)
        self.fc = projection(int(self.body.num_features), width)  # type: ignore[arg-type]
        self.train()

    def forward(self, items: Items) -> Encoded:
        """Project every cell of the grid, row by row."""
        if items.values.dim() != 4 or items.values.shape[1] != 3:
            raise ValueError(
                f"pictures of shape {tuple(items.values.shape)} do not fit a model that reads "
                "(images, 3, height, width)"
            )
        pixels = items.values.to(self.fc.weight.dtype)
        if self.training:
            pixels = cut(pixels, smallest=self.smallest, mirror=self.mirror)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            found = self._map(pixels.contiguous(memory_format=torch.channels_last))
        tokens = self.fc(found.flatten(2).transpose(1, 2))
        bag = Encoded(tokens, every(tokens))
        return drop_cells(bag, self.cell_drop) if self.training else bag

    def train(self, mode: bool = True) -> Self:
        """Switch to training; the network itself stays in evaluation."""
        super().train(mode)
        self.body.eval()
        return self

    def _map(self, pixels: Tensor) -> Tensor:
        """(N, F, H, W) the last map."""
        found: Tensor = self.body.forward_features(pixels)  # type: ignore[operator]
        features = self.fc.in_features
        if found.dim() == 4 and found.shape[1] != features:
            found = found.permute(0, 3, 1, 2)  # some keep the width last
        if found.dim() != 4 or found.shape[1] != features:
            raise ValueError(
                f"{type(self.body).__name__} gives {tuple(found.shape)}, which is no map of "
                f"{features} features; use a convolutional network"
            )
        return found


def cut(pixels: Tensor, *, smallest: float, mirror: float) -> Tensor:
    """A random part of each picture, brought to the size of the whole, perhaps mirrored.

    Args:
        pixels: (N, C, H, W).
        smallest: least share of both sides that is left; each picture draws one for both.
        mirror: with which probability it is mirrored.
    """
    if smallest == 1 and not mirror:
        return pixels
    draws = torch.rand(4, len(pixels), device=pixels.device)
    share = smallest + (1 - smallest) * draws[0]
    x, y = (2 * draws[1:3] - 1) * (1 - share)  # of the middle, where sides go from -1 to 1
    places = torch.zeros(len(pixels), 2, 3, device=pixels.device)
    places[:, 0, 0] = torch.where(draws[3] < mirror, -share, share)
    places[:, 1, 1] = share
    places[:, 0, 2], places[:, 1, 2] = x, y
    grid = affine_grid(places, list(pixels.shape), align_corners=False).to(pixels.dtype)
    return grid_sample(pixels, grid, padding_mode="border", align_corners=False)
