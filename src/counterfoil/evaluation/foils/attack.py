"""VSE-C's attack on image-to-caption retrieval: an image's candidates are joined by its foils.

Shi et al., "Learning visually-grounded semantics from contrastive adversarial samples", COLING 2018
(https://arxiv.org/abs/1806.10348), as the authors' code measures it: the candidates of an image are
all captions of the split and the foils of the image's *own* captions; the best of its captions is
ranked among them. Departs from the code in: a foil that ties with the best caption always ranks
before it, where the code's sort leaves ties to chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import compare, intervals
from counterfoil.evaluation.metrics import (
    DIRECTION_METRICS,
    METRICS,
    EvaluationReport,
    queries_with_positives,
)
from counterfoil.evaluation.protocols import SideRanks, fold_parts, report_of
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import format_interval
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import score_index_pairs

MEASURES = METRICS[: len(DIRECTION_METRICS)]  # of images as queries
ALL = "all kinds"
TIES = "a foil that ties with the best caption ranks before it"


@final
@dataclass(frozen=True, slots=True, eq=False)
class CaptionAttack:
    """A split and the F foils of its captions."""

    dataset: ImageTextDataset  # the split, with the foils behind its T texts; they have no image
    images: Tensor  # (F,) long, the image of the original caption
    kinds: tuple[str, ...]  # (F,) kind of each foil

    @classmethod
    def of(cls, dataset: ImageTextDataset, foils: Iterable[tuple[str, str, str]]) -> CaptionAttack:
        """Put foils beside the captions of a split.

        Args:
            dataset: the split.
            foils: id of the original caption, kind and text of each foil.

        Raises:
            ValueError: no foil, one of a caption that the split does not have, or texts that exist
                as vectors only.
        """
        if dataset.text_features is not None:
            raise ValueError(
                f"the texts of {dataset.name} are ready-made vectors, and foils are words; attack "
                "data with captions"
            )
        owner = dict(zip(dataset.text_ids, dataset.text_to_image.tolist(), strict=True))
        images, kinds, texts = [], [], []
        for caption, kind, text in foils:
            if caption not in owner:
                raise ValueError(
                    f"a foil is of caption {caption!r}, which {dataset.name} "
                    f"({dataset.split_name}) does not have; write foils of this split"
                )
            if owner[caption] >= 0:
                images.append(owner[caption])
                kinds.append(kind)
                texts.append(text)
        if not texts:
            raise ValueError(f"there is no foil of {dataset.name} ({dataset.split_name}) to add")
        none = torch.full((len(texts),), -1, dtype=dataset.text_to_image.dtype)
        joined = replace(
            dataset,
            text_ids=[*dataset.text_ids, *(f"foil {place}" for place in range(len(texts)))],
            texts=[*dataset.texts, *texts],
            text_to_image=torch.cat([dataset.text_to_image, none]),
            dependencies=None,
        )
        return cls(joined, torch.tensor(images), tuple(kinds))

    def captions_only(self, members: Sequence[EmbeddedDataset]) -> list[EmbeddedDataset]:
        """The encodings of `dataset` without those of the foils."""
        texts = torch.arange(len(self.dataset.texts) - len(self.kinds))
        return fold_parts(members, torch.arange(len(self.dataset)), texts)


@final
@dataclass(frozen=True, slots=True, eq=False)
class AttackReport:
    """Retrieval by images before and after foils of each kind are added."""

    before: EvaluationReport  # without foils
    after: Mapping[str, EvaluationReport]  # by kind of the foils; all together last, if several
    foils: Mapping[str, int]  # number of foils by kind

    def protocol(self) -> str:
        """The protocol in one sentence."""
        return (
            f"{self.before.setting.line()}; image to text; candidates of an image: all texts and "
            f"the foils of its own captions; {TIES}; 95 % intervals: images drawn anew, 1,000 times"
        )

    def table(self) -> TableBlock:
        """Each measure with its interval, before and by kind of foil."""
        rows = []
        for name, report in {"no foils": self.before, **self.after}.items():
            spans = intervals(report)
            cells = (
                format_interval(number, span.low, span.high)
                for number, span in zip(report.i2t.numbers, spans)
            )
            rows.append((name, f"{self.foils.get(name, 0):,}", *cells))
        head = "foils", "number", *(name.removeprefix("i2t ") for name in MEASURES)
        return TableBlock("Image to text under attack", head, tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with intervals and the paired differences from no foils."""
        return {
            "protocol": self.protocol(),
            "before": _numbers(self.before),
            "after": {
                kind: {
                    "foils": self.foils[kind],
                    **_numbers(report),
                    "differences": [
                        difference.to_dict()
                        for difference in compare(self.before, report)[: len(MEASURES)]
                    ],
                }
                for kind, report in self.after.items()
            },
        }


def evaluate_attack(
    members: Sequence[EmbeddedDataset], attack: CaptionAttack, before: EvaluationReport
) -> AttackReport:
    """Rank each image's best caption among all captions and the foils of its own.

    The rank grows by the number of foils that score at least as high as the best caption. Foils
    are scored with their image alone, and the image's captions once more beside them, so that
    equal texts tie.

    Args:
        members: models with the encoded images and texts of `attack.dataset`; mean scores count.
        attack: the split and its foils.
        before: evaluation of the split without foils, by the same models.
    """
    higher = _above_best(members, attack, before)
    kinds = list(dict.fromkeys(attack.kinds))
    number = torch.tensor([kinds.index(kind) for kind in attack.kinds])
    i2t, t2i = before.ranked

    def attacked(counted: Tensor) -> EvaluationReport:
        added = torch.bincount(attack.images[counted & higher], minlength=len(i2t))
        ranks = (i2t.ranks + added).where(i2t.counted, -1)
        report = report_of(
            lambda images, texts, *_: (SideRanks(ranks[images]), SideRanks(t2i.ranks[texts])),
            t2i.images,
            before.setting,
        )
        return replace(report, t2i=before.t2i)

    after = {kind: attacked(number == place) for place, kind in enumerate(kinds)}
    foils = {kind: attack.kinds.count(kind) for kind in kinds}
    if len(kinds) > 1:
        after[ALL] = attacked(torch.ones_like(higher))
        foils[ALL] = len(attack.kinds)
    return AttackReport(before, after, foils)


def _above_best(
    members: Sequence[EmbeddedDataset], attack: CaptionAttack, before: EvaluationReport
) -> Tensor:
    """(F,) bool, whether a foil scores at least as high as the best caption of its image."""
    dataset, (i2t, t2i) = attack.dataset, before.ranked
    count = len(dataset.texts) - len(attack.kinds)
    texts = (t2i.images >= 0).nonzero().flatten()
    images = t2i.images[texts]
    if dataset.extra_positives is not None:
        extra = queries_with_positives(dataset.extra_positives, t2i.images, len(dataset))
        within = i2t.folds[extra.image] == t2i.folds[extra.text]
        images = torch.cat([images, extra.image[within]])
        texts = torch.cat([texts, extra.text[within]])
    true = len(images)
    images = torch.cat([images, attack.images])
    texts = torch.cat([texts, torch.arange(count, len(dataset.texts))])
    scores = score_index_pairs(members, images, texts)
    best = torch.full((len(dataset),), -torch.inf)
    best.scatter_reduce_(0, images[:true], scores[:true], "amax")
    return scores[true:] >= best[attack.images]


def _numbers(report: EvaluationReport) -> dict[str, Any]:
    spans = [span.to_dict() for span in intervals(report)[: len(MEASURES)]]
    return {"i2t": report.i2t.to_dict(), "intervals": dict(zip(MEASURES, spans))}
