"""ViLT: one transformer over words and patches of pixels (Kim et al., ICML 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final, get_args

from torch import Tensor, nn

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.authors import State
from counterfoil.models.blocks.joint import Packing
from counterfoil.models.blocks.pool import chosen
from counterfoil.models.blocks.spoken import LOGIT_SCALE, Joint, Score, Speaker
from counterfoil.models.blocks.uniter_heads import UniterHeads
from counterfoil.models.blocks.vilt import (
    ViltSizes,
    embed_patches,
    embed_words,
    pooled,
    told,
    vilt_body,
)
from counterfoil.models.uniter_start import SPREAD, begun, fitted, freshen
from counterfoil.models.vilt_names import OUTPUTS, public_state
from counterfoil.reading import Reading, Slots, Want
from counterfoil.records import Batch, Encoded, Items, Pairs, Views


@final
class ViLT(Matcher):
    """Words and patches through one transformer; a score from the first token.

    Items are encoded by the embedding layers alone; the transformer reads pairs of them. It also
    reads words in the sense of `counterfoil.reading.ReadsWords`. The parts are those of
    `transformers.ViltModel`, and so are their names in a saved model.

    ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision
    (https://github.com/dandelin/ViLT); the heads doubt and correct are those of TAGS-DC.

    Departs from the authors' code in: all patches are read, in order, where the authors, and
    transformers after them, shuffle them and fill up with others that the attention then leaves
    out (and, in training, draw 200 of them), so a score never depends on a draw or on the batch.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        vocabulary: int = 30522,
        positions: int = 40,
        size: int = 384,
        patch: int = 32,
        dropout: float = 0.0,
        spread: float = SPREAD,
        mask: int | None = None,
        outputs: tuple[str, ...] = ("rank",),
        score: Score = "probability",
        weights: str | None = None,
        pretrained: bool = False,
    ) -> None:
        """Keyword arguments; the sizes are those of the public weights.

        Args:
            layers: of the transformer.
            width: of its tokens.
            heads: of its attention.
            inner: width of its perceptrons.
            vocabulary: how many token ids there are.
            positions: longest text.
            size: side in pixels of the square that the places of patches are learnt on; pictures
                may be of any shape.
            patch: side of a patch in pixels.
            dropout: share dropped in training.
            spread: of fresh weights; a narrow model needs more than BERT's 0.02, see `UNITER`.
            mask: id of the token that hides a word, 103 in bert-base-uncased; where None there is
                one more embedding for it, behind the vocabulary.
            outputs: its heads: "rank" one score, "match" two logits, no and yes; "fill" hidden
                words, "doubt" whether a token is right, "correct" what ought to stand there. What
                is not named is not there.
            score: "probability", the sigmoid of the rank, or of what "match" finds where there is
                no rank; "logit", the same before the sigmoid.
            weights: folder or name of a Hugging Face ViLT to begin with.
            pretrained: load them; else it starts from fresh ones.

        Raises:
            ValueError: sizes that are not possible, an unknown output, or none that gives a score;
                transformers is not installed, or there are no such weights, or of other sizes.
        """
        super().__init__()
        chosen("score", score, get_args(Score))
        self.score = score
        self.score_scale = 1.0 if score == "probability" else LOGIT_SCALE
        sizes = ViltSizes(
            layers=layers,
            width=width,
            heads=heads,
            inner=inner,
            vocabulary=vocabulary,
            mask=mask,
            positions=positions,
            size=size,
            patch=patch,
            dropout=dropout,
            spread=spread,
        )
        self.vilt, self.says = vilt_body(sizes), _heads(outputs, sizes)
        self._mask = vocabulary if mask is None else mask
        if weights is not None and pretrained:
            self.load_state_dict(self.adopted(public_state(weights, words=sizes.words)))

    def encode_images(self, images: Items) -> Encoded:
        """N images (N, 3, H, W) as their embedded patches, behind a token for the whole."""
        return embed_patches(self.vilt, images)

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as their embedded tokens."""
        return embed_words(self.vilt, texts)

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return self._speaker.aligned(images, texts)

    def listed(self, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
        """(P,) scores; those of like length are worked out together."""
        return self._speaker.listed(images, texts, pairs)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores of all pairs, a bounded number of them at a time."""
        return self._speaker.grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)

    @property
    def wants(self) -> frozenset[Want]:
        """What it has heads for."""
        return self._speaker.wants

    def read(
        self,
        images: Encoded,
        texts: Encoded,
        want: frozenset[Want],
        slots: Slots | None = None,
    ) -> Reading:
        """What is wanted of P images with P texts, from one pass; see `ReadsWords`.

        Raises:
            ValueError: there is no head for something, or words are wanted without slots.
        """
        return self._speaker.read(images, texts, want, slots)

    def joint(self, images: Encoded | None, texts: Encoded | None) -> Joint:
        """The last hidden states of P images with P texts, or of one side alone."""
        return self._speaker.joint(images, texts)

    def matched(self, pooled: Tensor) -> Tensor:
        """(P, 2) logits that text and image do not belong together, and that they do."""
        return self.says.matched(pooled)

    def filled(self, states: Tensor) -> Tensor:
        """(M, V) logits of the hidden word of each state."""
        return self._speaker.filled(states)

    def corrected(self, states: Tensor) -> Tensor:
        """(M, V) logits of the word that ought to be at each state."""
        return self._speaker.corrected(states)

    def word_table(self) -> nn.Module:
        """What token ids are looked up in."""
        table: nn.Module = self.vilt.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int:
        """Id of the token that hides a word."""
        return self._mask

    def adopted(self, state: Mapping[str, Tensor]) -> State:
        """What to load of another ViLT's weights, which may have other heads.

        Where they are missing, the rank begins as the yes of the match, doubt as the match, and
        correct as fill.

        Raises:
            ValueError: they are not those of a ViLT of the same sizes.
        """
        own = self.state_dict()
        found = fitted(own, begun(state))
        for name, value in own.items():
            if found[name].shape != value.shape:
                raise ValueError(
                    f"weights of another model cannot be taken over: {name!r} is "
                    f"{tuple(found[name].shape)}, and in this model {tuple(value.shape)}"
                )
        return found

    @property
    def _speaker(self) -> Speaker:
        words = self.word_table().weight
        assert isinstance(words, Tensor)
        return Speaker(self._told, self._pooled, self.says, words, self.score)

    def _told(self, tokens: Tensor, packing: Packing, kept: Tensor | None = None) -> Tensor:
        return told(self.vilt, tokens, packing, kept)

    def _pooled(self, first: Tensor) -> Tensor:
        return pooled(self.vilt, first)


def _heads(outputs: tuple[str, ...], sizes: ViltSizes) -> UniterHeads:
    for output in outputs:
        chosen("outputs", output, OUTPUTS)
    heads = UniterHeads(
        outputs=outputs, width=sizes.width, words=sizes.words, features=1, classes=1
    )
    freshen(heads, sizes.spread)
    return heads
