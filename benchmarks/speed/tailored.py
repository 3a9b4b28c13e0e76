"""TAGS: the written negatives of one positive, against the plain form that finds the same.

The plain form hides words of a caption K times, asks for words at every token of the K sequences,
refills each L times, scores all K x L captions in a padded batch, and only then drops those that
are written twice or may be true. Untrained weights would hardly write anything twice, so the
writer's bias is how often each word occurs: a trained writer knows more, and repeats itself more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.speed import Result
from benchmarks.speed.gemm import Timing, against
from benchmarks.speed.uniter import LONGEST, REGIONS, SIZES, Padded
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.tags.generation import MaskedInputs, MaskRefill
from counterfoil.papers.tags.inputs import (
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
    SelectedNegatives,
)
from counterfoil.papers.tags.scoring import PairInputs, predict_words, score_in_parts

MASKS = REFILLS = 20
KEEP, LENGTH, REPEATS = 31, 14, {"base": 1, "small": 3}
TARGET = 0.4  # 2.5 times as fast
CORPUS = "scenes:images=300,features=regions"


@torch.no_grad()
def results(threads: int) -> Iterator[Result]:
    """The other form is the plain one here."""
    for size, (sizes, _) in SIZES.items():
        torch.manual_seed(0)
        work = Work.of(UNITER(outputs=("rank", "fill"), **sizes).eval())
        timing = work.compared(REPEATS[size])
        left = int(work.candidate_filter.allowed(work.candidates(work.written())).sum())
        note = (
            f"{timing.work:.1f} s, plain {timing.plain:.1f} s; {MASKS + left} sequences read, "
            f"{left} of {MASKS * REFILLS} written captions scored; plain {MASKS + MASKS * REFILLS}"
        )
        what = f"UNITER-{size}, {MASKS} maskings x {REFILLS} refills of a caption"
        yield Result(f"{what}, {REGIONS} regions", timing.ratio, TARGET, None, note)


@dataclass(frozen=True, slots=True)
class Work:
    """One positive: a caption of `LENGTH` tokens in a batch whose longest has `LONGEST`."""

    host: UNITER
    inputs: GeneratorInputs
    mask_refill: MaskRefill
    candidate_filter: CandidateFilter
    row: Tensor
    images: Embeddings
    hidden: MaskedInputs

    @staticmethod
    def of(host: UNITER) -> Work:
        dataset = load_dataset(CORPUS).split("train")
        processor = ProcessorConfig().fit(dataset).process(dataset)
        inputs, mask_refill = (
            GeneratorInputs(processor=processor, parser=RulePhraseParser(), mask=3),
            MaskRefill(),
        )
        lengths = processor.texts(torch.arange(len(dataset.texts))).mask.sum(1)
        row = (lengths == LENGTH).nonzero()[:1, 0]
        _biased(host, processor.texts(torch.arange(len(dataset.texts))))
        rng, device = torch.Generator().manual_seed(0), torch.device("cpu")
        hidden = mask_refill.mask(inputs, row, mask=3, rng=rng, device=device)
        regions = torch.randn(1, REGIONS, host.text.width, generator=rng)
        images = Embeddings(regions, torch.ones(1, REGIONS, dtype=torch.bool))
        return Work(host, inputs, mask_refill, CandidateFilter(), row, images, hidden)

    def compared(self, repeats: int) -> Timing:
        """Ours against the plain form; both have to find the same captions in the same order."""
        ours: list[SelectedNegatives] = []
        plain: list[SelectedNegatives] = []
        timing = against(
            lambda: plain.append(self.to_dict()),
            lambda: ours.append(self.ours()),
            repeats=repeats,
            warm=0,
        )
        for one, other in zip(ours, plain, strict=True):
            assert one.number.tolist() == other.number.tolist(), "other captions were found"
        return timing

    def ours(self) -> SelectedNegatives:
        """The hardest written captions, as `TagsGenerator` selects them."""
        found = self.candidates(self.written())
        may = self.candidate_filter.allowed(found)
        number = may.nonzero()[:, 1]
        shown = PairInputs(
            self.images, self._items(found.generated[0, number]), torch.zeros_like(number)
        )
        return self.candidate_filter.select(found, score_in_parts(self.host, shown), may, KEEP)

    def written(self) -> Tensor:
        """(1, K * L, tokens) captions with new words."""
        masked = self.hidden.masked
        shown = PairInputs(self.images, masked.texts, torch.zeros(MASKS, dtype=torch.long))
        logits = predict_words(self.host, shown, masked.slots)
        return self.mask_refill.refill(self.inputs, self.hidden, logits, _drawing())

    def to_dict(self) -> SelectedNegatives:
        """The same from padded sequences, all words of all tokens, and all captions."""
        masked = self.hidden.masked
        states = self._padded(masked.texts).states()[:, :LONGEST]
        words = self.host.filled(states.flatten(0, 1)).view(MASKS, LONGEST, -1)
        logits = words[masked.slots.pair, masked.slots.place]
        found = self.candidates(
            self.mask_refill.refill(self.inputs, self.hidden, logits, _drawing())
        )
        scores = self._padded(self._items(found.generated[0])).scores()
        may = self.candidate_filter.allowed(found)
        return self.candidate_filter.select(found, scores[may[0]], may, KEEP)

    def candidates(self, written: Tensor) -> GeneratedCandidates:
        """The inputs of the filter."""
        image = self.inputs.processor.dataset.text_to_image[self.row]
        return GeneratedCandidates(self.inputs, image, self.row, self.hidden.texts.values, written)

    def _items(self, values: Tensor) -> ModalityBatch:
        ids = torch.full((len(values),), -1)
        return ModalityBatch(ids, values, self.hidden.texts.mask.expand(len(values), -1))

    def _padded(self, texts: ModalityBatch) -> Padded:
        read = self.host.encode_texts(texts).padded(LONGEST)
        return Padded(self.host, self.images.rows(torch.zeros(len(texts), dtype=torch.long)), read)


def _drawing() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _biased(host: UNITER, texts: ModalityBatch) -> None:
    """Let the writer know how often words occur, and that no others do."""
    fill = host.says.fill
    assert fill is not None
    count = texts.values[texts.mask].bincount(minlength=len(fill.bias)).float()
    fill.bias.copy_(count.clamp(min=1e-12).log())
