"""What a store of mined negatives is like: how hard, how crowded, how often wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.analysis.base import Scorer
from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.tiles import Member
from counterfoil.negatives.diagnosis import Ranks, by_rank, pair_scores
from counterfoil.negatives.hubs import Hubs, hubs, overlap
from counterfoil.negatives.store import NegativeStore, Source
from counterfoil.negatives.suspects import Looked, Suspects, above, by_truth, by_words, look
from counterfoil.recipes.model import Model
from counterfoil.records import Pairs

FIRST = 10  # ranks compared between the captions of an image


@final
@dataclass(frozen=True, kw_only=True)
class DiagnosisPlan:
    """How to look at a store.

    Attributes:
        samples: how many anchor captions to look at, drawn at random.
        seed: of the draw.
        alike: TF-IDF cosine that makes a text suspect.
    """

    samples: int = 500
    seed: int = 0
    alike: float = 0.6


@final
@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """What was found on one side.

    Attributes:
        name: what the lists hold.
        looked: the lists that were looked at.
        scores: (S, h) of the listed pairs; None where they are not known.
        gaps: (S, h) scores less the anchor pairs' scores; None where they are not known.
        estimates: of which listed pairs are true.
        ranks: numbers by rank; the whole last.
        hubs: who is listed most.
    """

    name: str
    looked: Looked
    scores: Tensor | None
    gaps: Tensor | None
    estimates: tuple[Suspects, ...]
    ranks: tuple[Ranks, ...]
    hubs: Hubs


@final
@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """All that was found.

    Attributes:
        corpus: the split that was mined.
        line: what was looked at, in one sentence.
        own: (T,) scores of true pairs, NaN where they are not known.
        texts: wrong texts of images.
        images: wrong images of texts.
        first: how many ranks `overlap` looks at.
        overlap: percent that the lists of two captions of an image share; None without such two.
    """

    corpus: Corpus
    line: str
    own: Tensor
    texts: Side
    images: Side
    first: int
    overlap: float | None

    def plain(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "corpus": self.corpus.fingerprint,
            "looked_at": self.line,
            "overlap_of_captions": {"first": self.first, "percent": self.overlap},
            **{side.name: _plain(side) for side in (self.texts, self.images)},
        }


def diagnose(
    store: NegativeStore, corpus: Corpus, models: Sequence[Model], plan: DiagnosisPlan
) -> Diagnosis:
    """Look at a store.

    Args:
        store: mined from `corpus`.
        corpus: the split that was mined.
        models: whose mean score is compared; with none, scores of true pairs are not known.
        plan: how to look.

    Raises:
        ValueError: the lists are not of this corpus, it has no captions, or `alike` out of range.
    """
    lists, relation = store.lists, corpus.relation
    lists.check(relation)
    drawn = _draw(corpus, plan)
    looked = look(lists, relation, drawn)
    worded, true = by_words(corpus, looked, least=plan.alike), by_truth(corpus, looked)
    scored = _scored(store, corpus, models, looked)
    sizes = (("wrong texts of images", lists.texts, len(corpus.texts)),
             ("wrong images of texts", lists.images, len(corpus)))  # fmt: skip
    texts, images = (
        _side(name, looked[n], [*worded[n], *true[n]], scored, n, hubs(rows, among))
        for n, (name, rows, among) in enumerate(sizes)
    )
    groups = [relation.captions(image)[0] for image in torch.split(_once(relation.owner[drawn]), 1)]
    first = min(FIRST, lists.images.shape[1])
    return Diagnosis(
        corpus=corpus,
        line=f"{_words(store, corpus)}; {len(drawn):,} captions looked at, drawn with seed "
        f"{plan.seed}; {scored.how}",
        own=scored.own,
        texts=texts,
        images=images,
        first=first,
        overlap=overlap(lists.images, groups, first=first),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """Scores of true pairs (T,), NaN where not known, of both sides' pairs, and whose they are."""

    own: Tensor
    listed: tuple[Tensor | None, Tensor | None]
    how: str


