from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn.functional import pad

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.vsrn import Captioner

WORDS, WIDTH, REGIONS = 11, 4, 3


def writer(longest: int = 60, dropout: float = 0.0) -> Captioner:
    torch.manual_seed(0)
    sizes = {"hidden": 5, "word_width": 3, "dropout": dropout, "longest": longest}
    return Captioner(words=WORDS, width=WIDTH, **sizes).double()


def bags(n: int, whole: bool = False) -> Embeddings:
    """Images of one to three regions; garbage at padding."""
    rng = torch.Generator().manual_seed(1)
    counts = torch.randint(REGIONS if whole else 1, REGIONS + 1, (n,), generator=rng)
    return bag_cases.bag(counts.tolist(), WIDTH, longest=REGIONS)


def captions(lengths: list[int]) -> torch.Tensor:
    rng = torch.Generator().manual_seed(2)
    ids = torch.randint(3, WORDS, (len(lengths), max(lengths)), generator=rng)
    counts = torch.tensor(lengths).unsqueeze(1)
    return ids.masked_fill(torch.arange(max(lengths)) >= counts, -1)


def slow(model: Captioner, bag: Embeddings, told: torch.Tensor) -> torch.Tensor:
    """Caption by caption, always longest - 1 steps, all the vocabulary, then a label mask."""
    loss = torch.zeros((), dtype=torch.double)
    for tokens, mask, caption in zip(bag.tokens, bag.mask, told, strict=True):
        states, last = model.reader(model.fc(tokens[mask]).unsqueeze(0))
        state, ids = last[0], caption[caption >= 0]
        if len(ids) >= model.longest:
            ids = torch.cat([ids[: model.longest - 1], ids[-1:]])
        labels = pad(ids, (0, model.longest + 1 - len(ids)))
        wanted = torch.arange(model.longest + 1) <= len(ids)
        for step in range(model.longest - 1):
            both = torch.cat([states[0], state.expand_as(states[0])], 1)
            weight = model.focus(model.attend(both).tanh()).softmax(0)
            read = torch.cat([model.embed(labels[step]), (weight * states[0]).sum(0)])
            state = model.writer(read.unsqueeze(0), state)
            if wanted[step + 1]:
                loss = loss - model.out(state)[0].log_softmax(0)[labels[step + 1]]
    return loss


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(2, 12), st.booleans())
def test_it_is_the_loop_that_never_stops(lengths, longest, whole):
    model, bag, told = writer(longest), bags(len(lengths), whole), captions(lengths)
    expected = slow(model, bag, told)
    loss = model(bag, told)
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_it_stops_at_the_longest_caption_and_leaves_short_ones(monkeypatch):
    model, rows = writer(), []
    step = model._step

    def counted(memory, words, state):
        rows.append(len(words))
        return step(memory, words, state)

    monkeypatch.setattr(model, "_step", counted)
    model(bags(3), captions([2, 5, 3]))
    assert rows == [3, 3, 2, 1, 1]


def test_the_vocabulary_is_scored_for_real_tokens_only():
    model, scored = writer(), []
    model.out.register_forward_hook(lambda _, inputs, __: scored.append(len(inputs[0])))
    model(bags(3), captions([2, 5, 3]))
    assert scored == [10]


def test_room_behind_the_longest_changes_nothing():
    model, told = writer(6), captions([2, 5, 3])
    torch.testing.assert_close(model(bags(3), pad(told, (0, 7), value=-1)), model(bags(3), told))


def test_nothing_to_tell_is_zero_with_a_gradient_for_all():
    model = writer()
    loss = model(bags(0), captions([1])[:0])
    assert loss.item() == 0
    loss.backward()
    assert all((p.grad == 0).all() for p in model.parameters())


def test_dropout_is_of_training_only():
    model, told = writer(dropout=0.5), captions([4, 4])
    assert not torch.equal(model(bags(2), told), model(bags(2), told))
    model.eval()
    assert torch.equal(model(bags(2), told), model(bags(2), told))


def test_gradient():
    model, bag, told = writer(), bags(2), captions([3, 2])
    tokens = bag.tokens.nan_to_num().requires_grad_()
    assert gradcheck(lambda v: model(Embeddings(v, bag.mask), told), tokens)


def test_a_caption_has_a_token_to_predict():
    regions = Embeddings(torch.randn(1, 2, 3), torch.ones(1, 2) > 0)
    shortest = Captioner(words=3, width=3, hidden=3, word_width=3, longest=2)
    assert shortest(regions, torch.tensor([[1, 2, 0]])) > 0
