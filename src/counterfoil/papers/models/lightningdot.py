"""LightningDOT: UNITER's layers in two towers and an inner product (Sun et al., NAACL 2021)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from counterfoil.core.config import config, lazy
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    State,
    longest_prefix,
    option_value,
)
from counterfoil.models.layers.joint_encoder import (
    EPSILON,
    SPREAD,
    ClassHead,
    TiedHead,
    TokenPacking,
    initialize_weights,
    match_state,
    require_head,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_choice,
    check_positive,
    single_vector,
)
from counterfoil.papers.models.uniter import (
    HEAD_WIDTH,
    LAYER,
    MASK,
    JointEncoder,
    RegionEmbedding,
    WordPieceEmbedding,
    joined_projections,
)

FIRST = 101  # [CLS] of bert-base-cased

# The towers.


@final
class TokenAndRegions(ImageTower):
    """An image as UNITER reads it: the token [CLS], embedded as BERT does, then the regions.

    Attributes:
        first: id of that token, the only row of the table of words that is read.
    """

    def __init__(
        self,
        *,
        features: int,
        width: int = 768,
        vocabulary: int = 28996,
        dropout: float = 0.1,
        first: int = FIRST,
        hides: bool = False,
    ) -> None:
        """Initialise the module.

        Args:
            features: width of a region's features.
            width: of the tokens.
            vocabulary: number of token ids; heads that guess words share the table.
            dropout: share dropped in training.
            first: id of the token before the regions.
            hides: have a vector that stands for a hidden region's features.

        Raises:
            ValueError: a size that is not possible, or a first token that is not in the vocabulary.
        """
        super().__init__()
        check_positive(vocabulary=vocabulary, width=width)
        if not 0 <= first < vocabulary:
            raise ValueError(
                f"first={first} is not an id of a vocabulary of {vocabulary}; give the id of the "
                "tokenizer's first token"
            )
        self.width, self.first = width, first
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(1, width)
        self.kind = nn.Parameter(torch.empty(width))
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)
        self.regions = RegionEmbedding(features=features, width=width, dropout=dropout, hides=hides)

    def forward(self, items: ModalityBatch, veiled: Tensor | None = None) -> Embeddings:
        """Embed N images as (N, 1 + R, D); `veiled` (N, R) is True where features are hidden."""
        regions = self.regions(items, veiled)
        first = self.word_embeddings.weight[self.first] + self.position_embeddings.weight[0]
        token = self.dropout(self.norm((first + self.kind).repeat(len(items), 1, 1)))
        real = items.mask.new_ones(len(items), 1)
        return Embeddings(torch.cat([token, regions.tokens], 1), torch.cat([real, regions.mask], 1))


@final
class FirstTokenTower(nn.Module):
    """BERT's layers over tokens; an item's vector is the last state of its first token, projected.

    Sequences are packed, so that no vector depends on padding or on the batch.
    """

    def __init__(
        self,
        *,
        embed: ImageTower | TextTower,
        layers: int = 12,
        heads: int = 12,
        inner: int = 3072,
        dropout: float = 0.1,
        project: int = 768,
    ) -> None:
        """Initialise the module.

        Args:
            embed: embeds the tokens of an item.
            layers: of the transformer.
            heads: of its attention.
            inner: width of its perceptrons.
            dropout: share dropped in training.
            project: width of the vectors; 0 leaves the first token's state as it is.

        Raises:
            ValueError: a size that is not possible.
        """
        super().__init__()
        width = embed.width
        self.embed = embed
        self.body = JointEncoder(
            layers=layers, width=width, heads=heads, inner=inner, dropout=dropout
        )
        self.width = project or width
        self.project = (
            nn.Sequential(
                nn.Linear(width, 2 * width),
                nn.GELU(),
                nn.LayerNorm(2 * width, eps=EPSILON),
                nn.Linear(2 * width, project),
            )
            if project
            else nn.Identity()
        )

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode N items as one vector each; in the last layer only first tokens are queries."""
        embedded = self.embed(items)
        packing = TokenPacking.of(embedded.mask)
        first = torch.zeros_like(packing.column, dtype=torch.bool)
        first[packing.first] = True
        found = self.body(embedded.tokens[embedded.mask], packing, first)
        # an item without tokens has no state
        states = found.new_zeros(len(items), found.shape[1])
        states = states.index_put((packing.sequence[packing.first],), found)
        return single_vector(self.project(states))

    def states(self, items: ModalityBatch, veiled: Tensor | None = None) -> Embeddings:
        """Return the last states (N, L, D) of all tokens; `veiled` is as in `TokenAndRegions`."""
        embedded = self.embed(items) if veiled is None else self.embed(items, veiled)
        packing = TokenPacking.of(embedded.mask)
        states = self.body(embedded.tokens[embedded.mask], packing)
        padded = states.new_zeros(embedded.tokens.shape)
        return Embeddings(
            padded.index_put((packing.sequence, packing.column), states), embedded.mask
        )


