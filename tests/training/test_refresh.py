"""A model that mines anew while it is trained."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
import train_cases as cases
from counterfoil.core import distributed
from counterfoil.losses.aoq import AdaptiveQuintuplet, OfflineTriplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import MarginRankingLoss, SumTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.mining import mine_lists
from counterfoil.negatives.sampling import OfflineNegativeSampler, SamplingConfig
from counterfoil.negatives.store import NegativeStore
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.encode import EmbeddedDataset, encode_images, encode_texts
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.mined import Mined
from counterfoil.training.remine import RemineConfig, Reminer
from counterfoil.training.stopping import StopMonitor
from counterfoil.training.trainer import TrainResult, train_network
from train_cases import metrics_of, same_weights, size_of

PLAN = TrainConfig(epochs=5, batch=8, optimiser=OptimizerConfig(rate=0.02), log_every=2)
EVERY_2 = RemineConfig(every=2)
BATCHES = 5  # of 36 captions
WHOLE = SamplingConfig()


def first_lists(processor: Any, host: RetrievalModel, texts: int = 6, images: int = 3) -> Any:
    rows = len(processor.dataset), len(processor.dataset.texts)
    member = EmbeddedDataset(
        host,
        encode_images(host, processor.images, rows[0]),
        encode_texts(host, processor.texts, rows[1]),
    )
    return mine_lists(
        [member], processor.dataset.text_to_image, texts_per_image=texts, images_per_text=images
    )


def train(
    folder: Path,
    plan: TrainConfig = PLAN,
    *,
    refresh: RemineConfig = EVERY_2,
    term: Loss | None = None,
    listed: bool = True,
    draw: SamplingConfig = WHOLE,
    states: list[dict[str, torch.Tensor]] | None = None,
    **more: Any,
) -> tuple[TrainResult, RetrievalModel]:
    processor = cases.processor()
    matcher = cases.host(more.pop("kind", "bag"), processor, dropout=0.3)
    lists = first_lists(processor, cases.host("bag", processor, seed=5))
    sources = []
    if listed or refresh.every:
        sources = [Mined(lists if listed else None, remine=refresh, sampling=draw)]
        sources[0].check(matcher, processor.dataset)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        if states is not None:
            states.append({name: v.clone() for name, v in model.state_dict().items()})
        return size_of(model)

    fitted = train_network(
        plan,
        matcher,
        WeightedSum(terms={"t": (1.0, term or AdaptiveQuintuplet())}),
        processor,
        folder=folder,
        sources=sources,
        evaluate=evaluate,
        **more,
    )
    return fitted, matcher


def stores(folder: Path) -> dict[int, NegativeStore]:
    """Those on disk, by the epoch they were mined at."""
    fingerprint = cases.processor().dataset.fingerprint
    found = (p for p in (folder / "lists").glob("*") if p.suffix != ".partial")
    return {
        int(path.name.split("-")[1]): NegativeStore.open(path, fingerprint=fingerprint)
        for path in found
    }


def test_the_lists_are_those_of_the_model_at_that_epoch(tmp_path: Path) -> None:
    states: list[dict[str, torch.Tensor]] = []
    train(tmp_path, states=states)
    mined = [line for line in metrics_of(tmp_path) if "lists" in line]
    assert [(line["epoch"], line["step"]) for line in mined] == [(2, 2 * BATCHES), (4, 4 * BATCHES)]
    ((epoch, store),) = stores(tmp_path).items()
    assert epoch == 4
    host = cases.host("bag", cases.processor())
    host.load_state_dict(states[3])
    wanted = first_lists(cases.processor(), host)
    assert torch.equal(store.lists.texts, wanted.texts)
    assert torch.equal(store.lists.images, wanted.images)
    assert store.manifest.sources[0].checkpoint == weights_digest(host)


def test_the_draws_change_with_the_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch's negatives stand in the lists of its epoch, read ahead or not."""
    drawn: list[tuple[OfflineNegativeSampler, int]] = []
    draw = OfflineNegativeSampler.draw

    def noted(self: OfflineNegativeSampler, texts: torch.Tensor, rng: torch.Generator) -> Any:
        found = draw(self, texts, rng)
        drawn.append((self, len(texts)))
        return found

    monkeypatch.setattr(OfflineNegativeSampler, "draw", noted)
    train(tmp_path, replace(PLAN, ahead=7))
    sources = [id(source) for source, _ in drawn]
    changes = [n for n in range(1, len(sources)) if sources[n] != sources[n - 1]]
    assert changes == [2 * BATCHES, 4 * BATCHES]
    assert len(drawn) == 5 * BATCHES
    kept = [source._texts for source in {id(s): s for s, _ in drawn}.values()]
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[1], kept[2])


