"""`Trainer`: a Model in, a Model out, and a folder that opens."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import train_cases as cases
from counterfoil.core.config import config, lazy
from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs, Scores
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.scenes import scenes
from counterfoil.evaluation.metrics import RECALLS
from counterfoil.losses.adapters import MetricLearningLoss, SentenceTransformersLoss
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.ndgl import MarginDistillationLoss, listwise_settings
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.model import Model, load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.batch_mining import BatchMiningConfig
from counterfoil.negatives.mining import mine_lists
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.negatives.sources import NegativeSource
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.negatives.teachers import Teachers
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import TrainConfig
from counterfoil.training.mined import Mined, MinedBatches, MinedTeacher
from counterfoil.training.trainer import Trainer, TrainingLoop
from train_cases import metrics_of


@cache
def data() -> ImageTextDataset:
    return scenes(images=24, dev=6, test=0, features="regions")


def small_model(seed: int = 0) -> Model:
    train = data().split("train")
    processor = ProcessorConfig().fit(train)
    assert train.features is not None
    assert processor.tokenizer is not None
    torch.manual_seed(seed)
    text = lazy(GRU, words=processor.tokenizer.size, width=8, word_width=4)
    image = lazy(Regions, features=train.features.width, width=8)
    spec = config(VSEPP, image=image, text=text)
    return Model(spec.build(), processor, "small", spec)


@cache
def mined() -> NegativeStore:
    train = data().split("train")
    lists = mine_lists(
        [small_model().embed(train)], train.text_to_image, texts_per_image=6, images_per_text=3
    )
    return NegativeStore.of(lists, dataset=train.fingerprint, split="train", sources=())


def trainer(output: Path, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "model": small_model(),
        "loss": AdaptiveQuintuplet(),
        "train": data().split("train"),
        "dev": data().split("dev"),
        "sources": [Mined(mined())],
        "epochs": 2,
        "batch_size": 30,
        "lr": 0.01,
        "seed": 0,
    } | changes
    return Trainer(settings.pop("model"), output=output, **settings)


def same_weights(one: Model, other: Model) -> bool:
    return cases.same_weights(one.model, other.model)


class StopAfter(Callback):
    """Stops a training after some steps, as a time limit does."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, loop: TrainingLoop[Any], group: Any, losses: Any) -> None:
        if loop.progress.step == self.steps:
            loop.stop.minutes = 1e-9


@pytest.mark.parametrize("positives", ["id", "diagonal"])
def test_negatives_as_in_the_authors_code(positives: str, tmp_path: Path) -> None:
    """By "diagonal" another caption of the same image is a negative; by the first step's loss."""
    train = data().split("train").with_positives(positives)  # type: ignore[arg-type]
    seen: list[tuple[list[int], float]] = []

    class Seen(Callback):
        def on_step_end(self, loop: Any, group: Any, losses: Any) -> None:
            rows = group[0].text_rows[group[0].anchors.text]
            seen.append((rows.tolist(), losses["loss"].item()))

    trainer(
        tmp_path / "a",
        loss=HardestTripletLoss(),
        train=train,
        dev=None,
        sources=[],
        config=TrainConfig(steps=1),
        callbacks=[Seen()],
    ).train()
    rows, loss = seen[0]
    start = small_model().embed(train)  # as before the first step
    image = train.text_to_image[rows]
    scores = start.images.tokens[image, 0] @ start.texts.tokens[rows, 0].T
    cost = 0.2 + scores - scores.diagonal()[:, None], 0.2 + scores - scores.diagonal()
    same = image[:, None] == image if positives == "id" else torch.eye(len(rows)).bool()
    assert same.sum() > len(rows) or positives == "diagonal"
    wanted = sum(
        side.masked_fill(same, 0).clamp(min=0).amax(axis).sum()
        for axis, side in zip((1, 0), cost, strict=True)
    )
    assert loss == pytest.approx(float(wanted), rel=1e-5)


def test_it_trains_saves_and_opens(tmp_path: Path) -> None:
    start = small_model()
    before = deepcopy(start)
    tuned = trainer(tmp_path / "a", model=start).train()
    assert not same_weights(tuned, before)
    opened = load_model(tmp_path / "a")
    assert same_weights(opened, tuned)
    assert opened.card is not None
    assert opened.card.provenance["start"] == "small"
    recalls = {f"{side}_{key}" for side in ("i2t", "t2i") for key in RECALLS}
    assert set(opened.card.metrics) == {"rsum", *recalls}
    assert [line["epoch"] for line in metrics_of(tmp_path / "a") if "dev_rsum" in line] == [1, 2]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["metrics.jsonl", "model"]


