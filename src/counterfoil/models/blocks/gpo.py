"""Pooling that learns how much each rank counts (Chen et al., CVPR 2021)."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from counterfoil.models.blocks.gru import recurrent
from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.tower import positive
from counterfoil.records import Encoded

BASE = 10_000.0


@final
class GeneralPool(nn.Module):
    """The k-th largest value of every feature counts theta_k, which depends on the length alone.

    Mean and maximum are special cases. A recurrent network reads the positions up to the length and
    gives theta (eq. 3 to 6), once for each length that occurs. Where no gradient is wanted, theta
    is kept until the weights change.

    Departs from the authors' code in: a set without any vector gives zero.
    """

    def __init__(self, *, positions: int = 32, hidden: int = 32, temperature: float = 0.1) -> None:
        """Keyword arguments.

        Args:
            positions: width of a position's encoding.
            hidden: width of the recurrent network, in each direction.
            temperature: of the softmax that gives theta.

        Raises:
            ValueError: a size below 1, or a temperature that is not positive.
        """
        super().__init__()
        positive(positions=positions, hidden=hidden)
        if temperature <= 0:
            raise ValueError(f"temperature={temperature} is not possible; it must be above 0")
        self.temperature = temperature
        self.rnn = nn.GRU(positions, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden, 1, bias=False)
        self._kept: dict[int, Tensor] = {}
        self._kept_of: tuple[object, ...] = ()

    def forward(self, bag: Encoded) -> Tensor:
        """(N, D) one vector per bag of (N, L, D)."""
        with torch.autocast(bag.tokens.device.type, enabled=False):
            weights = self.weights(bag.mask.sum(1), bag.mask.shape[1])
            values = ranked(bag)
            return (values @ weights.to(values.dtype).unsqueeze(-1)).squeeze(-1)

    def weights(self, lengths: Tensor, longest: int) -> Tensor:
        """(N, longest) theta for N lengths, 0 from each length on."""
        distinct, which = torch.unique(lengths, return_inverse=True)
        if torch.is_grad_enabled():
            found = self._theta(distinct)
        else:
            found = pad_sequence(self._remembered(distinct.tolist()), batch_first=True)
        return pad(found, (0, longest - found.shape[1]))[which]

    def _theta(self, lengths: Tensor) -> Tensor:
        """(U, longest of them) theta, worked out."""
        place = torch.arange(max(1, int(lengths.max())), device=lengths.device)
        real = place < lengths.clamp(min=1).unsqueeze(1)
        codes = sinusoids(place, self.rnn.input_size).to(self.score.weight.dtype)
        states = recurrent(self.rnn, codes.expand(len(lengths), -1, -1), real)
        states = states.view(*real.shape, 2, -1).mean(-2)
        scores = self.score(states).squeeze(-1) / self.temperature
        theta: Tensor = scores.masked_fill(~real, -torch.inf).softmax(1)
        return theta.masked_fill(place >= lengths.unsqueeze(1), 0)

    def _remembered(self, lengths: list[int]) -> list[Tensor]:
        """Theta of each length; worked out where these weights were not yet asked for it."""
        state = tuple((p.data_ptr(), p.device, p.dtype, _version(p)) for p in self.parameters())
        if state != self._kept_of:
            self._kept, self._kept_of = {}, state
        if new := [length for length in lengths if length not in self._kept]:
            theta = self._theta(torch.tensor(new, device=self.score.weight.device))
            self._kept |= {n: row[:n] for n, row in zip(new, theta, strict=True)}
        return [self._kept[length] for length in lengths]


def ranked(bag: Encoded) -> Tensor:
    """(N, D, L) every feature of a bag on its own from largest to smallest; 0 behind the last."""
    whole = bool(bag.mask.all())
    tokens = full(bag.tokens)
    if not whole:
        tokens = tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf)
    # sorting is several times as fast along the dimension that lies together in memory
    values = tokens.mT.contiguous().sort(dim=-1, descending=True).values
    if whole:
        return values
    place = torch.arange(bag.mask.shape[1], device=values.device)
    return values.masked_fill((place >= bag.mask.sum(1, keepdim=True)).unsqueeze(1), 0)


def sinusoids(place: Tensor, width: int) -> Tensor:
    """(L, width) sines and cosines of L positions, side by side at each frequency."""
    rates = torch.exp(torch.arange(0, width, 2, device=place.device) * (-math.log(BASE) / width))
    angles = place.unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]


def _version(parameter: Tensor) -> object:
    """Something that changes with the parameter's values."""
    return object() if parameter.is_inference() else parameter._version