def _draw(corpus: Corpus, plan: DiagnosisPlan) -> Tensor:
    owned = (corpus.owner >= 0).nonzero().squeeze(1)
    if not len(owned):
        raise ValueError(f"{corpus.name} ({corpus.part}) has no caption of an image to look at")
    rng = torch.Generator().manual_seed(plan.seed)
    return owned[torch.randperm(len(owned), generator=rng)[: plan.samples]].sort().values


def _scored(
    store: NegativeStore, corpus: Corpus, models: Sequence[Model], looked: tuple[Looked, Looked]
) -> _Scored:
    """Scores kept in the store where the same models made them, else of pairs scored now."""
    own = torch.full((len(corpus.texts),), torch.nan)
    lists = store.lists
    kept: tuple[Tensor | None, Tensor | None] = None, None
    if lists.text_scores is not None and lists.image_scores is not None:
        anchors = looked[0].anchors
        kept = lists.text_scores[anchors.image].float(), lists.image_scores[anchors.text].float()
    if not models:
        return _Scored(own, kept, "no model, so no score of a true pair")
    images = _once(looked[0].anchors.image)
    texts, counts = corpus.relation.captions(images)
    whose = " + ".join(model.name for model in models)
    kind = Scorer(whose, whose, tuple(models)).describe()
    if kept[0] is not None and _made_by(store, models):
        part = [model.member(corpus.subset(images)) for model in models]
        place = torch.arange(len(images)).repeat_interleave(counts)
        own[texts] = pair_scores(part, Pairs(place, torch.arange(len(texts)))).half().float()
        return _Scored(own, kept, f"scores of {whose} ({kind}), in lists as kept")
    members = [model.member(corpus) for model in models]
    own[texts] = pair_scores(members, Pairs(corpus.owner[texts], texts))
    found = tuple(_listed_scores(members, side) for side in looked)
    return _Scored(own, (found[0], found[1]), f"scores of {whose} ({kind})")


def _once(rows: Tensor) -> Tensor:
    """Each row once, in order."""
    return torch.bincount(rows).nonzero().squeeze(1)


def _made_by(store: NegativeStore, models: Sequence[Model]) -> bool:
    made, given = (
        sorted(some, key=lambda source: source.checkpoint)
        for some in (store.manifest.sources, [model.source() for model in models])
    )
    return len(made) == len(given) and all(map(Source.same, made, given))


def _listed_scores(members: Sequence[Member], looked: Looked) -> Tensor:
    pairs, listed = looked.pairs, looked.listed
    found = torch.full(listed.shape, -torch.inf)
    found[listed] = pair_scores(members, Pairs(pairs.image[listed], pairs.text[listed]))
    return found


def _side(
    name: str, looked: Looked, estimates: list[Suspects], scored: _Scored, place: int, most: Hubs
) -> Side:
    scores, positive = scored.listed[place], scored.own[looked.anchors.text]
    gaps = None
    if scores is not None and not bool(positive.isnan().any()):
        gaps = scores - positive.unsqueeze(1)
        estimates = [*estimates, above(looked, scores, positive)]
    return Side(
        name, looked, scores, gaps, tuple(estimates), by_rank(looked, estimates, gaps), most
    )


def _words(store: NegativeStore, corpus: Corpus) -> str:
    m = store.manifest
    makers = " + ".join(source.matcher.split("(")[0] for source in m.sources) or "elsewhere"
    left = f"; left out: {', '.join(m.filters)}" if m.filters else ""
    return (
        f"{corpus.name} {m.split}: {m.image_count:,} images, {m.text_count:,} texts; lists of "
        f"{m.texts_per_image} texts and {m.images_per_text} images, mined "
        f"{'by ' if m.sources else ''}{makers}{left}"
    )


def _plain(side: Side) -> dict[str, Any]:
    names = [estimate.name for estimate in side.estimates]
    ranks = [{**asdict(rank), "suspected": dict(zip(names, rank.suspected))} for rank in side.ranks]
    meaning = {estimate.name: estimate.words for estimate in side.estimates}
    return {"ranks": ranks, "estimates": meaning, "hubs": asdict(side.hubs)}