def test_a_stopped_training_resumes_to_the_same_model(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole").train()
    with pytest.raises(WorkStopped, match=r"after 4 steps .*resume=True"):
        trainer(tmp_path / "cut", callbacks=[StopAfter(4)]).train()
    assert (tmp_path / "cut" / "checkpoints" / "last.safetensors").is_file()
    again = trainer(tmp_path / "cut", resume=True).train()
    assert same_weights(again, whole)
    assert metrics_of(tmp_path / "cut") == metrics_of(tmp_path / "whole")
    assert same_weights(trainer(tmp_path / "cut", resume=True).train(), whole), "not trained again"
    for change, words in (
        ({"lr": 0.02}, "config.optimiser.rate is"),
        ({"loss": SumTripletLoss(), "sources": []}, r"loss\[1\]"),
    ):
        with pytest.raises(ValueError, match=f"the result of another training: {words}"):
            trainer(tmp_path / "cut", resume=True, **change).train()
    with pytest.raises(ValueError, match="holds a training already; continue it with resume=True"):
        trainer(tmp_path / "cut")


def scored(change: float = 0.0) -> HardNegativeLists:
    """The lists with scores, which fall along a list; the first true score is moved by `change`."""
    lists = mined().lists
    true = torch.arange(len(lists.images)).half() % 7 / 7
    true[0] += change
    assert lists.text_scores is not None
    return replace(lists, true_scores=true)


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda lists: Mined(lists, sampling=SamplingConfig(ambiguity=0.5)), True),
        (lambda lists: MinedTeacher(lists), True),
        (lambda lists: Mined(lists), False),
    ],
    ids=["ambiguity", "teacher", "mined"],
)
def test_a_training_that_reads_scores_is_not_resumed_with_others(
    make: Callable[[Any], NegativeSource], read: bool, tmp_path: Path
) -> None:
    source = make(scored())
    loss: Any = AdaptiveQuintuplet()
    if isinstance(source, MinedTeacher):
        loss = MarginDistillationLoss(**listwise_settings(temperature=0.1))
    with pytest.raises(WorkStopped, match=r"after 4 steps"):
        trainer(tmp_path / "cut", loss=loss, sources=[source], callbacks=[StopAfter(4)]).train()
    if read:
        with pytest.raises(ValueError, match=r"another training: sources\[0\].lists is"):
            trainer(tmp_path / "cut", loss=loss, sources=[make(scored(0.5))], resume=True).train()
    whole = trainer(tmp_path / "whole", loss=loss, sources=[make(scored())]).train()
    lists = scored() if read else scored(0.5)
    again = trainer(tmp_path / "cut", loss=loss, sources=[make(lists)], resume=True).train()
    assert same_weights(again, whole)


def test_negatives_as_a_folder_lists_or_a_store_are_the_same(tmp_path: Path) -> None:
    mined().save(tmp_path / "negatives")
    forms = (mined(), mined().lists, tmp_path / "negatives", str(tmp_path / "negatives"))
    models = [
        trainer(tmp_path / str(n), sources=[Mined(form)], epochs=1, dev=None).train()
        for n, form in enumerate(forms)
    ]
    assert all(same_weights(model, models[0]) for model in models)


def test_the_record_has_data_losses_settings_and_negatives_that_have_a_manifest(
    tmp_path: Path,
) -> None:
    mined().save(tmp_path / "negatives")
    described = []
    for n, form in enumerate((mined(), str(tmp_path / "negatives"), mined().lists)):
        tuned = trainer(tmp_path / str(n), sources=[Mined(form)], epochs=1, dev=None).train()
        assert tuned.card is not None
        record = tuned.card.provenance["training"]
        described.append(record.get("negatives"))
    train = data().split("train")
    assert record["splits"] == {"train": {"images": len(train), "captions": len(train.texts)}}
    assert record["steps"] == math.ceil(len(train.texts) / 30)
    (loss,) = record["losses"]
    assert loss["loss"].startswith("AdaptiveQuintuplet")
    assert loss["papers"] == ["https://arxiv.org/abs/2003.03669"]
    assert record["settings"]["batch"] == 30
    assert record["versions"]["torch"] == torch.__version__
    manifest = mined().manifest
    assert described[0]["texts_per_image"] == manifest.texts_per_image
    assert described[0]["fingerprint"] == train.fingerprint
    assert described[0] == described[1]
    assert described[2] is None


