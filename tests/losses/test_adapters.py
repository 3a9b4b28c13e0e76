"""Losses of pytorch-metric-learning and sentence-transformers: what they are given."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from counterfoil.core.types import EqualTexts, Pairs, ScoreMatrix, Scores, VectorScores
from counterfoil.losses.adapters import MetricLearningLoss, SentenceTransformersLoss

metric = pytest.importorskip("pytorch_metric_learning.losses")
miners = pytest.importorskip("pytorch_metric_learning.miners")
theirs = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

OWN = torch.tensor([0, 0, 1, 2, 2, 2])
ROWS = torch.tensor([7, 3, 9])


def record(**changes):
    rng = torch.Generator().manual_seed(0)
    images, texts = (normalize(torch.randn(n, 4, generator=rng), dim=1) for n in (3, 6))
    given = {"images": images.requires_grad_(), "texts": texts, "text_to_image": OWN} | changes
    vectors = VectorScores(**given, rows=ROWS)
    scores = vectors.images @ vectors.texts.T
    positive = torch.arange(3).unsqueeze(1) == OWN
    matrix = ScoreMatrix(scores, positive, scores[OWN, torch.arange(6)])
    return Scores({"inference": matrix}, vectors=vectors)


class Spy(nn.Module):
    """Keeps what it is called with."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, embeddings, labels, indices=None, ref_emb=None, ref_labels=None):
        self.calls.append((embeddings, labels, indices, ref_emb, ref_labels))
        return embeddings.sum()

    def compute_loss_from_embeddings(self, embeddings, labels):
        self.calls.append((embeddings, labels))
        return sum(part.sum() for part in embeddings)


def test_metric_learning_across():
    given, loss = record(), metric.SupConLoss(temperature=0.1)
    vectors, labels = given.vectors, ROWS[OWN]
    i, t = (vectors.images, ROWS), (vectors.texts, labels)
    expected = (loss(*i, None, *t) + loss(*t, None, *i)) / 2
    assert MetricLearningLoss(loss)(given).item() == pytest.approx(expected.item())


def test_metric_learning_of_all_with_all_and_parameters():
    given = record()
    loss = metric.ProxyNCALoss(num_classes=10, embedding_size=4)
    ours = MetricLearningLoss(loss, across=False)
    vectors = torch.cat([given.vectors.images, given.vectors.texts])
    assert ours(given).item() == pytest.approx(loss(vectors, torch.cat([ROWS, ROWS[OWN]])).item())
    assert [*ours.parameters()] == [loss.proxies]


def test_a_miner_chooses():
    given, spy = record(), Spy()
    MetricLearningLoss(spy, miner=miners.MultiSimilarityMiner(epsilon=0.1))(given)
    assert [len(call[2]) for call in spy.calls] == [4, 4]


def test_pairs_have_one_caption_of_each_image():
    given, spy = record(), Spy()
    SentenceTransformersLoss(spy)(given)
    (forth, none), (back, _) = spy.calls
    assert none is None
    assert torch.equal(forth[0], given.vectors.images)
    assert torch.equal(forth[1], given.vectors.texts[[0, 2, 3]])
    assert [part.data_ptr() for part in back] == [part.data_ptr() for part in forth[::-1]]


def slow_hardest(vectors, left_out=()):
    scores = (vectors.images @ vectors.texts.T).tolist()
    wrong = {(i, t) for i in range(3) for t in range(6) if OWN[t] != i and (i, t) not in left_out}
    text = [max((t for j, t in wrong if j == i), key=lambda t: scores[i][t]) for i in range(3)]
    columns = [[i for i, u in wrong if u == t] for t in range(6)]
    image = [max(c, key=lambda i: scores[i][t]) if c else -1 for t, c in enumerate(columns)]
    return text, image


def test_triplets_are_of_the_hardest():
    given, spy = record(), Spy()
    SentenceTransformersLoss(spy, form="triplet")(given)
    vectors, (text, image) = given.vectors, slow_hardest(given.vectors)
    (to_text, _), (to_image, _) = spy.calls
    assert torch.equal(to_text[2], vectors.texts[text])
    assert torch.equal(to_image[0], vectors.texts)
    assert torch.equal(to_image[1], vectors.images[OWN])
    assert torch.equal(to_image[2], vectors.images[image])


def test_labelled_pairs_and_labels():
    given, spy = record(), Spy()
    SentenceTransformersLoss(spy, form="labeled-pair")(given)
    ((images, texts), labels) = spy.calls[0]
    assert labels.tolist() == [1.0] * 6 + [0.0] * 9
    text, image = slow_hardest(given.vectors)
    assert torch.equal(images, given.vectors.images[[*OWN.tolist(), 0, 1, 2, *image]])
    assert torch.equal(texts, given.vectors.texts[[*range(6), *text, *range(6)]])
    SentenceTransformersLoss(spy, form="labels")(given)
    ((vectors,), labels) = spy.calls[1]
    assert labels.tolist() == [*ROWS.tolist(), *ROWS[OWN].tolist()]
    assert vectors.shape == (9, 4)


