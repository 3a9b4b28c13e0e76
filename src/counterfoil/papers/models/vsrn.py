"""VSRN: regions that reason about each other, read into one vector (Li et al., ICCV 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, pad

from counterfoil.core.config import lazy
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
    THIRD,
    Checkpoint,
    ConvertedModel,
    State,
    TensorNames,
    convert_towers,
    given_options,
    option_value,
    refuse_options,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    batch_norm_rows,
    batch_norm_tokens,
    check_choice,
    check_positive,
    pool_vectors,
    single_vector,
    unit_vectors,
    zero_padded,
)
from counterfoil.models.layers.towers import TwoTowerModel, run_recurrent

# Region relationship reasoning (section 3.1).


RegionNorm = Literal["channel", "vector"]


@final
class RegionRelation(nn.Module):
    """v + norm(W (R v)) with R = theta(v) phi(v)^T / number of regions (eq. 2 to 4).

    It starts as the identity: scale and shift of the normalisation start at 0. The added term is
    cubic in v, so regions far from unit scale may overflow.

    Departs from the authors' code in: padding takes part neither in R nor in the statistics, and
    a single region is normalised by the running statistics.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        check_positive(width=width)
        self.theta, self.phi = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (N, R, D) regions from regions, zero at padding; without a mask all are real."""
        relation = self.theta(tokens) @ self.phi(tokens).mT
        if mask is None:
            change = self.out(relation @ self.value(tokens) / tokens.shape[1])
        else:
            count = mask.sum(1).clamp(min=1).view(-1, 1, 1)
            change = self.out(relation @ zero_padded(self.value(tokens), mask) / count)
        return tokens + batch_norm_tokens(self.norm, change, mask)


def normalise_by(kind: RegionNorm, tokens: Tensor) -> Tensor:
    """Scale (N, R, D) regions to length 1 ("vector") or each feature of an image (the authors')."""
    length = torch.linalg.vector_norm(tokens, dim=1 if kind == "channel" else 2, keepdim=True)
    scaled: Tensor = tokens / length.masked_fill(length == 0, 1)
    return scaled


# Caption generation, an auxiliary loss in training (section 3.4).


@final
@dataclass(frozen=True, slots=True)
class CaptionerMemory:
    """The keys and values that the decoder attends to."""

    states: Tensor  # (P, R, H) of the recurrent network over the regions
    keys: Tensor  # (P, R, H) their part of the attention, computed once
    hidden: Tensor | None  # (P, R) bool, True at padding; None where there is none

    def first(self, count: int) -> CaptionerMemory:
        """Return the memory of the first `count` captions."""
        if count == len(self.states):
            return self
        hidden = None if self.hidden is None else self.hidden[:count]
        return CaptionerMemory(self.states[:count], self.keys[:count], hidden)


@final
class Captioner(nn.Module):
    """A recurrent reader of regions and a recurrent writer that attends to them (section 3.4).

    The writer sees the words so far. After the last token it must predict one padding token, as
    the authors have it, except in captions that are cut.

    Departs from the authors' code in: each caption is left at its end and the vocabulary is
    scored for its own tokens only, where theirs runs `longest` - 1 steps (the loss is the same);
    regions may be padded.
    """

    def __init__(
        self,
        *,
        words: int,
        width: int,
        hidden: int = 512,
        word_width: int = 300,
        dropout: float = 0.2,
        longest: int = 60,
    ) -> None:
        """Initialise the module.

        Args:
            words: size of the vocabulary.
            width: of the region vectors.
            hidden: width of both recurrent networks.
            word_width: width of a word embedding.
            dropout: share of what both networks read that is dropped in training.
            longest: longer captions are cut to so many tokens, their last one kept.

        Raises:
            ValueError: a size that is not possible.
        """
        super().__init__()
        check_positive(words=words, width=width, hidden=hidden, word_width=word_width)
        if longest < 2:
            raise ValueError(
                f"longest={longest} leaves no token to predict after the first one; it must be at "
                "least 2"
            )
        self.width, self.longest = width, longest
        self.fc = nn.Linear(width, hidden)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.embed = nn.Embedding(words, word_width)
        self.attend, self.focus = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1, bias=False)
        self.writer = nn.GRUCell(word_width + hidden, hidden)
        self.out = nn.Linear(hidden, words)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_normal_(self.fc.weight)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, regions: Embeddings, captions: Tensor) -> Tensor:
        """Return the () negative log likelihood of captions (P, L), -1 behind their ends."""
        if not len(captions):  # several processes must agree on which parameters have a gradient
            return torch.stack([parameter.sum() for parameter in self.parameters()]).sum() * 0
        ids, steps = self._cut(captions)
        order = steps.argsort(descending=True, stable=True)
        ids, steps = ids[order], steps[order]
        states = self.write(regions.rows(order), ids, steps)
        going = torch.arange(ids.shape[1] - 1, device=ids.device).unsqueeze(1) < steps
        return cross_entropy(self.out(states), ids[:, 1:].T[going], reduction="sum")

    def write(self, regions: Embeddings, ids: Tensor, steps: Tensor) -> Tensor:
        """Return the states after each word, step after step; `steps`, descending, count words."""
        memory, state = self._read(regions)
        going = torch.arange(int(steps[0]), device=ids.device).unsqueeze(1) < steps
        words = self._words(ids[:, : len(going)].T[going])
        states: list[Tensor] = []
        for read in torch.split(words, going.sum(1).tolist()):
            memory = memory.first(len(read))
            state = self._step(memory, read, state[: len(read)])
            states.append(state)
        return torch.cat(states)

    def _cut(self, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (P, L + 1) ids with padding 0, and the number of predicted ones."""
        counts = (captions >= 0).sum(1)
        ids = pad(captions.clamp(min=0), (0, 1))
        if ids.shape[1] > self.longest:
            last = ids.gather(1, (counts - 1).clamp(min=0).unsqueeze(1))[:, 0]
            ids = ids[:, : self.longest].clone()
            ids[:, -1] = torch.where(counts >= self.longest, last, ids[:, -1])
        return ids, counts.clamp(max=self.longest - 1)

    def _read(self, regions: Embeddings) -> tuple[CaptionerMemory, Tensor]:
        """Return the memory that the decoder attends to, and its initial state."""
        no_padding = bool(regions.mask.all())
        tokens = self.dropout(self.fc(zero_padded(regions.tokens, regions.mask)))
        states = (
            self.reader(tokens)[0]
            if no_padding
            else run_recurrent(self.reader, tokens, regions.mask)
        )
        width = states.shape[-1]
        keys = linear(states, self.attend.weight[:, :width], self.attend.bias)
        memory = CaptionerMemory(states, keys, None if no_padding else ~regions.mask)
        return memory, pool_vectors("last", Embeddings(states, regions.mask))

    def _words(self, ids: Tensor) -> Tensor:
        """Return (P, 3H) contributions of words to the gates."""
        words = self.dropout(self.embed(ids))
        weight = self.writer.weight_ih[:, : words.shape[-1]]
        return linear(words, weight, self.writer.bias_ih)

    def _step(self, memory: CaptionerMemory, words: Tensor, state: Tensor) -> Tensor:
        """Return the next state (P, H)."""
        width = state.shape[-1]
        query = linear(state, self.attend.weight[:, width:]).unsqueeze(1)
        energy = self.focus((memory.keys + query).tanh_()).squeeze(-1)
        if memory.hidden is not None:
            energy = energy.masked_fill(memory.hidden, -torch.inf)
        context = self.dropout((energy.softmax(1).unsqueeze(1) @ memory.states).squeeze(1))
        read = words + linear(context, self.writer.weight_ih[:, -width:])
        again = linear(state, self.writer.weight_hh, self.writer.bias_hh)
        reset, keep = (read + again)[:, : 2 * width].sigmoid().chunk(2, 1)
        new = (read[:, 2 * width :] + reset * again[:, 2 * width :]).tanh()
        return new + keep * (state - new)


Passes = Literal["together", "separate"]


@final
class VSRN(TwoTowerModel, SingleVectorModel):
    """Relation layers, then a recurrent network over the regions; its last state is the image.

    In training a `Captioner` writes the captions from the regions: the loss "caption" is the mean
    over the anchors, without the negatives. The captioner is saved with the model but unused at
    test time.

    The loss does not depend on the number of processes, but batch normalisation is over the images
    of each process.

    Departs from the authors' code in: zero vectors give no NaN; regions may be padded; captioner
    parameters are updated and clipped once; anchors and offline negatives may be encoded
    together; and `region_norm="vector"` is what the paper says, "channel" what they trained.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        captioner: Captioner | None = None,
        caption_weight: float = 1.0,
        layers: int = 4,
        region_norm: RegionNorm = "vector",
        normalise_regions: bool = True,
        batch_norm: bool = False,
        bn_passes: Passes = "together",
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts; its last state is the text.
            captioner: writes captions in training; None for no such loss.
            caption_weight: of its loss; at 0 there is no captioner.
            layers: number of relation layers.
            region_norm: axis of the normalisation to length 1, see `normalise_by`.
            normalise_regions: normalise before the relation layers too, as the authors on COCO.
            batch_norm: normalise image vectors over the batch, as the authors on Flickr30K.
            bn_passes: "together", or "separate": anchors and offline negatives have batch
                statistics of their own. The authors' form has three passes, with the negatives of
                images and those of texts apart.

        Raises:
            ValueError: an option that is not known, or parts of different widths.
        """
        super().__init__(image, text)
        check_choice("region_norm", region_norm, get_args(RegionNorm))
        check_choice("bn_passes", bn_passes, get_args(Passes))
        if captioner is not None and captioner.width != image.width:
            raise ValueError(
                f"the captioner reads {captioner.width} numbers per region and the image tower "
                f"gives {image.width}; give both the same width"
            )
        self.relations = nn.ModuleList(RegionRelation(width=image.width) for _ in range(layers))
        self.reader = nn.GRU(image.width, image.width, batch_first=True)
        self.norm = nn.BatchNorm1d(image.width) if batch_norm else None
        self.captioner = captioner if caption_weight else None
        self.caption_weight = caption_weight
        self.region_norm: RegionNorm = region_norm
        self.normalise_regions = normalise_regions
        self.bn_passes = bn_passes

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each."""
        return self.read(self.regions(images))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each."""
        return unit_vectors(single_vector(pool_vectors("last", self.text(texts))))

    def forward(self, batch: Batch) -> EncodedViews:
        """Encode a training batch, with the loss of the captioner."""
        images, regions = self._encoded(batch)
        views = {INFERENCE: EncodedBatch(images, self.encode_texts(batch.texts))}
        targets = batch.images.targets
        if self.captioner is None or targets is None:
            return EncodedViews(views)
        place, number = (targets[:, :, 0] >= 0).nonzero(as_tuple=True)
        loss = self.captioner(regions.rows(place), targets[place, number])
        return EncodedViews(
            views, {"caption": self.caption_weight * loss / len(batch.anchors.text)}
        )

    def regions(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors after the relation layers."""
        bag = self.image(images)
        tokens = zero_padded(bag.tokens, bag.mask)
        mask = None if bool(bag.mask.all()) else bag.mask
        if self.normalise_regions:
            tokens = normalise_by(self.region_norm, tokens)
        for layer in self.relations:
            tokens = layer(tokens, mask)
        return Embeddings(normalise_by(self.region_norm, tokens), bag.mask)

    def read(self, regions: Embeddings) -> Embeddings:
        """Read regions, in the order they are stored, into one vector."""
        no_padding = bool(regions.mask.all())
        states = (
            self.reader(regions.tokens)[0]
            if no_padding
            else run_recurrent(self.reader, regions.tokens, regions.mask)
        )
        vector = pool_vectors("last", Embeddings(states, regions.mask))
        return unit_vectors(
            single_vector(batch_norm_rows(self.norm, vector) if self.norm else vector)
        )

    def _encoded(self, batch: Batch) -> tuple[Embeddings, Embeddings]:
        """Return vectors and regions of the batch's images, in one pass or two (`bn_passes`)."""
        if self.bn_passes == "together":
            regions = self.regions(batch.images)
            return self.read(regions), regions
        anchors = batch.image_rows[: batch.block[0]].to(batch.images.ids.device)
        anchor = torch.isin(batch.images.ids, anchors)
        places = [places for some in (anchor, ~anchor) if len(places := some.nonzero()[:, 0])]
        parts = [self.regions(batch.images.rows(some)) for some in places]
        back = torch.cat(places).argsort()
        images = Embeddings.cat([self.read(part) for part in parts])
        return images.rows(back), Embeddings.cat(parts).rows(back)


# The authors' checkpoints: their tensor names and ours.


RELATION = {"g": "value", "theta": "theta", "phi": "phi", "W.0": "out", "W.1": "norm"}
CAPTIONER = {
    "encoder.vid2hid.": "fc.",
    "encoder.rnn.": "reader.",
    "decoder.embedding.": "embed.",
    "decoder.attention.linear1.": "attend.",
    "decoder.attention.linear2.": "focus.",
    "decoder.rnn.": "writer.",
    "decoder.out.": "out.",
}
CAPTIONER_OPTIONS = {"max_len": "longest", "input_dropout_p": "dropout"}
NAMES = TensorNames(
    system="a VSRN",
    prefixes={
        **GRU_TOWERS,
        "img_enc.img_rnn.": "reader.",
        "img_enc.bn.": "norm.",
        **{
            f"img_enc.Rs_GCN_{n + 1}.{theirs}.": f"relations.{n}.{ours}."
            for n in range(4)
            for theirs, ours in RELATION.items()
        },
        **{f"{THIRD}{theirs}": f"captioner.{ours}" for theirs, ours in CAPTIONER.items()},
    },
    needed=(
        "image.fc.weight",
        "reader.weight_ih_l0",
        *(f"relations.{n}.norm.running_mean" for n in range(4)),
        "text.embed.weight",
        "text.rnn.weight_ih_l0",
    ),
)


def convert_vsrn(state: Mapping[str, Tensor]) -> State:
    """Rename the authors' tensors to those of `VSRN`, with its captioner's where they are there.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    names = NAMES
    if any(THIRD in name for name in state):
        captioner = ("captioner.fc.weight", "captioner.embed.weight")
        names = replace(NAMES, needed=(*NAMES.needed, *captioner))
    new: State = {}
    for name, value in names.renamed(state).items():
        if name.startswith("captioner.writer."):  # a cell here, a network of one layer theirs
            new[name.removesuffix("_l0")] = value
        else:  # their region projections are convolutions of width 1
            new[name] = value.squeeze(-1) if name.startswith("relations.") else value
    return new


def vsrn_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of VSRN; without its options, Flickr30K's where it has that norm.

    Raises:
        ValueError: a tensor is missing or unknown, or it compares vectors in another way.
    """
    refuse_options(VSRN, checkpoint, {"use_abs": (False,), "measure": ("cosine", False)})
    state = convert_vsrn(checkpoint.state)
    batch_norm = "norm.weight" in state
    batch_norm &= option_value(checkpoint.options, "data_name", "f30k").startswith("f30k")
    if not batch_norm:
        state = {name: value for name, value in state.items() if not name.startswith("norm.")}
    captioner = None
    if "captioner.fc.weight" in state:
        hidden, width = state["captioner.fc.weight"].shape
        words, word_width = state["captioner.embed.weight"].shape
        captioner = lazy(
            Captioner,
            words=words,
            width=width,
            hidden=hidden,
            word_width=word_width,
            **given_options(Captioner, checkpoint, CAPTIONER_OPTIONS),
        )
    return convert_towers(
        VSRN,
        checkpoint,
        state,
        captioner=captioner,
        region_norm="channel",
        normalise_regions=not batch_norm,
        batch_norm=batch_norm,
    )