Fusion = Literal["none", "add", "multiply"]
HEADS = ("fill", "regress", "classify")


@final
class LightningDOT(SingleVectorModel):
    """A transformer over words and one over regions; the score is the vectors' inner product.

    LightningDOT (https://github.com/intersun/LightningDOT). It is trained by
    `InfoNCELoss(temperature=1.0, reduction="mean")`; vectors are not normalised. Its pre-training
    guesses words and regions from the state of their place, fused with the first token of the other
    tower: `filled`, `regressed` and `classified`. The paper needs that fusion, while the released
    configuration has none; here it is "add", as in the names of the published models.

    Departs from the authors' code in: hidden keys are left out of the attention, not lowered by
    10,000; generated captions, whose weight is 0 in every published setting, are not read.

    Attributes:
        score_scale: 10, about what inner products of the authors' vectors reach.
    """

    score_scale = 10.0

    def __init__(
        self,
        *,
        image: FirstTokenTower,
        text: FirstTokenTower,
        outputs: tuple[str, ...] = (),
        classes: int = 1601,
        fusion: Fusion = "add",
        spread: float = SPREAD,
    ) -> None:
        """Initialise the module; the default sizes of its towers are the published ones.

        Args:
            image: tower over `TokenAndRegions`.
            text: tower over `WordPieceEmbedding`.
            outputs: heads of the pre-training: "fill" hidden words, "regress" features and
                "classify" classes of hidden regions; none to fine-tune.
            classes: of regions, where they are classified.
            fusion: how a state is fused with the other tower's first token before a head.
            spread: of fresh weights, see `UNITER`.

        Raises:
            ValueError: towers of vectors of different widths, an unknown head or fusion.
        """
        super().__init__()
        check_choice("fusion", fusion, get_args(Fusion))
        if image.width != text.width:
            raise ValueError(
                f"the image tower gives {image.width} numbers per vector and the text tower "
                f"{text.width}; give both the same width"
            )
        self.image, self.text, self.fusion = image, text, fusion
        table, regions = self._regions.word_embeddings, self._regions.regions
        width = table.embedding_dim
        self.says = nn.ModuleDict()
        for output in outputs:
            check_choice("outputs", output, HEADS)
            if output == "classify":
                self.says[output] = ClassHead(width=width, classes=classes)
            else:
                answers = table.num_embeddings if output == "fill" else regions.features
                self.says[output] = TiedHead(width=width, answers=answers)
        initialize_weights(self, spread)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each."""
        encoded: Embeddings = self.image(images)
        return encoded

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each; a text is never empty, as it begins with a token."""
        encoded: Embeddings = self.text(texts)
        return encoded

    def filled(self, images: ModalityBatch, texts: ModalityBatch, masked: Tensor) -> Tensor:
        """Return (M, V) logits of the words at the places of N texts where `masked` (N, L) is True.

        The output matrix is the image tower's table of words (as released: not the text tower's).
        """
        states = self._fused(self.text.states(texts), self.image.states(images))[masked]
        head = self._head("fill")
        logits: Tensor = head(states, self._regions.word_embeddings.weight)
        return logits

    def regressed(self, images: ModalityBatch, texts: ModalityBatch, veiled: Tensor) -> Tensor:
        """Return (M, F) features of the regions of N images that `veiled` (N, R) hides."""
        head = self._head("regress")
        features: Tensor = head(
            self._veiled(images, texts, veiled), self._regions.regions.fc.weight.T
        )
        return features

    def classified(self, images: ModalityBatch, texts: ModalityBatch, veiled: Tensor) -> Tensor:
        """Return (M, C) logits of the classes of the regions that `veiled` (N, R) hides."""
        logits: Tensor = self._head("classify")(self._veiled(images, texts, veiled))
        return logits

    def adopted(self, state: Mapping[str, Tensor]) -> State:
        """Return the state dict to load, from a model of the same kind with other heads."""
        return match_state(self.state_dict(), state)

    def _head(self, name: str) -> nn.Module:
        return require_head(dict(self.says.items()).get(name), name)

    @property
    def _regions(self) -> TokenAndRegions:
        assert isinstance(self.image.embed, TokenAndRegions)
        return self.image.embed

    def _veiled(self, images: ModalityBatch, texts: ModalityBatch, veiled: Tensor) -> Tensor:
        """Return (M, D) states of the hidden regions."""
        states = self.image.states(images, veiled)
        return self._fused(states, self.text.states(texts))[:, 1:][veiled]

    def _fused(self, states: Embeddings, other: Embeddings) -> Tensor:
        """Return (N, L, D) states, fused with the first states of the other tower."""
        if self.fusion == "none":
            return states.tokens
        first = other.tokens[:, :1]
        return states.tokens + first if self.fusion == "add" else states.tokens * first


