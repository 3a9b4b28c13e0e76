"""GPO, or VSE-infinity: features pooled by rank with learned weights (Chen et al., CVPR 2021)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.checkpoints import (
    BERT,
    POSITIONS,
    REGIONS,
    TEXTS,
    UNUSED,
    WRAPPER,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_positive,
    full_precision,
    single_vector,
)
from counterfoil.models.layers.towers import TwoTowerModel, run_recurrent
from counterfoil.papers.models.grid import (
    BACKBONE,
    BODY,
    BODY_NEEDED,
    FIRST,
    WHOLE,
    reads_detector,
    resnet_config,
)

# The pooling operator.


BASE = 10_000.0


@final
class GeneralizedPooling(nn.Module):
    """Generalized pooling: a weighted sum of each feature's values in descending order.

    The k-th largest value of every feature has the weight theta_k, which depends on the length of
    the set alone.

    Mean and maximum are special cases. A recurrent network reads the positions up to the length and
    gives theta (eq. 3 to 6), once for each length that occurs. Without gradients, theta is
    cached until the weights change.

    Departs from the authors' code in: a set without any vector gives zero.
    """

    def __init__(self, *, positions: int = 32, hidden: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        check_positive(positions=positions, hidden=hidden)
        if temperature <= 0:
            raise ValueError(f"temperature={temperature} is not possible; it must be above 0")
        self.temperature = temperature
        self.rnn = nn.GRU(positions, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden, 1, bias=False)
        self._cache: dict[int, Tensor] = {}
        self._cache_state: tuple[object, ...] = ()

    def forward(self, bag: Embeddings) -> Tensor:
        """Pool (N, L, D) to (N, D)."""
        with torch.autocast(bag.tokens.device.type, enabled=False):
            weights = self.weights(bag.mask.sum(1), bag.mask.shape[1])
            values = sort_by_rank(bag)
            return (values @ weights.to(values.dtype).unsqueeze(-1)).squeeze(-1)

    def weights(self, lengths: Tensor, longest: int) -> Tensor:
        """Return theta (N, longest) for N lengths, 0 from each length on."""
        distinct, index = torch.unique(lengths, return_inverse=True)
        if torch.is_grad_enabled():
            theta = self._theta(distinct)
        else:
            theta = pad_sequence(self._cached_theta(distinct.tolist()), batch_first=True)
        return pad(theta, (0, longest - theta.shape[1]))[index]

    def _theta(self, lengths: Tensor) -> Tensor:
        """Compute theta (U, longest) of U lengths."""
        place = torch.arange(max(1, int(lengths.max())), device=lengths.device)
        real = place < lengths.clamp(min=1).unsqueeze(1)
        codes = sinusoids(place, self.rnn.input_size).to(self.score.weight.dtype)
        states = run_recurrent(self.rnn, codes.expand(len(lengths), -1, -1), real)
        states = states.view(*real.shape, 2, -1).mean(-2)
        scores = self.score(states).squeeze(-1) / self.temperature
        theta: Tensor = scores.masked_fill(~real, -torch.inf).softmax(1)
        return theta.masked_fill(place >= lengths.unsqueeze(1), 0)

    def _cached_theta(self, lengths: list[int]) -> list[Tensor]:
        """Return theta of each length, computed if the cache of the present weights lacks it."""
        state = tuple((p.data_ptr(), p.device, p.dtype, _version(p)) for p in self.parameters())
        if state != self._cache_state:
            self._cache, self._cache_state = {}, state
        if new := [length for length in lengths if length not in self._cache]:
            theta = self._theta(torch.tensor(new, device=self.score.weight.device))
            self._cache |= {n: row[:n] for n, row in zip(new, theta, strict=True)}
        return [self._cache[length] for length in lengths]


def sort_by_rank(bag: Embeddings) -> Tensor:
    """Sort each feature's values in descending order: (N, L, D) to (N, D, L), 0 at padding."""
    no_padding = bool(bag.mask.all())
    tokens = full_precision(bag.tokens)
    if not no_padding:
        tokens = tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf)
    # sorting is several times as fast along the contiguous dimension
    values = tokens.mT.contiguous().sort(dim=-1, descending=True).values
    if no_padding:
        return values
    place = torch.arange(bag.mask.shape[1], device=values.device)
    return values.masked_fill((place >= bag.mask.sum(1, keepdim=True)).unsqueeze(1), 0)


