"""CGMN: graphs of regions and of words, matched in training (Cheng et al., TOMM 2022)."""

from __future__ import annotations

from functools import cache
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from counterfoil.core.console import warn
from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
)
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.checkpoints import (
    GRU_TOWERS,
    Checkpoint,
    ConvertedModel,
    State,
    TensorNames,
    convert_towers,
    option_value,
    refuse_options,
)
from counterfoil.models.layers.attention_model import nonempty, torch_scores
from counterfoil.models.layers.cross_attention import HardAssignment, QueryPooling
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    batch_norm_rows,
    batch_norm_tokens,
    check_choice,
    check_positive,
    full_precision,
    pool_vectors,
    single_vector,
    unit_vectors,
    zero_padded,
)
from counterfoil.models.layers.towers import TwoTowerModel, run_recurrent
from counterfoil.papers.models.vsrn import RELATION, RegionRelation, normalise_by

MATCHING = "matching"  # the view of region and word nodes
LEAST = 1e-8  # length of a vector, in a relation
OVERLAP = 0.4  # of two boxes that are related

# The graphs.


def box_overlap(boxes: Tensor, least: float = OVERLAP) -> Tensor:
    """Return (N, R, R) 1.0 where two of an image's boxes (N, R, 4) overlap by at least a share.

    The share is intersection over union. Scaling an image changes nothing, so boxes may be pixels
    or fractions; what stands behind their corners is not read.
    """
    boxes = boxes[..., :4]
    one, other = boxes.unsqueeze(2), boxes.unsqueeze(1)
    corner = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(
        one[..., :2], other[..., :2]
    )
    common = corner.clamp(min=0).prod(-1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    union = area.unsqueeze(2) + area.unsqueeze(1) - common
    return (common >= least * union).to(boxes.dtype)


def dependency_graph(pairs: Tensor, length: int) -> Tensor:
    """Return (N, L, L) weights of word pairs, from dependency pairs (N, E, 2) of a parser.

    Pairs are head and dependent as places in the text, where the first token is 0; -1 is no pair.
    Every word is related to itself. As in the authors' code the first pair of a text, the root's,
    is left out whatever it is, as are places beyond `length`; a pair of a word with itself counts
    once more.
    """
    eye = torch.eye(length, device=pairs.device)
    graph = eye.expand(len(pairs), length, length).clone()
    rest = pairs[:, 1:]
    known = ((rest >= 0) & (rest < length)).all(2)
    row = torch.arange(len(pairs), device=pairs.device).unsqueeze(1).expand(known.shape)[known]
    head, dependent = rest[known].unbind(1)
    graph[row, head, dependent] = 1 + eye[head, dependent]
    graph[row, dependent, head] = 1 + eye[dependent, head]
    return graph


Relation = Literal["released", "cosine"]


def relation_weights(kind: Relation, nodes: Tensor) -> Tensor:
    """Return (N, L, L) relations of nodes (N, L, D) of an item.

    "cosine" is the paper's; "released" divides the product of two nodes by the squared length of
    the second, so it is not symmetric, and is what the published weights were trained with.
    """
    length = torch.linalg.vector_norm(nodes, dim=2).clamp(min=LEAST)
    rows = length if kind == "cosine" else torch.ones_like(length)
    columns = length if kind == "cosine" else length.square()
    weights: Tensor = nodes @ nodes.mT / columns.unsqueeze(1) / rows.unsqueeze(2)
    return weights


@final
class GraphLayer(nn.Module):
    """v + norm(W (A g(v))) with given weights A; it starts as the identity.

    Departs from the authors' code in: padding takes no part in the statistics.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        check_positive(width=width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, nodes: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (N, L, D) nodes from nodes and weights (N, L, L), which are 0 at padding."""
        change = self.out(weights @ self.value(nodes))
        return nodes + batch_norm_tokens(self.norm, change, mask)


# The model.


@final
class CGMN(TwoTowerModel, SingleVectorModel):
    """Graphs of regions and of words, each read into one vector by a recurrent network.

    Regions are related as in VSRN and, with `overlap`, where their boxes overlap; words where one
    depends on the other. In training the nodes are matched, too: the view "matching" scores an
    image and a text by the sum, over words, of the largest cosine with a region. Its loss is
    `SumTripletLoss(margin=0.2, view="matching")` at a weight of 1/3; it plays no part at test time.

    CGMN (https://github.com/cyh-sj/CGMN). The paper normalises region vectors and relates nodes by
    cosine; the code, and so the published weights, divide every feature by its length over the
    regions of an image and relate nodes as `relation_weights` says. The code is the default.

    Departs from the authors' code in: zero vectors give no NaN; regions may be padded; padding
    takes no part in batch statistics, unless `released_padding` is set.
    """

    score_names = frozenset({INFERENCE, MATCHING})

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        layers: int = 4,
        overlap: int = 0,
        least_overlap: float = OVERLAP,
        readers: tuple[int, int] = (1, 1),
        relation: Relation = "released",
        released_padding: bool = False,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            layers: number of layers that relate all regions.
            overlap: number of layers that relate regions whose boxes overlap; the authors' code has
                two of them or, by default, none.
            least_overlap: of two boxes that are related, intersection over union.
            readers: layers of the recurrent networks over regions and over words.
            relation: how strongly two nodes are related, see `relation_weights`.
            released_padding: the authors' code: padding counts in the statistics of the words'
                graph.

        Raises:
            ValueError: an unknown relation, or towers of different widths.
        """
        super().__init__(image, text)
        check_choice("relation", relation, get_args(Relation))
        width = image.width
        self.relation: Relation = relation
        self.released_padding = released_padding
        self.relations = nn.ModuleList(RegionRelation(width=width) for _ in range(layers))
        self.overlaps = nn.ModuleList(GraphLayer(width=width) for _ in range(overlap))
        self.least_overlap = least_overlap
        self.reader = nn.GRU(width, width, readers[0], batch_first=True)
        self.norm = nn.BatchNorm1d(width)
        self.words = GraphLayer(width=width)
        self.text_reader = nn.GRU(width, width, readers[1], batch_first=True)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each."""
        return self.read_regions(self.regions(images))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each."""
        return self.read_words(self.word_nodes(texts))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) cosines of vectors, or the matching of nodes."""
        if images.tokens.shape[1] == texts.tokens.shape[1] == 1:
            return super().score_matrix(images, texts)
        return matching_scores(images, texts)

    @property
    def score_name(self) -> str:
        return "cosine"

    def forward(self, batch: Batch) -> EncodedViews:
        """Encode a training batch, with the nodes of its items as the view "matching"."""
        regions, words = self.regions(batch.images), self.word_nodes(batch.texts)
        return EncodedViews(
            {
                INFERENCE: EncodedBatch(self.read_regions(regions), self.read_words(words)),
                MATCHING: EncodedBatch(unit_vectors(regions), unit_vectors(words)),
            }
        )

    def regions(self, images: ModalityBatch) -> Embeddings:
        """Return the region nodes (N, R, D) of N images."""
        bag = self.image(images)
        mask = None if bool(bag.mask.all()) else bag.mask
        begun = normalise_by("channel", zero_padded(bag.tokens, bag.mask))
        nodes = begun
        for layer in self.relations:
            nodes = layer(nodes, mask)
        if self.overlaps:
            weights = self._overlap(images) * relation_weights(self.relation, begun)
            near = begun
            for layer in self.overlaps:
                near = layer(near, weights, mask)
            nodes = normalise_by("channel", (nodes + near) / 2)
        return Embeddings(nodes, bag.mask)

    def read_regions(self, regions: Embeddings) -> Embeddings:
        """Read regions, in the order they are stored, into one vector."""
        last = _last_state(self.reader, regions)
        return unit_vectors(single_vector(batch_norm_rows(self.norm, last)))

    def word_nodes(self, texts: ModalityBatch) -> Embeddings:
        """Return the word nodes (N, L, D) of N texts, related by their dependencies.

        Without these a word is related to itself alone, of which a process is warned once.

        Raises:
            ValueError: dependencies number words, and the tokens are pieces of words.
        """
        bag = self.text(texts)
        words = zero_padded(bag.tokens, bag.mask)
        pairs = texts.dependencies
        if pairs is None:
            _warn_of_no_pairs()
            pairs = texts.ids.new_full((len(words), 1, 2), -1)
        elif texts.words is not None:
            raise ValueError(
                "the dependency pairs of these captions number their words, and this model's "
                "tokenizer cuts words into pieces; give CGMN a tokenizer of words"
            )
        graph = dependency_graph(pairs, words.shape[1]).to(words.dtype)
        weights = graph * relation_weights(self.relation, words)
        whole = self.released_padding or bool(bag.mask.all())
        nodes = self.words(words, weights, None if whole else bag.mask)
        return Embeddings(zero_padded(nodes, bag.mask), bag.mask)

    def read_words(self, words: Embeddings) -> Embeddings:
        """Read word nodes into one vector."""
        return unit_vectors(single_vector(_last_state(self.text_reader, words)))

    def _overlap(self, images: ModalityBatch) -> Tensor:
        if images.boxes is None:
            raise ValueError(
                "this model relates regions whose boxes overlap, and these image features have no "
                "boxes; give features with boxes (in a precomp folder test_boxes.npy and the "
                "like), or train it with overlap=0"
            )
        real = images.mask.unsqueeze(1) & images.mask.unsqueeze(2)
        near = box_overlap(full_precision(images.boxes), self.least_overlap)
        return near.masked_fill(~real, 0)


@cache
def _warn_of_no_pairs() -> None:
    warn(
        "CGMN relates words that depend on each other, and these captions have no pairs of a "
        "parser (a precomp folder has them in test_caps.json and the like; captions that are "
        "written or typed have none): each word is related to itself alone, so that scores are "
        "not the authors'"
    )


def matching_scores(images: Embeddings, texts: Embeddings) -> Tensor:
    """Return (I, T) sums over words of the largest product with a region, of nodes of length 1."""
    pooling = QueryPooling("Sum", divisor=1)
    return torch_scores(nonempty(images), texts, (HardAssignment("t2i"),), pooling)


def _last_state(reader: nn.GRU, bag: Embeddings) -> Tensor:
    """Return the (N, D) state of a recurrent network after each item's last real vector."""
    if bool(bag.mask.all()):
        states: Tensor = reader(bag.tokens)[0]
    else:
        states = run_recurrent(reader, bag.tokens, bag.mask)
    return pool_vectors("last", Embeddings(states, bag.mask))


# The authors' checkpoints: their tensor names and ours.


LAYERS = ("", *map(str, range(2, 10)))  # the authors have 4 and, of overlapping boxes, 2
GRAPH = {theirs: ours for theirs, ours in RELATION.items() if theirs not in ("theta", "phi")}
NAMES = TensorNames(
    system="a CGMN",
    prefixes={
        **GRU_TOWERS,
        "img_enc.img_rnn.": "reader.",
        "img_enc.bn.": "norm.",
        **{
            f"img_enc.GCN{number}.{theirs}.": f"relations.{n}.{ours}."
            for n, number in enumerate(LAYERS)
            for theirs, ours in RELATION.items()
        },
        **{
            f"img_enc.relationGCN{number}.{theirs}.": f"overlaps.{n}.{ours}."
            for n, number in enumerate(LAYERS)
            for theirs, ours in GRAPH.items()
        },
        **{f"txt_enc.GCN.{theirs}.": f"words.{ours}." for theirs, ours in GRAPH.items()},
        "txt_enc.decoder.": "text_reader.",
    },
    needed=(
        "image.fc.weight",
        "reader.weight_ih_l0",
        "norm.running_mean",
        "relations.0.norm.running_mean",
        "text.embed.weight",
        "text.rnn.weight_ih_l0",
        "words.norm.running_mean",
        "text_reader.weight_ih_l0",
    ),
)


def convert_cgmn(state: dict[str, Tensor]) -> State:
    """Rename the authors' tensors to those of `CGMN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    new: State = {}
    for name, value in NAMES.renamed(state).items():
        # their projections are convolutions of width 1
        new[name] = value.squeeze(-1) if value.dim() == 3 else value
    return new


def cgmn_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of CGMN, with its graph of overlapping boxes where it was trained so.

    Its options say so by `if_IOU`; without that, the tensors of that graph do.

    Raises:
        ValueError: a tensor is missing or unknown, or it compares vectors in another way.
    """
    refuse_options(CGMN, checkpoint, {"use_abs": (False,), "measure": ("cosine", False)})
    state = convert_cgmn(dict(checkpoint.state))
    layers = {
        part: len({name.split(".")[1] for name in state if name.startswith(f"{part}.")})
        for part in ("relations", "overlaps")
    }
    if not option_value(checkpoint.options, "if_IOU", layers["overlaps"] > 0):
        state = {name: value for name, value in state.items() if not name.startswith("overlaps.")}
        layers["overlaps"] = 0
    elif not layers["overlaps"]:
        raise ValueError("this CGMN checkpoint was trained with if_IOU and has no 'relationGCN'")
    readers = [
        sum(name.startswith(f"{part}.weight_ih_l") for name in state)
        for part in ("reader", "text_reader")
    ]
    return convert_towers(
        CGMN,
        checkpoint,
        state,
        layers=layers["relations"],
        overlap=layers["overlaps"],
        readers=(readers[0], readers[1]),
    )