# The authors' checkpoints: their tensor names and ours.


_TEXT = "txt_model.bert.embeddings."
_IMAGE = "img_model.bert."
KINDS = "img_model.bert.embeddings.token_type_embeddings.weight"  # of the token, and of a region
TEXT_KINDS = f"{_TEXT}token_type_embeddings.weight"
POSITION = f"{_IMAGE}embeddings.position_embeddings.weight"
VEIL = f"{_IMAGE}img_embeddings.mask_embedding.weight"  # zero, and what stands for a region
PREFIXES = {
    f"{_TEXT}word_embeddings.": "text.embed.word_embeddings.",
    f"{_TEXT}position_embeddings.": "text.embed.position_embeddings.",
    f"{_TEXT}LayerNorm.": "text.embed.norm.",
    f"{_IMAGE}embeddings.word_embeddings.": "image.embed.word_embeddings.",
    f"{_IMAGE}embeddings.LayerNorm.": "image.embed.norm.",
    f"{_IMAGE}img_embeddings.img_linear.": "image.embed.regions.fc.",
    f"{_IMAGE}img_embeddings.img_layer_norm.": "image.embed.regions.fc_norm.",
    f"{_IMAGE}img_embeddings.pos_linear.": "image.embed.regions.place.",
    f"{_IMAGE}img_embeddings.pos_layer_norm.": "image.embed.regions.place_norm.",
    f"{_IMAGE}img_embeddings.LayerNorm.": "image.embed.regions.norm.",
    "img_model.encode_proj.": "image.project.",
    "txt_model.encode_proj.": "text.project.",
    "cls.predictions.bias": "says.fill.bias",
    "cls.predictions.transform.dense.": "says.fill.enter.0.",
    "cls.predictions.transform.LayerNorm.": "says.fill.enter.2.",
    "feat_regress.net.": "says.regress.enter.",
    "feat_regress.bias": "says.regress.bias",
    "region_classifier.net.3.": "says.classify.out.",
    "region_classifier.net.": "says.classify.enter.",
}
THEIR_LAYER = re.compile(r"(img|txt)_model\.bert\.encoder\.layer\.(\d+)\.(.+)")
SIDES = {"img": "image", "txt": "text"}
PROJECTION = tuple(f"project.{n}.{kind}" for n in (0, 2, 3) for kind in ("weight", "bias"))
ROWS = {KINDS: 2, POSITION: 1, TEXT_KINDS: 1, VEIL: 2}  # that are read of these tables
NEEDED = (
    *(f"{side}.embed.word_embeddings.weight" for side in ("image", "text")),
    *(f"{side}.body.layers.0.enter.weight" for side in ("image", "text")),
    *(f"{side}.body.layers.0.wide.weight" for side in ("image", "text")),
    "image.embed.regions.fc.weight",
    "image.embed.kind",
    "image.embed.position_embeddings.weight",
    "text.embed.position_embeddings.weight",
    "text.embed.kind",
)


def lightningdot_name(theirs: str) -> str | None:
    """Return our name of one of their tensors; None for one that is unused or joined with others.

    Query, key and value projections of a layer are one tensor here.
    """
    if layer := THEIR_LAYER.fullmatch(theirs):
        ours = longest_prefix(layer[3], LAYER)
        return ours and f"{SIDES[layer[1]]}.body.layers.{layer[2]}.{ours}"
    return longest_prefix(theirs, PREFIXES)