def test_without_refresh_nothing_is_mined(tmp_path: Path) -> None:
    train(tmp_path / "never", refresh=RemineConfig())
    train(tmp_path / "later", refresh=RemineConfig(every=9))
    assert not (tmp_path / "never" / "lists").exists()
    assert metrics_of(tmp_path / "never") == metrics_of(tmp_path / "later")


@pytest.mark.parametrize("change", [{}, {"average": 0.8}, {"accumulate": 2}], ids=str)
def test_stopped_at_every_step(tmp_path: Path, change: dict[str, Any]) -> None:
    plan, every = replace(PLAN, epochs=3, **change), RemineConfig(every=1)
    whole, model = train(tmp_path / "whole", plan, refresh=every)
    fitted, sessions = whole, 0
    while sessions == 0 or not fitted.finished:
        short = replace(plan, minutes=1e-9)
        fitted, again = train(tmp_path / "cut", short, resume=True, refresh=every)
        sessions += 1
        assert len(stores(tmp_path / "cut")) <= 2
    assert sessions > 8
    assert metrics_of(tmp_path / "cut") == metrics_of(tmp_path / "whole")
    assert same_weights(model, again)
    names = [sorted(p.name for p in (tmp_path / f / "lists").iterdir()) for f in ("cut", "whole")]
    assert names[0] == names[1]
    assert len(names[0]) == 1


def test_stopped_in_the_middle_of_mining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = train(tmp_path / "whole")
    monkeypatch.setattr("counterfoil.training.remine.mine_lists", partial(mine_lists, tile=(4, 4)))
    asked = iter([True])
    monkeypatch.setattr(StopMonitor, "wanted", lambda self: next(asked, False))
    monkeypatch.setattr(StopMonitor, "decide", stop_while(asked))
    fitted, _ = train(tmp_path / "cut")
    assert (fitted.finished, fitted.steps) == (False, 2 * BATCHES)
    assert [path.suffix for path in (tmp_path / "cut" / "lists").iterdir()] == [".partial"]
    monkeypatch.undo()
    monkeypatch.setattr("counterfoil.training.remine.mine_lists", partial(mine_lists, tile=(4, 4)))
    fitted, again = train(tmp_path / "cut", resume=True)
    assert fitted.finished
    assert metrics_of(tmp_path / "cut") == metrics_of(tmp_path / "whole")
    assert same_weights(model, again)


def stop_while(asked: Any) -> Any:
    """As `Stopping.decide` would answer once mining has been told to stop."""
    return lambda self: ("minutes", True) if asked.__length_hint__() == 0 else (None, False)


def test_mining_moves_nothing(tmp_path: Path) -> None:
    """Neither generators nor running statistics nor modes."""
    processor = cases.processor()
    host = cases.host("vsrn", processor).train()
    host.text.eval()
    modes = [module.training for module in host.modules()]
    before, weights = torch.get_rng_state(), weights_digest(host)
    relisting(tmp_path, processor).mine("a-2", host, lambda: False)
    assert torch.equal(torch.get_rng_state(), before)
    assert weights_digest(host) == weights
    assert [module.training for module in host.modules()] == modes


def relisting(folder: Path, processor: Any, refresh: RemineConfig = EVERY_2) -> Reminer:
    return Reminer(refresh, processor, lambda store: None, folder / "lists", "a")


def mined_by_unlike_processors(folder: str) -> tuple[str, str]:
    processor = cases.processor()
    host = cases.host("bag", processor)
    with torch.no_grad():
        for parameter in host.parameters():
            parameter *= 1 + 1e-6 * distributed.rank()
    relisting(Path(folder), processor).mine("a-2", host, lambda: False)
    return weights_digest(host), weights_digest(cases.host("bag", processor))


