"""UNITER: one transformer over words and regions (Chen et al., ECCV 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final, get_args

from torch import Tensor, nn

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.authors import State
from counterfoil.models.blocks.boxed import BoxedRegions, PieceEmbedding
from counterfoil.models.blocks.joint import JointEncoder
from counterfoil.models.blocks.pool import chosen
from counterfoil.models.blocks.spoken import LOGIT_SCALE, Joint, Score, Speaker
from counterfoil.models.blocks.uniter_heads import UniterHeads, present
from counterfoil.models.uniter_start import SPREAD, begun, fitted, freshen
from counterfoil.reading import Reading, Slots, Want
from counterfoil.records import Batch, Encoded, Items, Pairs, Views


@final
class UNITER(Matcher):
    """Words and regions through one transformer; a score from the first token.

    Items are encoded by the embedding layers alone; the transformer reads pairs of them. Sequences
    are packed, so that neither padding nor the batch has a share in a pair's score. It also reads
    words in the sense of `counterfoil.reading.ReadsWords`.

    UNITER: Universal Image-Text Representation Learning (https://github.com/ChenRocks/UNITER); the
    heads doubt and correct are those of TAGS-DC (https://github.com/LibertFan/TAGS).

    Departs from the authors' code in: hidden keys are left out of the attention, not lowered by
    10,000; an item that stands in several pairs of a batch has one dropout mask in the embedding
    layers; the last layer is computed only where something is asked.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        vocabulary: int = 28996,
        positions: int = 512,
        features: int = 2048,
        classes: int = 1601,
        dropout: float = 0.1,
        mask: int | None = None,
        outputs: tuple[str, ...] = ("rank",),
        score: Score = "probability",
        spread: float = SPREAD,
    ) -> None:
        """Keyword arguments; the sizes are those of UNITER-base.

        Args:
            layers: of the transformer; 24 in UNITER-large.
            width: of its tokens; 1024 in UNITER-large.
            heads: of its attention; 16 in UNITER-large.
            inner: width of its perceptrons; 4096 in UNITER-large.
            vocabulary: how many token ids there are.
            positions: longest text.
            features: width of a region's features.
            classes: of regions, where they are classified.
            dropout: share dropped in training.
            mask: id of the token that hides a word, 103 in bert-base-cased; where None there is
                one more embedding for it, behind the vocabulary.
            outputs: its heads: "rank" one score, "match" two logits, no and yes; "fill" hidden
                words, "doubt" whether a token is right, "correct" what ought to stand there;
                "regress" features and "classify" classes of regions. What is not named is not
                there.
            score: "probability", the sigmoid of the rank, or of what "match" finds where there is
                no rank; "logit", the same before the sigmoid, as the authors evaluate.
            spread: of fresh weights; a narrow model needs more than BERT's 0.02, near one by the
                root of its width, or its layers add next to nothing for thousands of steps.

        Raises:
            ValueError: sizes that are not possible, an unknown output, or none that gives a score.
        """
        super().__init__()
        chosen("score", score, get_args(Score))
        self.score = score
        self.score_scale = 1.0 if score == "probability" else LOGIT_SCALE
        self.text = PieceEmbedding(
            vocabulary=vocabulary, positions=positions, width=width, dropout=dropout, mask=mask
        )
        hides = bool({"regress", "classify"} & set(outputs))
        self.image = BoxedRegions(features=features, width=width, dropout=dropout, hides=hides)
        self.body = JointEncoder(
            layers=layers, width=width, heads=heads, inner=inner, dropout=dropout
        )
        self.pooler = nn.Linear(width, width)
        self.says = UniterHeads(
            outputs=outputs,
            width=width,
            words=self.text.word_embeddings.num_embeddings,
            features=features,
            classes=classes,
        )
        freshen(self, spread)

    def encode_images(self, images: Items) -> Encoded:
        """N images as their embedded regions."""
        return self.embed_images(images)

    def embed_images(self, images: Items, veiled: Tensor | None = None) -> Encoded:
        """The same with the features of some regions hidden: (N, R) bool, True where they are."""
        embedded: Encoded = self.image(images, veiled)
        return embedded

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as their embedded tokens."""
        embedded: Encoded = self.text(texts)
        return embedded

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

    def regressed(self, states: Tensor) -> Tensor:
        """(M, F) features of the hidden region of each state."""
        found: Tensor = present(self.says.regress, "regress")(states, self.image.fc.weight.T)
        return found

    def classified(self, states: Tensor) -> Tensor:
        """(M, C) logits of the class of each region."""
        found: Tensor = present(self.says.classify, "classify")(states)
        return found

    def adopted(self, state: Mapping[str, Tensor]) -> State:
        """What to load of another UNITER's weights, which may have other heads; see `begun`.

        Raises:
            ValueError: they are not those of a UNITER with as many layers.
        """
        return fitted(self.state_dict(), begun(state))

    @property
    def _speaker(self) -> Speaker:
        words = self.text.word_embeddings.weight
        return Speaker(self.body, self._pool, self.says, words, self.score)

    def _pool(self, first: Tensor) -> Tensor:
        summed: Tensor = self.pooler(first)
        return summed.tanh()
