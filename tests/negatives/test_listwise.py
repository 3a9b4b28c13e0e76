"""A re-ranker's scores of mined lists teach a model: the source, the loss, the step."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import pstdev

import pytest
import torch

import train_cases as cases
from counterfoil.core.types import Pairs, Role
from counterfoil.data.batching import collate
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.ndgl import MarginDistillationLoss, listwise_settings
from counterfoil.negatives.mining import rerank_proposals, with_true_scores
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.training.mined import MinedTeacher
from counterfoil.training.step import TrainingStep
from engine_cases import given
from negatives_cases import random_lists, rng

LENS = cases.processor()
RELATION = LENS.dataset.relation
TAU, TEACHER_TAU = 0.3, 0.7


def judged(h: int = 6, k: int = 4) -> tuple[HardNegativeLists, torch.Tensor]:
    """Lists in a re-ranker's order, with its scores, and the (I, T) scores of all pairs."""
    scores = torch.randint(40, (RELATION.images, len(RELATION.text_to_image)), generator=rng(3))
    scores, owner = scores / 8, RELATION.text_to_image
    members = [given(scores)]
    proposed = random_lists(RELATION, h, k)
    lists = rerank_proposals(proposed, members, owner, texts_per_image=h, images_per_text=k)
    return with_true_scores(lists, members, owner), scores


def unit(lists: HardNegativeLists) -> float:
    return pstdev([*lists.text_scores.flatten().tolist(), *lists.image_scores.flatten().tolist()])


def taught(count: int = 3, **settings):
    lists, scores = judged()
    source = MinedTeacher(lists, sampling=SamplingConfig(count=count, resample=False))
    loss = MarginDistillationLoss(
        **listwise_settings(temperature=TAU, teacher_temperature=TEACHER_TAU, **settings)
    )
    host = cases.host("global", LENS)
    objective = WeightedSum(terms={"lists": (1.0, loss)})
    source.check(host, LENS.dataset)
    source.begin(host, LENS, objective, batches=1)
    return source, objective, host, lists, scores


def softmax(scores: list[float], temperature: float) -> list[float]:
    powers = [math.exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("direction", ["teacher_student", "both"])
def test_a_step_is_a_loop_over_the_candidates_of_each_list(direction):
    """Qwen3-VL-Embedding, Eq. 3, but for the re-ranker's entropy; UniME-V2 with both."""
    source, objective, host, lists, scores = taught(direction=direction)
    rows = torch.tensor([4, 0, 1, 17, 30, 22])  # two captions of one image among them
    batch = collate(LENS, rows, negatives=source.draw(rows, rng(5)))
    step = TrainingStep(host, objective, sources=[source])
    found = step(batch)["lists"].item()
    assert [*source.draw(rows, rng())] == [Role.HARD_TEXT, Role.HARD_IMAGE]
    with torch.no_grad():
        view = host(batch).inference
        student = host.score_matrix(view.images, view.texts)
    each = []
    for anchor, text in enumerate(rows.tolist()):
        image = int(RELATION.text_to_image[text])
        for role in (Role.HARD_TEXT, Role.HARD_IMAGE):
            drawn = batch.pairs[role]
            places = [*zip(drawn.image[anchor].tolist(), drawn.text[anchor].tolist())]
            pairs = [(int(batch.image_rows[i]), int(batch.text_rows[t])) for i, t in places]
            assert all(RELATION.text_to_image[t] != i for i, t in pairs)
            own = [(int(batch.anchors.image[anchor]), int(batch.anchors.text[anchor]))]
            p = softmax(
                [scores[i, t].item() / unit(lists) for i, t in [(image, text), *pairs]], TEACHER_TAU
            )
            q = softmax([student[i, t].item() for i, t in own + places], TAU)
            each.append(kl(p, q) if direction == "teacher_student" else (kl(p, q) + kl(q, p)) / 2)
    assert found == pytest.approx(sum(each) / len(rows), rel=2e-3)  # scores are kept in float16


def test_only_pairs_of_lists_and_true_ones_have_targets(monkeypatch):
    source, objective, host, lists, scores = taught()
    monkeypatch.setattr(type(host), "loss_scale", property(lambda _: 10.0))
    source.begin(host, LENS, objective, batches=1)
    rows = torch.tensor([4, 0, 1, 17])
    batch = collate(LENS, rows, negatives=source.draw(rows, rng(1)))
    images, texts = torch.meshgrid(
        torch.arange(len(batch.image_rows)), torch.arange(len(batch.text_rows)), indexing="ij"
    )
    found = source.pair_targets(batch, Pairs(images, texts))
    listed = {(i, t) for i, row in enumerate(lists.texts.tolist()) for t in row}
    listed |= {(i, t) for t, row in enumerate(lists.images.tolist()) for i in row}
    listed |= {(i, t) for t, i in enumerate(RELATION.text_to_image.tolist())}
    for i, image in enumerate(batch.image_rows.tolist()):
        for t, text in enumerate(batch.text_rows.tolist()):
            wanted = scores[image, text].item() / unit(lists) * 10
            if (image, text) not in listed:
                wanted = -math.inf
            assert found[i, t].item() == pytest.approx(wanted, rel=1e-3, abs=1e-6), (image, text)
    block = source.targets(batch)
    known = block.isfinite()
    assert torch.equal(known, cases.batch_of(LENS, rows.tolist()).positive)
    torch.testing.assert_close(block[known], found[: block.shape[0], : block.shape[1]][known])


def test_negatives_of_no_list_have_no_part(tmp_path):
    """Random ones that fill an empty list are drawn, but the re-ranker has not scored them."""
    source, objective, host, _, _ = taught()
    rows = torch.tensor([4, 0, 17])
    pairs = dict(source.draw(rows, rng(5)))
    batch = collate(LENS, rows, negatives=pairs)
    step = TrainingStep(host, objective, sources=[source])
    before = step(batch)["lists"]
    lists = source.opened()
    texts = lists.texts.clone()
    image = int(RELATION.text_to_image[17])
    texts[image] = -1
    images = torch.where(lists.images == image, -1, lists.images)
    source.lists = replace(lists, texts=texts, images=images)
    after = step(batch)["lists"]
    assert after.isfinite()
    assert after < before
    after.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in host.parameters())


def test_lists_without_a_re_rankers_scores_teach_nothing():
    lists, _ = judged()
    for change, fault in (
        ({"true_scores": None}, "hold no scores of the true pairs"),
        ({"text_scores": None, "image_scores": None}, "hold no scores; have the re-ranker score"),
        ({"true_scores": torch.full_like(lists.true_scores, 65504)}, "are beyond 65,504"),
    ):
        with pytest.raises(ValueError, match=f"learns from a re-ranker's scores .*{fault}"):
            MinedTeacher(replace(lists, **change)).check(None, LENS.dataset)


@pytest.mark.parametrize("own", [True, False])
def test_a_model_does_not_teach_itself_without_a_word(own: bool, capsys) -> None:
    (lists, _), host = judged(), cases.host("global", LENS)
    checkpoint = weights_digest(host) if own else "0" * 16
    scorer = ModelSource(
        matcher="it", spec="", checkpoint=checkpoint, identity=checkpoint, score="cosine"
    )
    train = LENS.dataset
    store = NegativeStore.of(lists, dataset=train.fingerprint, split="train", sources=(scorer,))
    MinedTeacher(store).check(host, train)
    said = " ".join(capsys.readouterr().err.split())
    assert ("they teach it nothing new; have the re-ranker score" in said) == own