def test_processes_whose_weights_have_drifted_mine_with_the_first_ones(tmp_path: Path) -> None:
    found = processes.run(mined_by_unlike_processors, 2, str(tmp_path))
    assert len({digest for both in found for digest in both}) == 1
    assert [source.checkpoint for source in stores(tmp_path)[2].manifest.sources] == [found[0][0]]


def test_a_store_is_taken_up_and_one_of_other_weights_is_not(tmp_path: Path) -> None:
    processor = cases.processor()
    again = relisting(tmp_path, processor, RemineConfig(every=2, texts=5, images=2))
    again.mine("a-2", cases.host("bag", processor), lambda: False)
    place = tmp_path / "lists" / "a-2"
    first = (place / "texts.npy").stat().st_mtime_ns
    again.mine("a-2", cases.host("bag", processor), lambda: False)
    assert (place / "texts.npy").stat().st_mtime_ns == first
    again.mine("a-2", cases.host("bag", processor, seed=3), lambda: False)
    assert (place / "texts.npy").stat().st_mtime_ns != first
    assert stores(tmp_path)[2].lists.texts.shape == (12, 5)
    again.remove_lists()
    assert not list((tmp_path / "lists").iterdir())


def test_filters_hold_for_what_is_mined_anew(tmp_path: Path) -> None:
    processor = cases.processor()
    plan = RemineConfig(every=1, texts=4, images=2, filters=FilterConfig(skip=2))
    relisting(tmp_path, processor, plan).mine("a-1", cases.host("bag", processor), lambda: False)
    store = stores(tmp_path)[1]
    whole = first_lists(processor, cases.host("bag", processor))
    assert torch.equal(store.lists.texts, whole.texts[:, 2:])
    assert store.manifest.filters == FilterConfig(skip=2).describe()


def test_lists_begin_with_the_first_mining(tmp_path: Path) -> None:
    """Online until then; nothing is drawn."""
    late = SwitchAfter(first=SumTripletLoss(), second=AdaptiveQuintuplet(), steps=2 * BATCHES)
    train(tmp_path, term=late, listed=False)
    plain = SwitchAfter(first=SumTripletLoss(), second=SumTripletLoss(), steps=2 * BATCHES)
    train(tmp_path / "plain", term=plain, listed=False, refresh=RemineConfig())
    found, wanted = metrics_of(tmp_path), metrics_of(tmp_path / "plain")
    assert [line for line in found if line["step"] <= 2 * BATCHES and "lists" not in line] == [
        line for line in wanted if line["step"] <= 2 * BATCHES
    ]
    assert stores(tmp_path)[4].lists.texts.shape == (12, 36)  # at most 300


@pytest.mark.parametrize(
    "more,message",
    [
        ({"listed": False}, "after 2 epochs, at batch 10, and the objective needs them from"),
        (
            {
                "listed": False,
                "term": SwitchAfter(first=SumTripletLoss(), second=OfflineTriplet(), steps=9),
            },
            "needs them from batch 9 on",
        ),
        ({"term": SumTripletLoss()}, "Mined gives pairs .* SumTripletLoss needs none of it"),
        ({"term": MarginRankingLoss(role="written")}, "Mined gives .* needs none of it"),
        (
            {"refresh": RemineConfig(every=2, texts=5), "draw": SamplingConfig(texts=6)},
            "6 texts would be drawn from, but lists of 5 are mined; set remine.texts to 6",
        ),
        (
            {"refresh": RemineConfig(every=2, images=1), "draw": SamplingConfig(images=2)},
            "2 images would be",
        ),
    ],
)
def test_what_cannot_be(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    if isinstance(more.get("term"), SumTripletLoss | MarginRankingLoss):
        more = {**more, "listed": False}
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **more)
    assert not list(tmp_path.iterdir())


def test_lists_that_are_gone(tmp_path: Path) -> None:
    steps = 0
    while steps <= 2 * BATCHES:
        steps = train(tmp_path, replace(PLAN, minutes=1e-9), resume=True)[0].steps
    shutil.rmtree(tmp_path / "lists")
    with pytest.raises(ValueError, match="is missing, the negatives of the interrupted training"):
        train(tmp_path, resume=True)
