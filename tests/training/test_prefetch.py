from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

import train_cases as cases
from counterfoil.core.types import Batch
from counterfoil.data.batching import BatchSampler
from counterfoil.training.batches import BatchStream, prefetch
from sources_cases import drawn


def stream(draws: bool = True) -> BatchStream:
    processor = cases.processor()
    return BatchStream(
        processor=processor,
        sampler=BatchSampler(processor.dataset.relation, batch=8, seed=3),
        epochs=3,
        seed=3,
        sources=(drawn(cases.Offline(processor.dataset.text_to_image)),) if draws else (),
    )


def content(batch: Batch) -> list[object]:
    pairs = {role: (p.image.tolist(), p.text.tolist()) for role, p in batch.pairs.items()}
    return [batch.step, batch.text_rows.tolist(), batch.image_rows.tolist(), pairs]


@pytest.mark.parametrize("start", [0, 1, 4, 5, 6, 14, 15])
def test_a_stream_may_begin_anywhere(start: int) -> None:
    whole = [content(batch) for batch in stream().batches()]
    assert len(whole) == 15
    assert [content(batch) for batch in stream().batches(start)] == whole[start:]


def test_every_batch_draws_something_new() -> None:
    batches = list(stream().batches())
    assert [batch.step for batch in batches] == list(range(15))
    drawn = {tuple(batch.text_rows.tolist()) for batch in batches}
    assert len(drawn) == 15


def test_order_is_kept() -> None:
    with prefetch(lambda: iter(range(50)), 3) as values:
        assert list(values) == list(range(50))


def test_no_further_ahead_than_asked() -> None:
    made: list[int] = []

    def slowly() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with prefetch(slowly, 2) as values:
        next(values)
        time.sleep(0.05)
        assert len(made) <= 4  # taken, two waiting, one in hand


def test_an_error_comes_where_the_value_would_have() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("row 7 holds NaN")

    with prefetch(broken, 2) as values:
        assert next(values) == 1
        with pytest.raises(ValueError, match="row 7 holds NaN"):
            next(values)


def test_the_thread_ends_with_the_block() -> None:
    before = set(threading.enumerate())
    with prefetch(lambda: iter(range(10**6)), 2) as values:
        next(values)
        (thread,) = set(threading.enumerate()) - before
    assert not thread.is_alive()


def test_it_reads_while_the_taker_is_busy() -> None:
    second = threading.Event()

    def reading() -> Iterator[int]:
        yield 1
        second.set()
        yield 2

    with prefetch(reading, 2) as values:
        assert next(values) == 1
        assert second.wait(60)


def test_threads_share_no_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(stream().batches())
    assert torch.equal(torch.get_rng_state(), before)
