"""BLIP for retrieval: a text encoder that looks at the image (Li et al., ICML 2022)."""

from __future__ import annotations

from typing import final, get_args

import torch
from torch import Tensor, nn

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks.blip import (
    BlipSizes,
    LayerSizes,
    embed_words,
    see,
    text_body,
    told,
    vision_body,
)
from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.paired import TOGETHER
from counterfoil.models.blocks.pool import chosen
from counterfoil.models.blocks.spoken import LOGIT_SCALE, Score
from counterfoil.records import Batch, Encoded, Items, Pairs, Views


@final
class BLIP(Matcher):
    """Whether a text and an image belong together, by a text encoder with cross-attention.

    Images are encoded by the vision transformer and texts by the embedding layer alone; the text
    encoder reads pairs of them. The parts are those of `transformers.BlipForImageTextRetrieval`,
    and so are their names in a saved model; its projections for cosines are not there.

    BLIP: Bootstrapping Language-Image Pre-training (arXiv:2201.12086), image-text matching.

    Departs from the authors' code in: a score is yes minus no, where their evaluation adds yes to
    a cosine; a text begins with [CLS], as in transformers and in their demonstration, where their
    training put [ENC] in its place.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        vocabulary: int = 30524,
        positions: int = 512,
        epsilon: float = 1e-12,
        image_layers: int = 12,
        image_width: int = 768,
        image_heads: int = 12,
        image_inner: int = 3072,
        image_epsilon: float = 1e-5,
        size: int = 384,
        patch: int = 16,
        dropout: float = 0.0,
        mask: int | None = None,
        score: Score = "logit",
    ) -> None:
        """Keyword arguments; the sizes are those of the public base model.

        Args:
            layers: of the text encoder.
            width: of its tokens.
            heads: of its attentions.
            inner: width of its perceptrons.
            vocabulary: how many token ids there are.
            positions: longest text.
            epsilon: of its norms.
            image_layers: of the vision transformer.
            image_width: of its tokens.
            image_heads: of its attention.
            image_inner: width of its perceptrons.
            image_epsilon: of its norms.
            size: side of pictures in pixels.
            patch: side of a patch in pixels.
            dropout: share dropped by the text encoder in training.
            mask: id of the token that hides a word, 103 in bert-base-uncased; None where there is
                none.
            score: "logit", yes minus no; "probability", its sigmoid.

        Raises:
            ValueError: sizes that are not possible, or transformers is not installed.
        """
        super().__init__()
        chosen("score", score, get_args(Score))
        self.score = score
        self.score_scale = 1.0 if score == "probability" else LOGIT_SCALE
        sizes = BlipSizes(
            text=LayerSizes(layers, width, heads, inner, epsilon),
            image=LayerSizes(image_layers, image_width, image_heads, image_inner, image_epsilon),
            vocabulary=vocabulary,
            positions=positions,
            size=size,
            patch=patch,
            dropout=dropout,
        )
        self.vision_model, self.text_encoder = vision_body(sizes), text_body(sizes)
        self.itm_head = nn.Linear(width, 2)
        self._mask = mask

    def encode_images(self, images: Items) -> Encoded:
        """N images (N, 3, size, size) as the states of the whole and of each patch."""
        return see(self.vision_model, images)

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as their embedded tokens."""
        return embed_words(self.text_encoder, texts)

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        rows = torch.arange(len(images))
        return self.listed(images, texts, Pairs(rows, rows))

    def listed(self, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
        """(P,) scores, a bounded number of them at a time."""
        size = _fitting(images, images.mask.shape[1] + texts.mask.shape[1])
        scores = [images.tokens.new_zeros(0)]
        for image, text in zip(
            torch.split(pairs.image, size), torch.split(pairs.text, size), strict=True
        ):
            said = texts.rows(text)
            found = self._scored(images.rows(image), said.tokens[:, None], said.mask[:, None])
            scores.append(found[:, 0])
        return torch.cat(scores)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores of all pairs; an image is prepared once for many texts."""
        long = texts.mask.shape[1]
        most = _fitting(images, long)
        several = _fitting(images, images.mask.shape[1] + len(texts) * long)
        rows = [images.tokens.new_zeros(0, len(texts))]
        for start in range(0, len(images), several):
            some = images.rows(slice(start, start + several))
            found = [some.tokens.new_zeros(len(some), 0)]
            for first in range(0, len(texts), most):
                said = texts.rows(slice(first, first + most))
                found.append(self._scored(some, said.tokens[None], said.mask[None]))
            rows.append(torch.cat(found, 1))
        return torch.cat(rows)

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)

    def word_table(self) -> nn.Module:
        """What token ids are looked up in."""
        table: nn.Module = self.text_encoder.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int | None:
        """Id of the token that hides a word; None where there is none."""
        return self._mask

    def _scored(self, images: Encoded, texts: Tensor, mask: Tensor) -> Tensor:
        """(U, G) scores of U images with texts (U, G, L, D) of each, or (1, G, L, D) of all."""
        many = len(images)
        said, real = texts.expand(many, -1, -1, -1), mask.expand(many, -1, -1)
        first = told(self.text_encoder, images, said, real)
        with torch.autocast(first.device.type, enabled=False):
            no, yes = self.itm_head(full(first)).unbind(2)
            logit: Tensor = yes - no
        return logit.sigmoid() if self.score == "probability" else logit


def _fitting(bag: Encoded, tokens: int) -> int:
    """How many sequences of so many tokens are read together."""
    most = TOGETHER.get(bag.tokens.device.type, TOGETHER["cuda"])
    return max(1, most // max(1, tokens))
