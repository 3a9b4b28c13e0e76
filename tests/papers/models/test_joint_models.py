"""What holds for both models that read words and an image as one sequence: UNITER and ViLT."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import train_cases
from counterfoil.core.types import Embeddings, ModalityBatch, WordHead, WordHeadModel, WordSlots
from counterfoil.models.layers.joint_encoder import JointModel
from counterfoil.papers.compared.counterfactual import word_embeddings_of
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.models.vilt import ViLT

SIZES = {"layers": 2, "width": 8, "heads": 2, "inner": 12, "positions": 9, "vocabulary": 20}
KINDS = {UNITER: {"features": 6, "classes": 4}, ViLT: {"size": 16, "patch": 8}}
ALL = ("rank", "match", "fill", "doubt", "correct")
EVERY = frozenset(WordHead)
both = pytest.mark.parametrize("kind", KINDS)


def model(kind: type[JointModel], outputs: tuple[str, ...] = ALL, **options) -> JointModel:
    torch.manual_seed(0)
    host = kind(outputs=outputs, **{**SIZES, **KINDS[kind], **options})
    with torch.no_grad():
        for parameter in host.parameters():  # fresh ones are so small that nothing would show
            parameter.add_(torch.randn(parameter.shape) / 3)
    return host.eval()


def items(kind: type[JointModel]) -> tuple[ModalityBatch, ModalityBatch]:
    rng = torch.Generator().manual_seed(1)
    texts = torch.randint(0, 20, (4, 7), generator=rng)
    real = torch.arange(7) < torch.tensor([[5], [2], [7], [3]])
    if kind is ViLT:
        values, boxes = torch.randn(4, 3, 16, 16, generator=rng), None
        mask = torch.ones(4, 1, dtype=torch.bool)
    else:
        values, boxes = torch.randn(4, 4, 6, generator=rng), torch.rand(4, 4, 4, generator=rng)
        mask = torch.arange(4) < torch.tensor([[3], [1], [4], [2]])
    return (
        ModalityBatch(torch.arange(4), values, mask, boxes),
        ModalityBatch(torch.arange(4), texts, real),
    )


def encoded(host: JointModel) -> tuple[Embeddings, Embeddings]:
    images, texts = items(type(host))
    return host.encode_images(images), host.encode_texts(texts)


@both
@torch.no_grad()
@pytest.mark.parametrize(
    "want",
    [{w} for w in WordHead] + [{WordHead.SCORE, WordHead.FILL}],
    ids=lambda heads: "-".join(sorted(head.value for head in heads)),
)
def test_what_is_not_wanted_changes_nothing(kind, want):
    host = model(kind)
    slots = WordSlots(torch.tensor([1, 1]), torch.tensor([1, 0]))
    pools = encoded(host)
    whole, some = host.read(*pools, EVERY, slots), host.read(*pools, frozenset(want), slots)
    for head in WordHead:
        value = getattr(some, head.value)
        if head in want:
            torch.testing.assert_close(value, getattr(whole, head.value))
        else:
            assert value is None


@both
def test_no_slots_give_no_words(kind):
    host, none = model(kind), torch.zeros(0, dtype=torch.long)
    reading = host.read(*encoded(host), frozenset({WordHead.FILL}), WordSlots(none, none))
    assert reading.fill.shape == (0, 20 + 1)
    with pytest.raises(ValueError, match="words are wanted and no slots are given"):
        host.read(*encoded(host), frozenset({WordHead.FILL}))


@both
@pytest.mark.parametrize("outputs", [("rank",), ("match", "fill"), ("rank", "doubt", "correct")])
def test_no_parameter_is_there_for_nothing(kind, outputs):
    host = model(kind, outputs)
    slots = WordSlots(torch.tensor([1]), torch.tensor([1]))
    reading = host.read(*encoded(host), host.word_heads, slots)
    found = [getattr(reading, want.value) for want in host.word_heads]
    torch.stack([value.square().sum() for value in found]).sum().backward()
    assert [name for name, p in host.named_parameters() if p.grad is None] == []
    assert isinstance(host, WordHeadModel)
    assert (host.says.fill is None) == (WordHead.FILL not in host.word_heads)


@both
def test_heads_that_are_not_there_are_asked_for_in_vain(kind):
    host = model(kind, ("rank",))
    pools = encoded(host)
    assert host.word_heads == {WordHead.SCORE}
    with pytest.raises(ValueError, match="no head 'doubt'; build it with that among its outputs"):
        host.read(*pools, frozenset({WordHead.DOUBT}))
    with pytest.raises(ValueError, match="no head 'match'"):
        host.matched(host.joint(*pools).pooled)


@both
def test_heads_begin_as_those_that_were_trained_before_them(kind):
    first, second = model(kind, ("match", "fill")), model(kind, ("rank", "doubt", "correct"))
    second.load_state_dict(second.adopted(first.state_dict()))
    assert torch.equal(second.says.rank.weight, first.says.match.weight[1:])
    assert torch.equal(second.says.rank.bias, first.says.match.bias[1:])
    assert torch.equal(second.says.doubt.weight, first.says.match.weight)
    for name, value in first.says.fill.state_dict().items():
        assert torch.equal(second.says.correct.state_dict()[name], value)
    again = model(kind, ("rank", "match"))
    again.load_state_dict(again.adopted({**second.state_dict(), **first.state_dict()}))
    assert torch.equal(again.says.rank.weight, second.says.rank.weight)  # trained: it stays
    with pytest.raises(ValueError, match=r"layers?\.2.*' is not in the weights given"):
        model(kind, layers=3).adopted(first.state_dict())


@both
def test_probability_and_logit_are_of_one_score(kind):
    first, second = model(kind, score="probability"), model(kind, score="logit")
    pools = encoded(first)
    scores = first.score_matrix(*pools)
    assert torch.equal(scores, second.score_matrix(*pools))
    assert torch.equal(second.loss_scores(scores), scores)
    scores[0, 0] = -torch.inf  # no pair
    wanted = scores.sigmoid()
    wanted[0, 0] = -torch.inf
    assert torch.equal(first.loss_scores(scores), wanted)
    assert (first.loss_scale, second.loss_scale) == (1.0, 4.0)
    assert first.score_scale == second.score_scale == 4.0


@both
def test_the_word_that_hides_is_known(kind):
    assert word_embeddings_of(model(kind)).mask_word == 20
    host = word_embeddings_of(model(kind, mask=3))
    assert host.mask_word == 3
    assert host.word_table().num_embeddings == 20


@both
def test_dropout_is_drawn_in_training_alone(kind):
    host = model(kind, dropout=0.2)
    pools = encoded(host)
    assert torch.equal(host.score_pairs(*pools), host.score_pairs(*pools))
    host.train()
    assert not torch.equal(host.score_pairs(*pools), host.score_pairs(*pools))


@both
def test_what_cannot_be_read(kind):
    _, texts = items(kind)
    with pytest.raises(ValueError, match="texts of 7 tokens do not fit a model that reads 6"):
        model(kind, positions=6).encode_texts(texts)
    with pytest.raises(ValueError, match="token id 21 is not in this model's vocabulary of 21"):
        model(kind).encode_texts(replace(texts, values=texts.values.clone().fill_(21)))


@both
def test_it_learns(kind):
    torch.manual_seed(0)
    sizes = {**SIZES, **KINDS[kind], "dropout": 0.0, "width": 16}
    host = kind(**sizes)

    def losses() -> dict[str, Tensor]:
        scores = host.loss_scores(host.score_matrix(*encoded(host)))
        return {"x": nn.functional.binary_cross_entropy(scores, torch.eye(4))}

    # 0.56 for one answer to all
    assert train_cases.learnt(host, losses, rate=0.01, steps=40)[-1]["x"] < 0.4
