"""The arms of the ledgers as plans of negatives, each loss at one setting: nothing is tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiments import aoq
from benchmarks.experiments.lists import _wrong
from benchmarks.predict.score import Frozen, Mask, Plan
from benchmarks.truths import exact, methods
from benchmarks.truths.arms import BASE, TEXT_MASK, TRIPLET, info_nce, info_nce_with_drawn
from benchmarks.truths.bed import GUIDE, StoredData
from benchmarks.truths.cost import BATCHES
from benchmarks.truths.exact import LONGER
from benchmarks.truths.stack import _numbers
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import Claims
from counterfoil.losses.aoq import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.losses.base import Loss
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.negatives.filters import FilterConfig, NegativeFilters, near_captions
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.sampling import OfflineNegativeSampler, SamplingConfig
from counterfoil.negatives.store import HardNegativeLists

ALIKE = 0.5  # TF-IDF cosine of two captions from which each is taken for true of the other's image
POINT = {"temperature": 0.05}
HARDNESS, AMBIGUITY = 9.0, 0.5  # as their authors have them


@final
@dataclass(frozen=True)
class Bench(StoredData):
    """Stored vectors as a frozen model, which adapters give back before their first step.

    Attributes:
        folder: as `benchmarks.truths` or `benchmarks.experiments.cca` wrote it.
    """

    adapters: ClassVar[Mapping[str, Any]] = {"width": 256, "hidden": 1, "dropout": 0.0}

    @cached_property
    def frozen(self) -> Frozen:
        """The training split."""
        return self._seen(self.train)

    @cached_property
    def held_out(self) -> Frozen:
        """The dev split."""
        return self._seen(self.splits["dev"])

    def _seen(self, data: ImageTextDataset) -> Frozen:
        processed = self.untrained().process(data)
        images = processed.images(torch.arange(len(data))).values[:, 0].float()
        texts = processed.texts(torch.arange(len(data.texts))).values[:, 0].float()
        own, same = data.text_to_image, _numbers(data.texts)
        return Frozen(images, texts, own, true_pairs(data), same)

    def mined(
        self, texts: int, images: int, filters: FilterConfig | None = None
    ) -> HardNegativeLists:
        """The lists that the frozen vectors give."""
        model = self.untrained()
        model.model.eval()
        return mine_hard_negatives(
            model, self.train, texts_per_image=texts, images_per_text=images, filters=filters
        ).lists

    def draws(
        self, lists: HardNegativeLists, sampling: SamplingConfig | None = None
    ) -> OfflineNegativeSampler:
        """One draw of each list for an anchor."""
        return OfflineNegativeSampler(lists=lists, relation=self.train.relation, plan=sampling)


def true_pairs(data: ImageTextDataset) -> Tensor:
    """(I, T) bool: of scenes the true pairs; else own captions and those worded alike (`ALIKE`)."""
    owner = data.text_to_image
    try:
        claims = Claims(graphs(data), data.texts)
    except ValueError:
        true = torch.arange(len(data)).unsqueeze(1) == owner
        near = near_captions(data.texts, least=ALIKE)
        for one, other in ((near.left, near.right), (near.right, near.left)):
            true[owner[one], other] = True
        return true
    every = torch.arange(len(data.texts))
    true = torch.cat([claims.true(some, every) for some in torch.arange(len(data)).split(256)])
    return true | (torch.arange(len(data)).unsqueeze(1) == owner)


def _nce(batch: int) -> Plan:
    return Plan(info_nce(POINT), batch)


def _triplet(batch: int) -> Plan:
    return Plan(HardestTripletLoss(reduction="mean"), batch)


def _by_captions(bench: Bench, least: float) -> Mask:
    """Pairs whose caption is near those of the image, as `CaptionGuide` says."""
    every = torch.from_numpy(np.load(bench.folder / GUIDE)).float()
    inside = torch.tensor([split == "train" for split in bench.data.splits])
    texts, owner = every[inside[bench.data.text_to_image]], bench.train.text_to_image
    means = torch.zeros(len(bench.train), texts.shape[1]).index_add_(0, owner, texts)
    images = torch.nn.functional.normalize(means, dim=1)
    return lambda i, t, _, __: images[i] @ texts[t].T > least


def _by_score(margin: float) -> Mask:
    """Pairs that score above the true ones of their image and text, as `OwnMaskedInfoNCE` says."""

    def mask(_: Tensor, __: Tensor, scores: Tensor, true: Tensor) -> Tensor:
        own = scores[true]
        return scores > torch.maximum(own.unsqueeze(1), own) + margin

    return mask


Plans = Mapping[str, Callable[[], Plan]]  # by row of a ledger; made when they are measured


@cache
def _truths(bench: Bench) -> Plans:
    mined = cache(lambda: bench.draws(bench.mined(100, 20)))
    filtered = cache(lambda: bench.draws(bench.mined(100, 20, FilterConfig(captions=0.5))))
    nce, candidates = info_nce(POINT), info_nce_with_drawn(POINT)
    return {
        BASE: lambda: _nce(512),
        "InfoNCE, batch 128": lambda: _nce(128),
        "InfoNCE, batch 2048": lambda: _nce(2048),
        TRIPLET: lambda: _triplet(512),
        "mined, no filter": lambda: Plan(candidates, 512, mined()),
        "mined, captions=0.5 filtered": lambda: Plan(candidates, 512, filtered()),
        "AdapOffQuin": lambda: Plan(AdaptiveQuintuplet(reduction="mean"), 512, mined()),
        TEXT_MASK: lambda: Plan(nce, 512, mask=_by_captions(bench, 0.7)),
        "mask by captions above 0.55": lambda: Plan(nce, 512, mask=_by_captions(bench, 0.55)),
        "mask by its own score, margin 0": lambda: Plan(nce, 512, mask=_by_score(0.0)),
        "mask by its own score, margin -0.1": lambda: Plan(nce, 512, mask=_by_score(-0.1)),
    }


def _equal_cost(bench: Bench) -> Plans:
    same = _truths(bench)

    def at(batch: int, name: str) -> Callable[[], Plan]:
        return lambda: replace(same[name](), batch=batch)

    return {
        f"{row}, batch {batch}": at(batch, name)
        for batch in BATCHES
        for row, name in {
            "InfoNCE, 60,000 pairs": BASE,
            "hardest triplet": TRIPLET,
            "mined": "mined, no filter",
            "mined, captions=0.5 filtered": "mined, captions=0.5 filtered",
            "AdapOffQuin": "AdapOffQuin",
        }.items()
    }


def _methods(bench: Bench) -> Plans:
    same, candidates = _truths(bench), info_nce_with_drawn(POINT)
    harder = InfoNCELoss(**POINT, hardness=HARDNESS, reduction="mean")
    ambiguous = SamplingConfig(ambiguity=AMBIGUITY)
    below = FilterConfig(below_positive=0.0, positive="mean")
    return {
        BASE: same[BASE],
        methods.HARDER: lambda: Plan(harder, 512),
        methods.MINED: same["mined, no filter"],
        methods.AMBIGUOUS: lambda: Plan(
            candidates, 512, bench.draws(bench.mined(100, 20), ambiguous)
        ),
        methods.MEAN: lambda: Plan(candidates, 512, bench.draws(bench.mined(100, 20, below))),
    }


def _exact(study: exact.Study) -> Callable[[Bench], Plans]:
    def plans(bench: Bench) -> Plans:
        most = study.lists

        @cache
        def lists() -> Mapping[str, OfflineNegativeSampler]:
            long = bench.mined(LONGER * most[0], LONGER * most[1])
            left = NegativeFilters(exact.FILTERS, bench.train).without(long)
            made = {
                exact.MINED: exact._first(long, most),
                exact.FALSE: exact._same_ranks(long, bench.frozen.true, most),
                exact.FILTERED: exact._left(long, left, most),
            }
            return {kind: bench.draws(some) for kind, some in made.items()}

        def plan(arm: exact.ExactArm) -> Callable[[], Plan]:
            loss = arm.loss(POINT | {"offline": 0.0})
            if arm.kind is None:
                return lambda: Plan(loss, study.batch)
            kind = arm.kind
            return lambda: Plan(loss, study.batch, lists()[kind])

        return {name: plan(arm) for name, arm in study.arms.items()}

    return plans


def _aoq(batch: int, *names: str) -> Callable[[Bench], Plans]:
    """Rows of a setting of AOQ's tables."""

    def plans(bench: Bench) -> Plans:
        mined = cache(lambda: bench.draws(bench.mined(aoq.TEXTS, aoq.IMAGES)))
        random = cache(lambda: bench.draws(_random(bench)))
        false = cache(lambda: bench.draws(_false(bench)))

        def with_lists(loss: Loss, lists: Callable[[], OfflineNegativeSampler]) -> Plan:
            return Plan(loss, batch, lists())

        adaptive = AdaptiveQuintuplet(reduction="mean")
        every: Plans = {
            aoq.ONLINE: lambda: _triplet(batch),
            aoq.LARGER: lambda: _triplet(3 * batch),
            aoq.FINAL: lambda: with_lists(adaptive, mined),
            aoq.RANDOM: lambda: with_lists(adaptive, random),
            "OffTri": lambda: with_lists(OfflineTriplet(reduction="mean"), mined),
            "OffQuin": lambda: with_lists(OfflineQuintuplet(reduction="mean"), mined),
            "OffQuin, online hinges weighted 1.5": lambda: with_lists(
                AdaptiveQuintuplet(alpha=1e9, reduction="mean"), mined
            ),
            aoq._share_title(0.0): lambda: with_lists(adaptive, false),
        }
        return {f"batch {batch}, {name}": every[name] for name in names}

    return plans


