from __future__ import annotations

import torch

from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.papers.models.dive import PooledParts, WordsAndStates
from matcher_cases import FEATURES, WORDS, regions, words

WIDTH = 8


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def gru(**options: object) -> GRU:
    torch.manual_seed(0)
    return GRU(words=WORDS, word_width=4, width=WIDTH, **options)


def test_a_towers_vectors_and_their_maximum():
    tower, items = Regions(features=FEATURES, width=WIDTH), regions(4, rng())
    parts, whole = PooledParts(tower=tower)(items)
    bag = tower(items)
    assert torch.equal(parts.tokens, bag.tokens)
    for one, tokens, mask in zip(whole, bag.tokens, bag.mask, strict=True):
        assert torch.equal(one, tokens[mask].amax(0))


def test_half_of_a_tower_is_pooled():
    tower, items = Regions(features=FEATURES, width=2 * WIDTH), regions(4, rng())
    made = PooledParts(tower=tower, pool="first", apart=True)
    parts, whole = made(items)
    assert (made.width, made.part_width) == (WIDTH, WIDTH)
    assert torch.equal(parts.tokens, tower(items).tokens[..., :WIDTH])
    assert torch.equal(whole, tower(items).tokens[:, 0, WIDTH:])


def test_words_are_embeddings_and_a_text_is_the_mean_of_its_last_states():
    made, items = WordsAndStates(gru=gru()).eval(), words(4, rng())
    parts, whole = made(items)
    assert made.part_width == 4
    for n, (ids, mask) in enumerate(zip(items.values, items.mask, strict=True)):
        embedded = made.gru.embed(ids[mask])
        torch.testing.assert_close(parts.tokens[n, mask], embedded)
        last = made.gru.rnn(embedded.unsqueeze(0))[1]  # of each direction
        torch.testing.assert_close(whole[n], last.mean(0)[0])


def test_words_are_dropped_in_training_alike_for_parts_and_whole():
    made, items = WordsAndStates(gru=gru(word_drop=0.9), dropout=0.0), words(30, rng())
    parts, whole = made(items)
    assert parts.mask.sum() < items.mask.sum()
    states = made.gru.rnn(parts.tokens[0, parts.mask[0]].unsqueeze(0))[1]
    torch.testing.assert_close(whole[0], states.mean(0)[0])
    assert torch.equal(made.eval()(items).parts.mask, items.mask)


def test_stacked_regions_are_what_the_linear_layer_and_the_network_upon_it_make():
    torch.manual_seed(0)
    tower, items = (
        MLPRegions(features=FEATURES, width=WIDTH, stacked=True).eval(),
        regions(3, rng()),
    )
    linear = tower.fc(items.values)
    deep = tower.leave(tower.norm(tower.enter(linear).flatten(0, 1)).relu()).view_as(linear)
    found = tower(items)
    torch.testing.assert_close(found.tokens[items.mask], (linear + deep)[items.mask])


def test_dropout_of_regions_is_for_training():
    tower, items = MLPRegions(features=FEATURES, width=WIDTH, dropout=0.5), regions(3, rng())
    assert (tower(items).tokens[items.mask] == 0).any()
    assert not (tower.eval()(items).tokens[items.mask] == 0).any()