def test_a_weighted_sum_without_negatives(tmp_path: Path) -> None:
    loss = WeightedSum(terms={"all": (0.5, SumTripletLoss()), "hard": (1.0, HardestTripletLoss())})
    trainer(tmp_path, loss=loss, sources=[], config=TrainConfig(average=0.5)).train()
    assert {"loss_all", "loss_hard"} <= metrics_of(tmp_path)[0].keys()


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"sources": []},
            r"AdaptiveQuintuplet needs pairs in the role of 'companion', .*no source",
        ),
        (
            {"loss": SumTripletLoss()},
            "Mined gives pairs .* SumTripletLoss needs none of it; choose",
        ),
        (
            {"sources": [mined()]},
            "sources holds a NegativeStore; give sources of negatives, such as",
        ),
        ({"sources": [Mined(mined()), Mined(mined())]}, "Mined and another source both give pairs"),
        (
            {"loss": MarginDistillationLoss(), "sources": []},
            r"needs a guide .* give sources=\[Teachers\(model\)\]",
        ),
        ({"train": scenes(images=24, dev=5, test=0, features="regions").split("train")}, "another"),
        ({"model": load_model("vectors")}, "has no processor, so"),
        ({"batch_size": 0}, "batch=0"),
    ],
)
def test_errors_in_words(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


def test_batches_from_lists_with_any_loss(tmp_path: Path) -> None:
    """A loss that needs no negatives takes batches of them; other ones are another training."""
    changes: dict[str, Any] = {"loss": HardestTripletLoss(), "batch_size": 6}
    mining = BatchMiningConfig(size=3, skip=1)
    composed = trainer(tmp_path / "mined", sources=[MinedBatches(mined(), mining)], **changes)
    random = trainer(tmp_path / "random", sources=[], **changes)
    assert not same_weights(composed.train(), random.train())
    changed = trainer(tmp_path / "mined", sources=[MinedBatches(mined())], resume=True, **changes)
    with pytest.raises(ValueError, match="the result of another training"):
        changed.train()
    other = data().split("dev")
    with pytest.raises(ValueError, match="mined from another data set"):
        trainer(tmp_path / "other", sources=[MinedBatches(mined())], train=other, **changes)


class Seen(Loss):
    """Sums hinges, and counts the extra positives of each batch."""

    def __init__(self, *, uses_extra: bool) -> None:
        super().__init__()
        self.uses_extra, self.weights = uses_extra, [torch.zeros(0)]

    def forward(self, scores: Scores) -> torch.Tensor:
        grid = self.matrix(scores)
        if grid.extra is not None and torch.is_grad_enabled():
            self.weights.append(grid.extra.weight)
            assert bool(grid.scores[grid.extra.image, grid.extra.text].isneginf().all())
        return SumTripletLoss()(scores)


def test_extra_positives_meet_for_a_loss_that_learns_from_them_and_no_other(tmp_path: Path) -> None:
    train = data().split("train")
    texts = torch.arange(0, 60, 5)
    pairs = Pairs((train.text_to_image[texts] + 3) % len(train), texts)
    judged = replace(train, extra_positives=pairs, extra_weights=torch.full((12,), 0.25))
    met = []
    for uses_extra in (False, True):
        loss = Seen(uses_extra=uses_extra)
        trainer(
            tmp_path / str(uses_extra), loss=loss, train=judged, sources=[], batch_size=8
        ).train()
        met.append(torch.cat(loss.weights))
    assert not len(met[0])
    assert len(met[1]) > 12  # of 24 in two epochs, of which random batches would hold three or four
    assert set(met[1].tolist()) == {0.25}


def test_infonce_trains_on_weighted_extra_positives(tmp_path: Path) -> None:
    """The batches are the same, and a pair comes the closer, the higher its weight."""
    train = data().split("train")
    pairs = Pairs(torch.tensor([5]), torch.tensor([0]))
    reached = []
    for weight in (0.01, 0.5, 1.0):
        judged = replace(train, extra_positives=pairs, extra_weights=torch.tensor([weight]))
        tuned = trainer(
            tmp_path / str(weight), loss=InfoNCELoss(), train=judged, sources=[], dev=None
        ).train()
        embedded = tuned.embed(train)
        scores = tuned.model.score_matrix(embedded.images, embedded.texts)
        reached.append(float(scores[5, 0]))
    assert reached[0] < reached[1] < reached[2]


class OwnModel(RetrievalModel):
    """A model of a user's module, which files may not name."""

    def __init__(self, *, image: Regions, text: GRU) -> None:
        super().__init__()
        self.image, self.text = image, text

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return self.image(images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return self.text(texts)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> torch.Tensor:
        return (images.tokens.mean(1) * texts.tokens.mean(1)).sum(1)


def opened_into_alone() -> dict[str, tuple[Model, str]]:
    """Models whose call no folder can hold, and why."""
    small = small_model()
    assert small.spec is not None
    own = replace(small.spec, make=OwnModel)
    module = small.spec.replace(image=Regions(features=4, width=8))
    function = small.spec.replace(text=config(math.sqrt))
    return {
        "own class": (replace(small, model=own.build(), spec=own), "or register yours"),
        "a module as an argument": (replace(small, spec=module), "use plain values or config"),
        "a function": (replace(small, spec=function), "not something this file may call"),
        "no call": (
            replace(small, spec=None),
            "nothing says how small is built; so the result opens as",
        ),
    }


@pytest.mark.parametrize("name", opened_into_alone())
def test_a_model_without_a_call_opens_into_one_that_is_built(name, tmp_path, capsys) -> None:
    model, message = opened_into_alone()[name]
    fresh = deepcopy(model)
    trained = trainer(tmp_path / "run", model=model)
    assert message in capsys.readouterr().err  # before the first step
    assert not (tmp_path / "run").exists()
    tuned = trained.train()
    with pytest.raises(ValueError, match="nothing says how it is built; build the model"):
        load_model(tmp_path / "run")
    again = load_model(tmp_path / "run", into=fresh)
    torch.testing.assert_close(again.model.state_dict(), tuned.model.state_dict())
    assert again.card is not None
    assert again.card.provenance["start"] == "small"
    # its processor is one of ours, and saved: a bare network is enough
    assert load_model(tmp_path / "run", into=fresh.model).processor is not None
    assert "into=Model(module" in (tmp_path / "run" / "model" / "README.md").read_text()
    fresh = opened_into_alone()[name][0]
    assert trainer(tmp_path / "run", model=fresh, resume=True).train().card is not None


def never_opened() -> dict[str, tuple[Model, str]]:
    """Models that could be trained and saved, and not be opened again."""
    small = small_model()
    assert small.spec is not None
    other = small.spec.replace(text=small.spec.arguments["text"].replace(word_width=5))
    lazy_layer = deepcopy(small.model)
    lazy_layer.add_module("more", torch.nn.LazyLinear(3))
    return {
        "other sizes": (replace(small, spec=other), "builds a model whose text.embed.weight is"),
        "a layer that has not run": (replace(small, model=lazy_layer), "run a lazy layer once"),
    }


@pytest.mark.parametrize("name", never_opened())
def test_what_could_not_be_opened_again_is_not_trained(name: str, tmp_path: Path) -> None:
    model, message = never_opened()[name]
    with pytest.raises(ValueError, match=message) as caught:
        trainer(tmp_path / "run", model=model)
    assert "could not be opened again from a folder" in str(caught.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="could not be opened again"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def with_bert(folder: Path, **other: Any) -> Model:
    """A model whose BERT is named by its folder; `other` is in its spec alone."""
    hub = pytest.importorskip("hub_cases")
    processor = ProcessorConfig().fit(data().split("train"))
    assert processor.tokenizer is not None
    hub.bert(folder, vocab_size=processor.tokenizer.size, max_position_embeddings=64)
    image = lazy(Regions, features=data().split("train").features.width, width=8)  # type: ignore[union-attr]
    spec, named = (
        config(VSEPP, image=image, text=lazy(BertTextTower, **{"name": str(folder), **sizes}))
        for sizes in ({"width": 8}, {"width": 8, **other})
    )
    return Model(spec.build(), processor, "with BERT", named)


def test_a_model_with_bert_opens_again_without_the_folder_of_bert(tmp_path: Path) -> None:
    model = with_bert(tmp_path / "bert")
    training = trainer(tmp_path / "run", model=model, loss=InfoNCELoss(), sources=(), epochs=1)
    shutil.rmtree(tmp_path / "bert")  # while it trains
    tuned = training.train()
    again = load_model(tmp_path / "run")
    assert same_weights(again, tuned)
    assert "config" in repr(again.spec)
    assert again.identity() == tuned.identity()


def test_a_spec_of_another_bert_is_refused_before_training(tmp_path: Path) -> None:
    model = with_bert(tmp_path / "bert", config='{"model_type": "bert", "hidden_size": 24}')
    with pytest.raises(ValueError, match="give the spec that the module was built by"):
        trainer(tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()


def mean_gap(scores: Tensor, positives: Tensor) -> Tensor:
    return (0.2 + scores[~positives].mean() - scores[positives].mean()).clamp(min=0)


class LearnedMargin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.margin = nn.Parameter(torch.tensor(0.5))

    def forward(self, scores: Tensor, positives: Tensor, mask: Tensor) -> Tensor:
        cost = self.margin + scores - scores[positives].mean()
        return cost.clamp(min=0)[mask & ~positives].mean() + self.margin**2


def three_of_them() -> WeightedSum:
    metric = pytest.importorskip("pytorch_metric_learning.losses")
    terms = {
        "gap": (1.0, mean_gap),
        "margin": (0.5, LearnedMargin()),
        "library": (0.1, MetricLearningLoss(metric.SupConLoss())),
    }
    return WeightedSum(terms=terms)


@pytest.mark.parametrize("make", [lambda: mean_gap, LearnedMargin, three_of_them])
def test_losses_of_ones_own_train_and_resume(tmp_path: Path, make: Callable[[], Any]) -> None:
    whole_loss, cut_loss = make(), make()
    whole = trainer(tmp_path / "whole", loss=whole_loss, sources=[]).train()
    assert not same_weights(whole, small_model())
    stopped = trainer(tmp_path / "cut", loss=make(), sources=[], callbacks=[StopAfter(4)])
    with pytest.raises(WorkStopped):
        stopped.train()
    again = trainer(tmp_path / "cut", loss=cut_loss, sources=[], resume=True).train()
    assert same_weights(again, whole)
    assert metrics_of(tmp_path / "cut") == metrics_of(tmp_path / "whole")
    if isinstance(whole_loss, nn.Module):  # what it has learnt is resumed, too
        assert cases.same_weights(cut_loss, whole_loss)
        assert not cases.same_weights(whole_loss, make())
    with pytest.raises(ValueError, match=r"the result of another training: loss\["):
        trainer(tmp_path / "cut", loss=partial(mean_gap), sources=[], resume=True).train()


def test_the_record_names_a_loss_of_ones_own(tmp_path: Path) -> None:
    tuned = trainer(tmp_path, loss=mean_gap, sources=[], epochs=1, dev=None).train()
    assert tuned.card is not None
    (loss,) = tuned.card.provenance["training"]["losses"]
    assert loss["loss"] == "mean_gap"


def test_a_loss_without_a_name_trains_and_does_not_resume(tmp_path: Path, capsys: Any) -> None:
    def loss(scores: Tensor, positives: Tensor) -> Tensor:
        return mean_gap(scores, positives) + weight.sum()

    weight = torch.zeros(1)
    trainer(tmp_path, loss=loss, sources=[], epochs=1, dev=None).train()
    said = "a training with the loss loss cannot be resumed .* reads variables of the function"
    assert re.search(said, capsys.readouterr().err)
    with pytest.raises(ValueError, match=said):
        trainer(tmp_path, loss=loss, sources=[], epochs=1, dev=None, resume=True)


class Memory(nn.Module):
    """Counts its calls; its tensor of earlier batches is not in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.queue = 0, torch.zeros(3)

    def forward(self, scores: Tensor, positives: Tensor) -> Tensor:
        self.calls += 1
        self.queue = self.queue.roll(1)
        return scores[~positives].mean() - scores[positives].mean()


def test_a_module_is_called_for_batches_alone_and_one_with_a_memory_is_not_resumed(
    tmp_path: Path, capsys: Any
) -> None:
    loss = Memory()
    settings: dict[str, Any] = {"loss": loss, "sources": [], "epochs": 2, "dev": None}
    trainer(tmp_path / "a", config=TrainConfig(log_every=1), **settings).train()
    assert loss.calls == metrics_of(tmp_path / "a")[-1]["step"]
    said = r"loss Memory cannot be resumed .* keeps the tensor 'queue', .* not saved; write it as"
    assert re.search(said, " ".join(capsys.readouterr().err.split()))
    with pytest.raises(ValueError, match=said):
        trainer(tmp_path / "a", resume=True, **settings).train()


class Queue(nn.Module):
    """The loss of a batch weighs by a queue of buffers whose place is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.place = 0
        self.register_buffer("held", torch.zeros(5))

    def forward(self, scores: Tensor, positives: Tensor) -> Tensor:
        self.held[self.place % 5] = scores.detach().mean()
        self.place += 1
        weight = 1 + self.held.abs().sum() * self.place
        return weight * (scores[~positives].mean() - scores[positives].mean())


def test_a_module_with_a_queue_ends_with_the_same_numbers_after_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sources": [], "epochs": 3, "dev": None}
    whole = trainer(tmp_path / "whole", loss=Queue(), **settings).train()
    with pytest.raises(WorkStopped):
        trainer(tmp_path / "a", loss=Queue(), callbacks=[StopAfter(5)], **settings).train()
    assert same_weights(
        trainer(tmp_path / "a", loss=Queue(), resume=True, **settings).train(), whole
    )


def test_a_store_is_that_of_these_teachers(tmp_path: Path) -> None:
    one, two, other = (small_model(seed) for seed in (1, 2, 3))
    store, runs = tmp_path / "store", iter(range(9))

    def teach(*teachers: Model) -> None:
        sources = [Teachers(*teachers, store=store)]
        loss, place = MarginDistillationLoss(), tmp_path / f"{next(runs)}"
        trainer(place, loss=loss, sources=sources, epochs=1, dev=None).train()

    teach(one, two)
    teach(one, two)
    for given, said in (
        ((one,), "holds the encodings of 2 teachers, not of 1; give those in the order"),
        ((one, two, other), "holds the encodings of 2 teachers, not of 3"),
        ((two, one), "holds these teachers in another order"),
        ((one, other), "teacher 2 of .* or is another one"),
    ):
        with pytest.raises(ValueError, match=said):
            teach(*given)


def test_features_that_were_exchanged_since_a_store_was_made_are_said(
    tmp_path: Path, capsys: Any
) -> None:
    train = data().split("train")
    assert train.features is not None
    other = replace(train, features=replace(train.features, values=train.features.values[::-1]))
    for name, part in (("a", train), ("b", train), ("c", other)):
        capsys.readouterr()
        sources = [Teachers(small_model(1), store=tmp_path / "store")]
        trainer(
            tmp_path / name, loss=MarginDistillationLoss(), train=part, sources=sources,
            epochs=1, dev=None,
        ).train()  # fmt: skip
        said = " ".join(capsys.readouterr().err.split())
        assert ("the features of scenes are others than those that" in said) == (name == "c")


def test_settings_of_mined_lists_that_are_no_settings() -> None:
    with pytest.raises(ValueError, match=r"remine=2 is no RemineConfig; write remine=Remine"):
        Mined(mined(), remine=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sampling=5 is no SamplingConfig; write sampling="):
        Mined(mined(), sampling=5)  # type: ignore[arg-type]


def test_embeddings_are_those_of_the_model(tmp_path: Path) -> None:
    """In-batch negatives of sentence-transformers are InfoNCE, where each image has one caption."""
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    theirs = SentenceTransformersLoss(library.MultipleNegativesRankingLoss(None, scale=20.0))
    ours = InfoNCELoss(temperature=1 / 20, reduction="mean")
    settings: dict[str, Any] = {"sources": [], "dev": None, "epochs": 1, "lr": 1e-3}
    settings["config"] = TrainConfig(one_caption=True, log_every=1)
    losses = []
    for name, loss in (("theirs", theirs), ("ours", ours)):
        trainer(tmp_path / name, loss=loss, **settings).train()
        losses.append(metrics_of(tmp_path / name)[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_embeddings_of_several_vectors_are_refused(tmp_path: Path) -> None:
    processor = ProcessorConfig().fit(data().split("train"))
    model = Model(cases.Bag(words=50), processor, "bag")
    loss = MetricLearningLoss(nn.CosineEmbeddingLoss(), across=False)  # refused before it is called
    with pytest.raises(ValueError, match="EmbeddingLoss reads one vector of every image and capt"):
        trainer(tmp_path, model=model, loss=loss, sources=[])