def _random(bench: Bench) -> HardNegativeLists:
    """Random wrong counterparts, as `RandomLists` has them."""
    owner, rng = bench.train.text_to_image, torch.Generator().manual_seed(0)
    images = torch.arange(len(bench.train)).unsqueeze(1)
    shapes = (len(images), aoq.TEXTS), (len(owner), aoq.IMAGES)
    return HardNegativeLists(
        texts=_wrong(shapes[0], len(owner), lambda t: owner[t] == images, rng),
        images=_wrong(shapes[1], len(images), lambda i: i == owner.unsqueeze(1), rng),
    )


def _false(bench: Bench) -> HardNegativeLists:
    """The hardest exactly false ones of lists four times as long, as `TrueShareLists` has them."""
    most = aoq.TEXTS, aoq.IMAGES
    long, true = bench.mined(LONGER * most[0], LONGER * most[1]), bench.frozen.true
    kept = HardNegativeLists(
        long.texts.masked_fill(exact._is_true(long.texts, true), -1),
        long.images.masked_fill(exact._is_true(long.images, true.T), -1),
    )
    return exact._left(long, kept, most)


_SETTING = (
    aoq.ONLINE,
    aoq.LARGER,
    aoq.FINAL,
    aoq.RANDOM,
    *(name for name in aoq.OFFLINE if name != aoq.FINAL),
)