def test_judged_and_equal_captions_are_no_hardest_negatives():
    vectors = record().vectors
    text, image = slow_hardest(vectors)
    equal = EqualTexts.of(
        torch.tensor([0, 1, 2, 3, 4, 1]), Pairs(OWN, torch.arange(6)), OWN, 3
    )  # the captions 1 and 5 say the same
    judged = (1, text[1])
    given = record(exempt=Pairs(torch.tensor([1]), torch.tensor([text[1]])), equal=equal)
    spy = Spy()
    SentenceTransformersLoss(spy, form="triplet")(given)
    text, image = slow_hardest(vectors, {judged, (0, 5), (2, 1)})
    assert torch.equal(spy.calls[0][0][2], vectors.texts[text])
    assert torch.equal(spy.calls[1][0][2], vectors.images[[i for i in image if i >= 0]])
    assert torch.equal(spy.calls[1][0][0], vectors.texts[[t for t in range(6) if image[t] >= 0]])


@pytest.mark.parametrize(
    "loss, form",
    [(theirs.TripletLoss, "triplet"), (theirs.CosineSimilarityLoss, "labeled-pair")],
)
def test_a_batch_of_one_image_teaches_nothing(loss, form):
    images = torch.rand(1, 4, requires_grad=True)
    vectors = VectorScores(images, torch.rand(2, 4), torch.tensor([0, 0]), rows=ROWS[:1])
    scores = images @ vectors.texts.T
    matrix = ScoreMatrix(scores, torch.ones(1, 2).bool(), scores[0])
    value = SentenceTransformersLoss(loss(None), form=form)(
        Scores({"inference": matrix}, vectors=vectors)
    )
    value.backward()
    assert value == 0
    assert images.grad.eq(0).all()


@pytest.mark.parametrize(
    "loss, form",
    [
        (theirs.MultipleNegativesRankingLoss(None), "pair"),
        (theirs.MultipleNegativesRankingLoss(None), "triplet"),
        (theirs.TripletLoss(None), "triplet"),
        (theirs.CoSENTLoss(None), "labeled-pair"),
        (theirs.AnglELoss(None), "labeled-pair"),
        (theirs.CosineSimilarityLoss(None), "labeled-pair"),
        (theirs.OnlineContrastiveLoss(None), "labeled-pair"),
        (theirs.BatchHardTripletLoss(None), "labels"),
        (theirs.BatchAllTripletLoss(None), "labels"),
        (theirs.BatchSemiHardTripletLoss(None), "labels"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_theirs_have_gradients(loss, form):
    given = record()
    SentenceTransformersLoss(loss, form=form)(given).backward()
    assert given.vectors.images.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MetricLearningLoss(metric.SupConLoss), r"takes a loss.*write SupConLoss\(…\)"),
        (lambda: MetricLearningLoss(metric.SupConLoss(), miner=3), "the miner is 3"),
        (
            lambda: MetricLearningLoss(metric.ProxyNCALoss(10, 4))(record()),
            r"MetricLearningLoss\(ProxyNCALoss\(…\), across=False\)",
        ),
        (
            lambda: MetricLearningLoss(nn.CosineEmbeddingLoss()),
            r"CosineEmbeddingLoss\(…\), across=False\)",
        ),
        (
            lambda: SentenceTransformersLoss(nn.Linear(2, 2)),
            r"encodes by itself; give a loss with compute_loss_from_embeddings.*\(grad_cache=…\)",
        ),
        (lambda: SentenceTransformersLoss(Spy(), form="triplets"), "did you mean 'triplet'"),
        (lambda: MetricLearningLoss(Spy())(torch.eye(3)), "Spy reads embeddings, and scores"),
    ],
)
def test_wrong_calls_say_what_to_write(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    "loss, form, message",
    [
        (theirs.TripletLoss, "pair", r'not read form="pair" \(.*write .*, form="triplet"\)$'),
        (theirs.CoSENTLoss, "pair", r'CoSENTLoss\(None\), form="labeled-pair"\)$'),
        (theirs.BatchHardTripletLoss, "triplet", r'form="labels"\), or form="labeled-pair"$'),
    ],
)
def test_a_form_that_a_loss_does_not_read_is_refused(loss, form, message):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        SentenceTransformersLoss(loss(None), form=form)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_that_no_form_tells_about_is_not_refused():
    class OfWidth(Spy):
        def compute_loss_from_embeddings(self, vectors, labels):
            if vectors[0].shape[1] != 4:
                raise ValueError("another width")
            return super().compute_loss_from_embeddings(vectors, labels)

    assert SentenceTransformersLoss(OfWidth())(record()).requires_grad


def test_a_loss_with_a_model_is_refused():
    loss = Spy()
    loss.model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"has a model of its own.*Spy\(None\)"):
        SentenceTransformersLoss(loss)
