"""Negatives from a denotation graph, against slow loops over sets of expressions."""

from __future__ import annotations

import math

import pytest
import torch

from counterfoil.cli import main
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import Relation
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.readers import load_dataset
from counterfoil.negatives.sampling import OfflineNegativeSampler
from counterfoil.negatives.store import NegativeStore
from counterfoil.papers.compared.graph import (
    DenotationGraph,
    expressions,
    graph_negatives,
    parents_of,
)

SCENES = load_dataset("scenes:images=30").split("train")
CAPTIONS = [
    "A man rides a brown horse.",
    "A man pets a small dog.",
    "Two girls on a black horse",
    "a man",
    "the horse is brown",
    "People and dogs in the park near a tree",
    "running through a park",
    "Hello!",
    "",
]


def parsed(captions):
    return list(expressions(captions, [""] * len(captions), RulePhraseParser()))


def run(*arguments):
    return main([str(argument) for argument in arguments])


def words(expression):
    return " ".join(word for _, word in expression)


def above(expression):
    """The expression and all that are more generic, by recursion."""
    return {expression}.union(*(above(parent) for parent in parents_of(expression)))


def slow(captions, text_to_image, images, besides=()):
    """{(image, text): fewest images of an expression they contrast by}, from the definition."""
    nodes = [above(one) if one and i >= 0 else set() for one, i in zip(captions, text_to_image)]
    own = [set() for _ in range(images)]
    for image, text in [*zip(text_to_image, range(len(nodes))), *besides]:
        if image >= 0:
            own[image] |= nodes[text]
    every = set().union(*own)
    children = {p: {e for e in every if p in parents_of(e)} for p in every}
    denotes = {p: sum(p in mine for mine in own) for p in every}
    found = {}
    for image in range(images):
        for text, theirs in enumerate(nodes):
            if text_to_image[text] < 0:
                continue
            for p in own[image]:
                siblings = (children[p] & theirs) - own[image]
                if children[p] & own[image] and any(
                    theirs & own[image] <= above(sibling) for sibling in siblings
                ):
                    known = found.get((image, text), images + 1)
                    found[image, text] = min(known, denotes[p])
    return found


def case(name):
    if name == "scenes":
        return parsed(SCENES.texts), SCENES.text_to_image.tolist(), len(SCENES), ()
    owners = [0, 1, 2, 3, 3, -1, 4, 4, 5]
    return parsed(CAPTIONS), owners, 7, ((1, 2),)


def graph_of(name, seed=0):
    captions, owners, images, besides = case(name)
    extra = Pairs(*torch.tensor(besides).T) if besides else None
    relation = Relation(torch.tensor(owners), images=images, besides=extra)
    return DenotationGraph(iter(captions), relation, seed=seed)


@pytest.mark.parametrize("name", ["scenes", "few"])
def test_the_lists_are_those_of_a_slow_loop(name):
    captions, owners, images, besides = case(name)
    pairs = slow(captions, owners, images, besides)
    assert pairs
    described = len(set(owners) - {-1})
    lists = graph_of(name).negatives(len(captions), images)
    for rows, scores, places in (
        (lists.texts, lists.text_scores, range(images)),
        (lists.images, lists.image_scores, range(len(captions))),
    ):
        for query in places:
            items = rows[query][rows[query] >= 0].tolist()
            assert len(items) == len(set(items))
            of = {
                (t if rows is lists.texts else i): n
                for (i, t), n in pairs.items()
                if query == (i if rows is lists.texts else t)
            }
            found = scores[query][: len(of)].tolist()
            assert set(items[: len(of)]) == set(of)
            expected = [math.log2(described / of[item]) for item in items[: len(of)]]
            assert found == pytest.approx(expected, abs=2e-3)
            assert found == sorted(found, reverse=True)
            assert len(items) == len(of) or len(items) <= 2
            assert not any(scores[query][len(of) : len(items)])