@final
@dataclass(frozen=True)
class Ledger:
    """A ledger of docs/evidence, whose order of arms is to be predicted.

    Attributes:
        name: of its file.
        bench: the vectors that its plans are measured on.
        plans: by row.
        many: the measure that counts several true pairs of an item, by split.
        chosen: whether the formula was chosen on it.
    """

    name: str
    bench: str
    plans: Callable[[Bench], Plans]
    many: Mapping[str, str]
    chosen: bool = False

    @property
    def rows(self) -> tuple[str, ...]:
        """Its rows that are plans; nothing is opened or mined for them."""
        return tuple(self.plans(Bench(Path())))


_JUDGED = {"test": "judged {} mAP of others"}
_COMPLETE = {split: f"{split} true {{}} mAP@R" for split in ("dev", "test")}
LEDGERS = (
    Ledger("truths", "towers", _truths, _JUDGED, chosen=True),
    Ledger("equal-cost", "towers", _equal_cost, _JUDGED, chosen=True),
    Ledger("methods", "towers", _methods, _JUDGED, chosen=True),
    Ledger("exact-lists", "world", _exact(exact.ADAPTERS), _COMPLETE),
    Ledger("exact-lists-towers", "world", _exact(exact.TOWERS), _COMPLETE),
    Ledger("aoq-batch", "regions", lambda b: _aoq(8, *_SETTING)(b) | _aoq(128, *_SETTING)(b), {}),
    Ledger("aoq-vsepp", "regions", _aoq(8, aoq.ONLINE, aoq.FINAL, aoq.RANDOM), {}),
    Ledger("aoq-truth", "scenes", _aoq(8, aoq.ONLINE, aoq.FINAL, aoq._share_title(0.0)), {}),
)
