"""Pairs of encoders as open_clip has them: CLIP, SigLIP, CoCa, and towers of timm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor
from torch.nn.functional import pad

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks import low_rank
from counterfoil.models.blocks.inner import inner_grid, inner_pairs
from counterfoil.models.blocks.open_clip import load, written_config
from counterfoil.models.blocks.pool import single, unit
from counterfoil.records import Batch, Encoded, Items, Views

ATTENTION = r".*\.resblocks\.\d+\.attn|.*\.attn\.(qkv|proj)|.*\.self\.(query|key|value)"
UNUSED = ("logit_", "text_decoder.")  # scale and bias belong to the objective


@final
class OpenClip(Matcher):
    """A model of open_clip, its towers compared by cosine.

    Texts are padded to their full length with what open_clip pads them with.

    Attributes:
        written: what it is built from, as `config` wants it.

    Departs from the authors' code in: whether activations are QuickGELU is what the weights of a
    name were trained with, where theirs warns if a name says otherwise.
    """

    def __init__(
        self,
        *,
        name: str,
        pretrained: bool = True,
        config: str | None = None,
        lora: int = 0,
        apart: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            name: ``open_clip:`` and an architecture, with ``/`` and a tag for its weights,
                ``open_clip:hf-hub:USER/MODEL``, or a folder with ``open_clip_config.json``.
            pretrained: load its weights; else it starts from fresh ones.
            config: what it is built from as JSON, see `written`; asked of its name where None.
            lora: rank of adapters on the attention, which alone are trained; 0 to train everything.
            apart: keep adapters beside the weights in a finished model, which then needs peft; else
                they are merged.

        Raises:
            ValueError: open_clip is not installed, there is no such model, or it cannot have
                adapters.
        """
        super().__init__()
        if lora < 0:
            raise ValueError(f"lora={lora} is not possible; give a rank, or 0 to train everything")
        self.lora, self.apart = lora, apart
        self.written = config or written_config(name)
        plain = json.loads(self.written)
        self.filler = int(plain["pad"] or 0)
        self.length = 0 if plain["language"] else longest_text(self.written)
        self.body = load(name, pretrained=pretrained, config=self.written)
        if lora:
            self.body = low_rank.with_adapters(self.body, lora, ATTENTION)
        for parameter, value in self.body.named_parameters():
            if parameter.startswith(UNUSED):
                value.requires_grad_(False)

    def merge(self) -> None:
        """Add what adapters have learnt to the weights; the model then is one without adapters."""
        if self.lora:
            low_rank.merge(self.body)
            self.lora = 0

    def adopted(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What to load from the same model, with adapters or without."""
        return low_rank.adopted(self.state_dict(), state) if self.lora else dict(state)

    def encode_images(self, images: Items) -> Encoded:
        """Pixels (N, C, H, W) as one vector each."""
        body: Any = self.body
        pixels = images.values.to(next(self.body.parameters()).dtype)
        return unit(single(body.encode_image(pixels)))

    def encode_texts(self, texts: Items) -> Encoded:
        """Token ids (N, L) as one vector each."""
        ids = texts.values.masked_fill(~texts.mask, self.filler)
        room = max(0, self.length - ids.shape[1])
        if self.length and ids.shape[1] > self.length:
            raise ValueError(
                f"texts of {ids.shape[1]} tokens do not fit a model that reads {self.length}; cut "
                "them"
            )
        body: Any = self.body
        return unit(single(body.encode_text(pad(ids, (0, room), value=self.filler))))

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) cosines of aligned pairs."""
        return inner_pairs(images, texts)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) cosines."""
        return inner_grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)


def longest_text(config: str) -> int:
    """How many tokens the model of this configuration reads at most."""
    return int(json.loads(config)["model"]["text_cfg"].get("context_length", 77))


def vector_width(config: str) -> int:
    """How wide the vectors of the model of this configuration are."""
    return int(json.loads(config)["model"]["embed_dim"])