def convert_lightningdot(state: Mapping[str, Tensor]) -> State:
    """Rename the authors' tensors to those of `LightningDOT`; unused ones are left out.

    Known are the names of the fine-tuned files, those of the pre-trained one with "bert." before
    them, and "gamma" and "beta".

    Raises:
        ValueError: a tensor is missing or has too few rows.
    """
    source = {_plain(name): value for name, value in state.items()}
    for name in ROWS.keys() & source.keys():
        check_rows(source[name], name, ROWS[name])
    new = {ours: value for name, value in source.items() if (ours := lightningdot_name(name))}
    for name in source:
        if (layer := THEIR_LAYER.fullmatch(name)) and ".self.query." in name:
            ours = f"{SIDES[layer[1]]}.body.layers.{layer[2]}.enter.{name.rpartition('.')[2]}"
            new[ours] = joined_projections(source, name)
    if KINDS in source:
        new["image.embed.kind"], new["image.embed.regions.kind"] = source[KINDS][:2]
    if POSITION in source:
        new["image.embed.position_embeddings.weight"] = source[POSITION][:1]
    if TEXT_KINDS in source:
        new["text.embed.kind"] = source[TEXT_KINDS][0]
    if VEIL in source:
        new["image.embed.regions.veil"] = source[VEIL][1]
    if missing := [name for name in NEEDED if name not in new]:
        raise ValueError(
            f"this LightningDOT checkpoint has no {missing[0]!r}; is it another system's?"
        )
    names = [f"{side}.{name}" for side in SIDES.values() for name in PROJECTION]
    lacking = [name for name in names if name not in new]
    if 0 < len(lacking) < len(names):
        raise ValueError(
            f"this LightningDOT checkpoint has no {lacking[0]!r} and has other projections "
            "('encode_proj'), so it is incomplete; give the whole file"
        )
    return new


def lightningdot_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of LightningDOT, fine-tuned or pre-trained, with the heads in it.

    Sizes of each tower are read off its tensors; "heads" (64 numbers to each), "mask" (103) and
    "first" (101) may be among the options.

    Raises:
        ValueError: it is not a whole LightningDOT checkpoint, or an option is no whole number.
    """
    state = convert_lightningdot(checkpoint.state)
    options = checkpoint.options
    outputs = tuple(head for head in HEADS if any(n.startswith(f"says.{head}.") for n in state))
    hides = bool({"regress", "classify"} & set(outputs))
    if not hides:
        state.pop("image.embed.regions.veil", None)
    words, width = state["text.embed.word_embeddings.weight"].shape
    text = lazy(
        WordPieceEmbedding,
        vocabulary=words,
        positions=len(state["text.embed.position_embeddings.weight"]),
        width=width,
        dropout=0.1,
        mask=option_value(options, "mask", MASK if words > MASK else 0),
    )
    words, width = state["image.embed.word_embeddings.weight"].shape
    image = lazy(
        TokenAndRegions,
        features=state["image.embed.regions.fc.weight"].shape[1],
        width=width,
        vocabulary=words,
        first=option_value(options, "first", FIRST if words > FIRST else 0),
        hides=hides,
    )
    classes = state.get("says.classify.out.bias")
    spec = config(
        LightningDOT,
        image=_tower(state, "image", image, options),
        text=_tower(state, "text", text, options),
        outputs=outputs,
        classes=1601 if classes is None else len(classes),
    )
    return ConvertedModel(spec, state)


def _tower(
    state: State, side: str, embed: ImageTower | TextTower, options: Mapping[str, Any]
) -> FirstTokenTower:
    """Return the config of the tower that fits renamed tensors."""
    width = state[f"{side}.embed.word_embeddings.weight"].shape[1]
    last = state.get(f"{side}.project.3.weight")
    layers = {name.split(".")[3] for name in state if name.startswith(f"{side}.body.layers.")}
    return lazy(
        FirstTokenTower,
        embed=embed,
        layers=len(layers),
        heads=option_value(options, "heads", max(1, width // HEAD_WIDTH)),
        inner=len(state[f"{side}.body.layers.0.wide.weight"]),
        project=0 if last is None else len(last),
    )


def check_rows(table: Tensor, name: str, rows: int) -> None:
    """Refuse what is no table, or one of fewer rows than are read."""
    if table.dim() != 2 or len(table) < rows:
        raise ValueError(
            f"{name!r} has the shape {tuple(table.shape)}, and a table of at least {rows} "
            f"row{'s' * (rows > 1)} is needed; give the checkpoint as the authors saved it"
        )


def _plain(name: str) -> str:
    name = name.replace("gamma", "weight").replace("beta", "bias").removeprefix("module.")
    inner = name.removeprefix("bert.")
    return inner if inner.startswith(("img_model.", "txt_model.")) else name
