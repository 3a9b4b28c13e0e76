"""What is odd by the word of a model: captions that may be wrong, negatives that may be true."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.decisions import Do
from counterfoil.evaluate.audit_page import Find, Item, Section
from counterfoil.evaluate.explain import doubts_words
from counterfoil.evaluate.explain_page import ExplainedCard
from counterfoil.evaluate.explanation import Explanation
from counterfoil.evaluate.suspicion import LEAST, suspicion
from counterfoil.negatives.store import NegativeStore
from counterfoil.negatives.too_true import IMAGES, TEXTS, Doubtful, too_true
from counterfoil.recipes.auditing_data import Exhibit
from counterfoil.recipes.explain import ExplainPlan, explain_corpus, lacking
from counterfoil.recipes.model import Model
from counterfoil.report.page import PageItem

PAIR: tuple[Do, ...] = ("keep", "true")
SUSPICIOUS, TITLE = "suspicious", "Suspicious captions"


def worded(corpus: Corpus) -> Corpus:
    """The corpus without captions that say nothing, which no model reads."""
    if corpus.text_features is not None or all(text.strip() for text in corpus.texts):
        return corpus
    kept = torch.tensor([bool(text.strip()) for text in corpus.texts])
    texts = kept.nonzero().squeeze(1)
    return corpus.cut(torch.arange(len(corpus)), texts, corpus.owner[texts])


def misfits(exhibit: Exhibit, models: Sequence[Model], explainer: Model | None) -> Section:
    """Captions that fit their own image worse than most other captions and images do.

    Args:
        exhibit: the captions that are judged.
        models: whose mean score ranks them.
        explainer: says which of their words are wrong; nobody for none.
    """
    corpus = exhibit.corpus
    found = suspicion([model.member(corpus) for model in models], corpus.owner)
    worst = found.worst()
    rows = worst[: exhibit.top]
    told = dict(_explained(explainer, corpus, rows)) if explainer else {}
    finds = []
    for row in rows:
        note = (
            f"{int(found.images[row]):,} other images fit it better, "
            f"{int(found.texts[row]):,} other captions fit its image better"
        )
        finds.append(_find(exhibit, row, note, float(found.shares[row]), told.get(row)))
    note = (
        f"By {' + '.join(model.name for model in models)}: captions that at least "
        f"{100 * LEAST:g} % of the other images fit better, while at least as many of the other "
        "captions fit their image better; the lower of both shares ranks them. Odd is not wrong."
    )
    told_by = f" {_how(explainer)}" if explainer else ""
    return Section(SUSPICIOUS, TITLE, note + told_by, len(worst), len(finds), tuple(finds))


def check_ranks(explainer: Model) -> None:
    """Refuse a model that cannot rank captions by their words alone.

    Raises:
        ValueError: it doubts no words.
    """
    if not doubts_words(explainer.matcher):
        raise ValueError(
            f"{lacking(explainer)}, so it ranks no captions alone; name a model that ranks them "
            "with --model"
        )


def doubted(exhibit: Exhibit, explainer: Model) -> Section:
    """Captions with the words that a model doubts most, the greatest doubt first.

    Raises:
        ValueError: the model doubts no words.
    """
    check_ranks(explainer)
    plan, best, many = ExplainPlan(), list[tuple[float, int, Explanation]](), 0
    for row, found in explain_corpus(explainer, exhibit.corpus, plan):
        doubt = found.doubt or 0.0
        many += doubt >= plan.threshold
        keep = heapq.heappush if len(best) < exhibit.top else heapq.heappushpop
        keep(best, (doubt, -row, found))
    best = sorted((one for one in best if one[0] >= plan.threshold), reverse=True)
    finds = tuple(
        _find(exhibit, -row, f"greatest doubt {doubt:.2f}", doubt, found)
        for doubt, row, found in best
    )
    note = f"Captions with a doubted word, the most doubted first. {_how(explainer)}"
    return Section(SUSPICIOUS, TITLE, note, many, len(finds), finds)


def false_negatives(
    exhibit: Exhibit, store: NegativeStore, models: Sequence[Model], *, alike: float
) -> Section:
    """Mined negatives that may be true, by image.

    Args:
        exhibit: the split that was mined.
        store: its lists.
        models: whose mean score is compared with the positives'; none for words alone.
        alike: TF-IDF cosine that makes a text suspect.

    Raises:
        ValueError: the lists are of other data, or `alike` out of range.
    """
    corpus = exhibit.corpus
    members = [model.member(corpus) for model in models]
    found = too_true(store.lists, corpus, members, alike=alike)
    by_image: dict[int, list[Doubtful]] = {}
    for one in found[: exhibit.top]:
        by_image.setdefault(one.image, []).append(one)
    finds = tuple(
        Find(
            tuple(_pair(corpus, one) for one in some),
            exhibit.image(image),
            exhibit.own(image),
        )
        for image, some in by_image.items()
    )
    shown = min(len(found), exhibit.top)
    who = " + ".join(model.name for model in models)
    above = f"score at least their positive by {who}, or " if models else ""
    note = (
        f"Of the {TEXTS} hardest texts of each image and the {IMAGES} hardest images of each "
        f"caption those that {above}are worded like a caption of the image (TF-IDF cosine of at "
        f"least {alike:g}). Does the caption describe this picture too? Captions that are true are "
        "never mined for it again, and are right answers when models are measured."
    )
    return Section("false-negatives", "Negatives that may be true", note, len(found), shown, finds)


def _explained(
    explainer: Model, corpus: Corpus, rows: Sequence[int]
) -> Iterator[tuple[int, Explanation]]:
    """Explanations of some captions by their rows."""
    order = torch.tensor(sorted(rows), dtype=torch.long)
    images, owner = corpus.owner[order].unique(return_inverse=True)  # type: ignore[no-untyped-call]
    if not len(order):
        return
    for row, found in explain_corpus(explainer, corpus.cut(images, order, owner), ExplainPlan()):
        yield int(order[row]), found


def _find(exhibit: Exhibit, row: int, note: str, measure: float, told: Explanation | None) -> Find:
    image = int(exhibit.corpus.owner[row])
    item = exhibit.caption(row, note, measure)
    if told is not None:
        parts = ExplainedCard(PageItem(""), told, ExplainPlan().threshold).parts
        proposed = told.corrected.text if told.corrected else ""
        item = replace(item, parts=parts, proposed=proposed)
    return Find((item,), exhibit.image(image), exhibit.own(image, but=row))


def _pair(corpus: Corpus, one: Doubtful) -> Item:
    text, why = corpus.texts[one.text], ", ".join(one.reasons)
    if one.gap is not None:
        why += f", {abs(one.gap):.3f} {'above' if one.gap >= 0 else 'below'} its positive"
    owner = int(corpus.owner[one.text])
    whose = f" · of {corpus.image_ids[owner]}" if owner >= 0 else ""
    return Item(
        corpus.image_ids[one.image], corpus.text_ids[one.text], text, PAIR, PageItem(text),
        why + whose, one.gap,
    )  # fmt: skip


def _how(explainer: Model) -> str:
    missing = lacking(explainer)
    if missing:
        return f"{missing}: words are the deeper in colour the more the score gains without them."
    return f"Words that {explainer.name} doubts are coloured, with what it would write instead."
