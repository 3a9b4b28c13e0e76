"""Hard negatives from a denotation graph of captions, for any data set and without a model.

A denotation graph (Young et al., TACL 2014) links captions to shorter, more generic expressions; an
expression denotes the images of all captions under it. UNITER+DG (Zhang et al., EMNLP 2020) samples
negatives by its structure, without public code. Rules and formula here are our own:

- *Rules.* A caption is the sequence of its phrases (objects, attributes, relations) as dictionary
  forms. An expression's parents are the same without any attribute; with a relation, the part
  before its last relation and the part behind; without one, each of several noun phrases alone.
- *Formula.* Caption t is a negative of image I by expression p where p has a child e that a caption
  of I is under, and a child e' that t is under and no caption of I is (siblings), and every
  expression that both t and I are under is more generic than e'. The most specific p, with the
  fewest images, comes first.

    a man rides a brown horse      p = "man": e = "man ride horse", e' = "man pet dog"
    a man pets a dog               p = "horse": e = "brown horse", e' = "black horse"
    a girl on a black horse
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.phrases import (
    PhraseKind,
    PhraseParser,
    RulePhraseParser,
    lemma,
)
from counterfoil.data.tokenizers import split_words
from counterfoil.negatives.mining import HardNegatives, check_lengths
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.encode import Side

Expression = tuple[tuple[PhraseKind, str], ...]
FEWEST = 2  # negatives of an image or a caption; with 2 images, no draw of a pair is stuck


def graph_negatives(
    dataset: ImageTextDataset,
    *,
    texts_per_image: int = 100,
    images_per_text: int = 20,
    parser: PhraseParser | None = None,
    seed: int = 0,
) -> HardNegatives:
    """List captions and images that differ from each other in a detail of a shared expression.

    Scores are those of `DenotationGraph.negatives`. Time and memory grow with the captions and the
    lists; nothing has the size of images x captions.

    Args:
        dataset: the split, as ``load_dataset("flickr8k/").split("train")``.
        texts_per_image: captions listed for an image, at most.
        images_per_text: images listed for a caption, at most.
        parser: of the captions; `RulePhraseParser` by default.
        seed: of the order under one expression.

    Raises:
        ValueError: a length below 1, or fewer than two described images.
    """
    check_lengths(texts_per_image, images_per_text)
    if int((dataset.relation.counts > 0).sum()) < 2:
        raise ValueError(
            f"{dataset.name} {dataset.split_name} has fewer than two described images, so no "
            "caption is a negative; choose a larger split"
        )
    parser = parser or RulePhraseParser()
    graph = DenotationGraph(
        expressions(dataset.texts, dataset.text_ids, parser), dataset.relation, seed=seed
    )
    store = NegativeStore.of(
        graph.negatives(texts_per_image, images_per_text).checked(dataset.relation),
        dataset=dataset.fingerprint,
        split=dataset.split_name,
        sources=(),
        seed=seed,
        filters=(f"denotation graph of {len(graph):,} expressions, {type(parser).__name__}",),
    )
    return HardNegatives(store, dataset)


def expressions(
    texts: Sequence[str], ids: Sequence[str], parser: PhraseParser
) -> Iterator[Expression]:
    """Yield the phrases of each caption as dictionary forms.

    >>> caption = "Two men in red shirts are riding."
    >>> [word for _, word in next(expressions([caption], [""], RulePhraseParser()))]
    ['two', 'man', 'in', 'red', 'shirt', 'ride']
    """
    for start in range(0, len(texts), 1024):
        part = slice(start, start + 1024)
        for text, phrases in zip(texts[part], parser.phrases(texts[part], ids[part]), strict=True):
            yield tuple(
                (phrase.kind, " ".join(map(lemma, split_words(phrase.text(text)))))
                for phrase in phrases
            )


def parents_of(expression: Expression) -> tuple[Expression, ...]:
    """Return the next more generic expressions, each with an object; () for a single object.

    >>> caption = "Two men in red shirts are riding a boat."
    >>> (found,) = expressions([caption], [""], RulePhraseParser())
    >>> for parent in parents_of(found):
    ...     print(*(word for _, word in parent))
    man in shirt ride boat
    two man in red shirt
    boat
    """
    plain = tuple(part for part in expression if part[0] != "attribute")
    relations = [at for at, (kind, _) in enumerate(expression) if kind == "relation"]
    if relations:
        stop = relations[-1] + 1
        start = stop - 1
        while start and expression[start - 1][0] == "relation":
            start -= 1
        shorter = [plain, expression[:start], expression[stop:]]
    else:
        objects = [at for at, (kind, _) in enumerate(expression) if kind == "object"]
        cuts = [0, *(at + 1 for at in objects[:-1]), len(expression)]
        shorter = [plain, *(expression[a:b] for a, b in pairwise(cuts))]
    named = dict.fromkeys(each for each in shorter if any(kind == "object" for kind, _ in each))
    return tuple(each for each in named if each != expression)


@final
class DenotationGraph:
    """Expressions with their parents, and the captions and images under each.

    An extra positive caption counts as one of the image's own. Captions that describe no image are
    left out.

    Args:
        captions: the expression of each caption, see `expressions`.
        relation: image of each caption.
        seed: of the order of captions and images under one expression.

    Attributes:
        parents: next more generic nodes of each node.
        closure: the node itself and all more generic ones, of each node.
        of_text: node of each caption; -1 for none.
        of_image: all nodes that a caption of the image is under, of each image.
        bases: those among them with a child that is among them too.
        denotes: number of images of each node.
    """

    def __init__(
        self, captions: Iterator[Expression], relation: Relation, *, seed: int = 0
    ) -> None:
        self.relation = relation
        # tuples, as sets of a few numbers take five times the memory
        self.parents: list[tuple[int, ...]] = []
        self.closure: list[tuple[int, ...]] = []
        self.of_text: list[int] = []
        text_to_image = relation.text_to_image.tolist()
        nodes: dict[Expression, int] = {}
        with progress("captions parsed", len(text_to_image)) as advance:
            for image, expression in zip(text_to_image, captions, strict=True):
                described = image >= 0 and expression
                self.of_text.append(self._add(expression, nodes) if described else -1)
                advance(1)
        pairs = [*zip(text_to_image, range(len(text_to_image)), strict=True)]
        if (exempt := relation.exempt) is not None:
            pairs += zip(exempt.image.tolist(), exempt.text.tolist(), strict=True)
        self.of_image: list[set[int]] = [set() for _ in range(relation.images)]
        for image, text in pairs:
            if image >= 0:
                self.of_image[image].update(self._above(text))
        self.bases = [self._parents_of_all(own) for own in self.of_image]
        self.denotes = [0] * len(self.parents)
        for own in self.of_image:
            for node in own:
                self.denotes[node] += 1
        rng = torch.Generator().manual_seed(seed)
        texts = torch.randperm(len(self.of_text), generator=rng).tolist()
        images = torch.randperm(relation.images, generator=rng).tolist()
        self._texts = [text for text in texts if text_to_image[text] >= 0]
        self._images = [image for image in images if relation.counts[image]]
        self._text_to_image = text_to_image

    def __len__(self) -> int:
        return len(self.parents)

    def _add(self, expression: Expression, nodes: dict[Expression, int]) -> int:
        """Return the node of an expression; all more generic ones are added with it."""
        if expression not in nodes:
            parents = tuple(self._add(parent, nodes) for parent in parents_of(expression))
            nodes[expression] = node = len(self.parents)
            self.parents.append(parents)
            self.closure.append((*set().union(*(self.closure[p] for p in parents)), node))
        return nodes[expression]

    def contrasts(self, image: int, text: int, base: int) -> bool:
        """Return whether a caption is a negative of an image by an expression of its `bases`."""
        own, nodes = self.of_image[image], self._above(text)
        siblings = [n for n in nodes if n not in own and base in self.parents[n]]
        shared = [n for n in nodes if n in own] if siblings else []
        return any(all(n in self.closure[sibling] for n in shared) for sibling in siblings)

    def negatives(self, texts_per_image: int, images_per_text: int) -> HardNegativeLists:
        """Return the lists of every image and every caption, the most specific first.

        The score of a pair is the information of the expression it comes by, log2 of the number of
        images over those that it denotes. A list that would be shorter than 2 is filled up with
        random wrong pairs of score 0.
        """
        lengths = (
            max(1, min(texts_per_image, len(self.of_text))),
            max(1, min(images_per_text, self.relation.images)),
        )
        described = len(self._images) + len(self._texts)
        with progress("lists from the denotation graph", described) as advance:
            texts, text_scores = self._lists("image", lengths[0], advance)
            images, image_scores = self._lists("text", lengths[1], advance)
        return HardNegativeLists(texts, images, text_scores, image_scores)

    def _lists(
        self, side: Side, length: int, advance: Callable[[int], object]
    ) -> tuple[Tensor, Tensor]:
        """Return the lists of all images, or of all texts, and their scores: (Q, length)."""
        by_image = side == "image"
        queries, items = self._images, self._texts
        count = self.relation.images if by_image else len(self.of_text)
        if not by_image:
            queries, items = items, queries

        under: list[list[int]] = [[] for _ in self.parents]  # items by node, in order
        for item in items:
            for node in self._above(item) if by_image else self.bases[item]:
                under[node].append(item)
        rows = torch.full((count, length), -1, dtype=torch.int32)
        scores = torch.full((count, length), -torch.inf, dtype=torch.float16)
        for query in queries:
            negatives = self._negatives_of(query, by_image, items, under, length)
            count = len(negatives)
            rows[query, :count] = torch.tensor(list(negatives), dtype=torch.int32)
            scores[query, :count] = torch.tensor([*negatives.values()], dtype=torch.float16)
            advance(1)
        return rows, scores

    def _negatives_of(
        self,
        query: int,
        by_image: bool,
        items: Sequence[int],
        under: Sequence[Sequence[int]],
        length: int,
    ) -> dict[int, float]:
        """Return the negatives of one image or text with their scores, in order."""
        bases = self.bases[query] if by_image else self._parents_of_all(self._above(query))

        def pair(item: int) -> tuple[int, int]:
            return (query, item) if by_image else (item, query)

        candidates = (
            (item, math.log2(len(self._images) / self.denotes[base]))
            for base in sorted(bases, key=lambda node: (self.denotes[node], node))
            for item in under[base]
            if self.contrasts(*pair(item), base)
        )
        negatives: dict[int, float] = {}
        for item, score in candidates:
            negatives.setdefault(item, score)
            if len(negatives) == length:
                return negatives
        # the rest: random captions of other images that are not as generic as the image's own
        for item in (items[(query + at) % len(items)] for at in range(len(items))):
            if len(negatives) >= min(FEWEST, length):
                break
            image, text = pair(item)
            own = self._text_to_image[text] == image or self.of_text[text] in self.of_image[image]
            if not own:
                negatives.setdefault(item, 0.0)
        return negatives

    def _above(self, text: int) -> tuple[int, ...]:
        """Return the nodes that a caption is under; () for one that is not in the graph."""
        node = self.of_text[text]
        return self.closure[node] if node >= 0 else ()

    def _parents_of_all(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple({parent for node in nodes for parent in self.parents[node]})