def test_expressions_and_their_parents():
    two, park = (parsed(CAPTIONS)[at] for at in (2, 5))
    assert [words(one) for one in parents_of(two)] == ["girl on horse", "two girl", "black horse"]
    assert {words(one) for one in above(park)} == {
        "person dog in park near tree",
        "person dog in park",
        "person dog",
        "person",
        "dog",
        "park",
        "tree",
    }
    running = parsed(CAPTIONS)[6]
    assert [words(one) for one in parents_of(running)] == ["run", "park"]
    assert parsed(CAPTIONS)[7:] == [parsed(["Hello!"])[0], ()]


def test_an_example():
    """A dog is petted where a horse is ridden; a horse is black where it is brown."""
    captions = [CAPTIONS[at] for at in (0, 1, 2)]
    relation = Relation(torch.arange(3), images=3)
    lists = DenotationGraph(iter(parsed(captions)), relation).negatives(3, 3)
    assert set(lists.texts[0, :2].tolist()) == {1, 2}
    assert lists.text_scores[0, :2].tolist() == pytest.approx([math.log2(1.5)] * 2, abs=1e-3)


def test_no_list_holds_a_true_pair():
    """Neither a caption of the image nor a copy of one, nor an extra positive."""
    captions, owners, images, besides = case("few")
    lists = graph_of("few").negatives(len(captions), images)
    lists.checked(Relation(torch.tensor(owners), images=images))
    for image, text in besides:
        assert text not in lists.texts[image].tolist()
        assert image not in lists.images[text].tolist()
    copies = [captions[0], captions[0], captions[2]]
    lists = DenotationGraph(iter(copies), Relation(torch.arange(3), images=3)).negatives(3, 3)
    assert 1 not in lists.texts[0].tolist()


def test_shorter_lists_are_beginnings_of_longer_ones():
    long, short = graph_of("scenes").negatives(60, 12), graph_of("scenes").negatives(7, 3)
    for name in ("texts", "images", "text_scores", "image_scores"):
        whole, part = getattr(long, name), getattr(short, name)
        assert torch.equal(whole[:, : part.shape[1]], part)


def test_the_seed_orders_equals_alone():
    same, other = graph_of("scenes", 0).negatives(20, 10), graph_of("scenes", 1).negatives(20, 10)
    again = graph_negatives(SCENES, texts_per_image=20, images_per_text=10).lists
    assert torch.equal(same.texts, again.texts)
    assert torch.equal(same.images, again.images)
    assert not torch.equal(same.texts, other.texts)
    assert torch.equal(same.text_scores, other.text_scores)


def test_every_caption_has_something_to_draw():
    lists = graph_negatives(SCENES, texts_per_image=5, images_per_text=5).lists
    assert int((lists.images >= 0).sum(1).min()) >= 2
    OfflineNegativeSampler(lists=lists, relation=SCENES.relation)


def test_the_command_line_writes_a_store(tmp_path, capsys):
    command = ["papers", "graph", "--data", "scenes:images=30", "--output", tmp_path / "lists"]
    assert run(*command, "--texts-per-image", 6, "--images-per-text", 4, "--seed", 3) == 0
    assert "6 texts of each of" in capsys.readouterr().out
    store = NegativeStore.open(tmp_path / "lists", fingerprint=SCENES.fingerprint)
    expected = graph_negatives(SCENES, texts_per_image=6, images_per_text=4, seed=3)
    assert torch.equal(store.lists.texts, expected.lists.texts)
    assert store.manifest.seed == 3
    assert "denotation graph of" in store.manifest.filters[0]
    assert run(*command) == 2
    assert run(*command[:-1], tmp_path / "other", "--phrases", "sp") == 2
    assert "is not a phrase parser" in capsys.readouterr().err


def test_bad_input():
    with pytest.raises(ValueError, match="texts=0: a list of negatives has at least 1"):
        graph_negatives(SCENES, texts_per_image=0)
    with pytest.raises(ValueError, match="fewer than two described images"):
        graph_negatives(load_dataset("scenes:images=1").split("train"))