def sinusoids(place: Tensor, width: int) -> Tensor:
    """Return (L, width) sines and cosines of L positions, side by side at each frequency."""
    rates = torch.exp(torch.arange(0, width, 2, device=place.device) * (-math.log(BASE) / width))
    angles = place.unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]


def _version(parameter: Tensor) -> object:
    """Return an object that changes with the values; inference tensors have no counter."""
    return object() if parameter.is_inference() else parameter._version


@final
class GPO(TwoTowerModel, SingleVectorModel):
    """Two towers with a learned pooling behind each, compared by cosine.

    Detected regions are read by `MLPRegions`, grid cells by one linear layer, words by a `GRU` in
    both directions or by `BertTextTower`; the first and the last token of a text are pooled as
    words.

    Departs from the authors' code in: zero vectors give no NaN, and padding takes no part in the
    batch statistics of `MLPRegions`.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        positions: int = 32,
        hidden: int = 32,
        temperature: float = 0.1,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            positions: width of a position's encoding in the poolings.
            hidden: width of their recurrent networks.
            temperature: of the weights of the ranks.
            normalise_images: scale image vectors to length 1.
            normalise_texts: scale text vectors to length 1.

        Raises:
            ValueError: the towers end in spaces of different widths.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        self.image_pool, self.text_pool = (
            GeneralizedPooling(positions=positions, hidden=hidden, temperature=temperature)
            for _ in range(2)
        )

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each."""
        return self.scale_images(single_vector(self.image_pool(self.image(images))))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each."""
        return self.scale_texts(single_vector(self.text_pool(self.text(texts))))


# The authors' checkpoints: their tensor names and ours.


_POOLS = {
    "txt_enc.gpool.gru.": "text_pool.rnn.",
    "txt_enc.gpool.linear.": "text_pool.score.",
}
NAMES = TensorNames(
    system="a GPO",
    prefixes={
        **REGIONS,
        "img_enc.gpool.gru.": "image_pool.rnn.",
        "img_enc.gpool.linear.": "image_pool.score.",
        **TEXTS,
        **_POOLS,
    },
    unused=UNUSED,
    needed=("image.fc.weight", "image_pool.score.weight", "text_pool.score.weight"),
    either=("text.fc.weight", "text.embed.weight"),
)
PIXEL_NAMES = replace(
    NAMES,
    prefixes={
        **BODY,
        "img_enc.image_encoder.fc.": "image.fc.",
        "img_enc.image_encoder.gpool.gru.": "image_pool.rnn.",
        "img_enc.image_encoder.gpool.linear.": "image_pool.score.",
        **TEXTS,
        **_POOLS,
    },
    unused=(WHOLE, POSITIONS),
    needed=(*NAMES.needed, *BODY_NEEDED),
)


def gpo_from_checkpoint(checkpoint: Checkpoint, *, bert: str = BERT) -> ConvertedModel:
    """Convert a checkpoint of GPO on regions, grid cells or pixels, with BiGRU or BERT."""
    pixels = any(WRAPPER.sub("", name).startswith(BACKBONE) for name in checkpoint.state)
    state = (PIXEL_NAMES if pixels else NAMES).renamed(checkpoint.state)
    if pixels and reads_detector(checkpoint.options):  # it reads blue first, and pictures here red
        state[FIRST] = state[FIRST].flip(1)
    gates, positions = state["image_pool.rnn.weight_ih_l0"].shape  # a GRU stacks three gates
    return convert_towers(
        GPO,
        checkpoint,
        state,
        bert=bert,
        image=resnet_config(state) if pixels else None,
        positions=positions,
        hidden=gates // 3,
    )
