"""On several cores, threads that score a tile each give what one thread gives, bit for bit."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Embeddings
from counterfoil.scoring.checkpoint import StreamCheckpoint
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import DenseScores, PairRanks, Ranks, TopK, TrueScores
from counterfoil.scoring.stream import ScoreReducer, stream_scores
from engine_cases import Dot, vectors

IMAGES, TEXTS = 75, 230
RNG = torch.Generator().manual_seed(1)
LEFT, RIGHT = (torch.randn(count, 8, generator=RNG).round(decimals=1) for count in (IMAGES, TEXTS))
RIGHT[1::7] = RIGHT[0]  # ties
OWNERS = torch.randint(-1, IMAGES, (TEXTS,), generator=RNG)


@pytest.fixture(params=[2, 3, 5])
def cores(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def reducers() -> list[ScoreReducer]:
    return [
        TopK("image", IMAGES, 7, OWNERS),
        TopK("text", TEXTS, 7, OWNERS),
        Ranks("image", IMAGES, OWNERS),
        Ranks("text", TEXTS, OWNERS),
        PairRanks(OWNERS),
        TrueScores(OWNERS),
        DenseScores(IMAGES, TEXTS),
    ]


def results(given: list[ScoreReducer]) -> list[torch.Tensor]:
    found = []
    for reducer in given:
        if isinstance(reducer, TopK):
            found += [reducer.rows, reducer.scores]
        elif isinstance(reducer, Ranks):
            found += [reducer.ranks(ties) for ties in ("row", "optimistic", "pessimistic")]
        elif isinstance(reducer, PairRanks):
            found.append(reducer.ranks())
        else:
            assert isinstance(reducer, TrueScores | DenseScores)
            found.append(reducer.scores)
    return found


class Watched(Dot):
    """Notes the threads that score, and whether they would build a graph or round to half."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.modes: set[tuple[int, bool, bool]] = set()

    def score_matrix(self, images, texts):
        self.threads.add(threading.get_ident())
        half = torch.is_autocast_enabled("cpu")
        self.modes.add((torch.get_num_threads(), torch.is_grad_enabled(), half))
        return super().score_matrix(images, texts)


def stream(given, model=None, **options):
    member = EmbeddedDataset(model or Dot(), vectors(LEFT), vectors(RIGHT))
    stream_scores([member], given, tile=(16, 32), **options)
    return results(given)


@pytest.fixture(scope="module")
def alone():
    return stream(reducers())


@pytest.mark.parametrize("memory", [0, 20_000, 2**29])
def test_same_results(cores, memory, alone):
    model = Watched()
    together = stream(reducers(), model, memory=memory)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.get_num_threads() == cores
    assert threading.get_ident() not in model.threads
    assert model.modes == {(1, False, False)}


def test_several_tiles_are_in_work_at_once(cores):
    meeting = threading.Barrier(cores)
    first = [None] * cores

    class Meeting(Dot):
        def score_matrix(self, images, texts):
            if first:
                first.pop()
                meeting.wait(60)
            return super().score_matrix(images, texts)

    stream(reducers()[:2], Meeting())
    assert not first


def test_autocast_holds_in_the_threads(cores):
    model = Watched()
    with torch.autocast("cpu", torch.bfloat16):
        stream(reducers()[:2], model)
    assert model.modes == {(1, False, True)}


def test_a_stopped_pass_goes_on(cores, alone, tmp_path):
    answers = iter([False, True])

    def go_on(stop=None):
        lists = TopK("image", IMAGES, 7, OWNERS), TopK("text", TEXTS, 7, OWNERS)
        saved = dict(zip(("texts", "images"), lists))
        return stream(lists, checkpoint=StreamCheckpoint(saved, {}, folder=tmp_path, stop=stop))

    with pytest.raises(WorkStopped):
        go_on(lambda: next(answers))
    assert all(torch.equal(a, b) for a, b in zip(alone[:4], go_on(), strict=True))


def test_inference_mode_holds_in_the_threads(cores, alone):
    with torch.inference_mode():
        together = stream(reducers())
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_with_few_tiles_all_cores_share_a_product(alone):
    before, model = torch.get_num_threads(), Watched()
    torch.set_num_threads(64)
    try:
        given = reducers()
        wide = torch.zeros(IMAGES, 4000), torch.zeros(TEXTS, 4000)
        member = EmbeddedDataset(
            model, *(vectors(torch.cat(pair, 1)) for pair in zip((LEFT, RIGHT), wide))
        )
        stream_scores([member], given, tile=(16, 32))
    finally:
        torch.set_num_threads(before)
    assert model.threads == {threading.get_ident()}
    assert all(torch.equal(a, b) for a, b in zip(alone, results(given), strict=True))


def test_cheap_reducers_leave_the_product_to_all_cores():
    before, wide = torch.get_num_threads(), (torch.ones(IMAGES, 512), torch.ones(TEXTS, 512))
    torch.set_num_threads(2)
    try:
        for given, alone in ((reducers()[:2], False), (reducers()[2:4], True)):
            model = Watched()
            stream_scores([EmbeddedDataset(model, *map(vectors, wide))], given, tile=(16, 32))
            assert (model.threads == {threading.get_ident()}) == alone
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_thread_is_raised(cores):
    broken = LEFT.clone()
    broken[40, 0] = torch.nan
    member = EmbeddedDataset(Dot(), vectors(broken), vectors(RIGHT))
    with pytest.raises(ValueError, match="image row 40 and text row"):
        stream_scores([member], reducers()[:2], tile=(16, 32))
    assert torch.get_num_threads() == cores


def test_bags_and_reducers_that_share_state_use_one_thread(cores):
    here = threading.get_ident()

    class Alone(TrueScores):
        concurrent = False

    model = Watched()
    stream([Alone(OWNERS)], model)
    assert model.threads == {here}
    model = Watched()
    two = torch.ones(IMAGES, 2, dtype=torch.bool)
    bags = Embeddings(torch.stack([LEFT, LEFT], 1), two)
    member = EmbeddedDataset(model, bags, vectors(RIGHT))
    stream_scores([member], reducers()[:2], tile=(16, 32))
    assert model.threads == {here}


def test_tiles_in_work_share_neither_images_nor_texts(cores):
    in_work: list[set[tuple[str, int]]] = []
    lock, most = threading.Lock(), 0

    class Watch(TrueScores):
        def update(self, tile):
            nonlocal most
            rows = {("image", row) for row in tile.images.tolist()}
            rows |= {("text", row) for row in tile.texts.tolist()}
            with lock:
                assert not any(rows & others for others in in_work)
                in_work.append(rows)
                most = max(most, len(in_work))
            time.sleep(0.002)
            super().update(tile)
            with lock:
                in_work.remove(rows)

    stream([Watch(OWNERS)])
    assert 1 < most <= cores
