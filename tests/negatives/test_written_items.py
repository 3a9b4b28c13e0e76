from __future__ import annotations

import pytest
import torch

from counterfoil.negatives.generation.generator import GeneratedItems, generate_items
from counterfoil.negatives.generation.inputs import CandidateFilter
from counterfoil.negatives.generation.tags import MaskRefill
from tailored_cases import ANCHORS, host, inputs, processor

ROWS = torch.tensor([*ANCHORS, 2, 3, 7, 20])
SMALL = MaskRefill(masks=4, refills=5)


def items(seed: int = 0, *, keep: int = 3, mask_refill: MaskRefill = SMALL) -> list[GeneratedItems]:
    seen = processor()
    asked = {
        "mask_refill": mask_refill,
        "candidate_filter": CandidateFilter(),
        "keep": keep,
        "seed": seed,
    }
    return list(generate_items(host(seen).eval(), inputs(seen), ROWS, **asked))


def test_what_is_written():
    seen = processor()
    model = host(seen).eval()
    for part in items():
        assert torch.equal(part.original, seen.texts(part.rows).values[:, : part.original.shape[1]])
        changed = part.texts.values != part.original
        assert bool(changed.any(1).all())
        assert not bool((changed & ~part.slots).any())
        images = model.encode_images(seen.images(seen.dataset.text_to_image[part.rows]))
        found = model.score_pairs(images, model.encode_texts(part.texts))
        torch.testing.assert_close(part.scores, found.detach(), atol=1e-5, rtol=1e-5)


def test_the_hardest_of_each_caption_come_first():
    for part in items():
        for row in part.rows.unique().tolist():
            mine = part.rows == row
            assert part.place[mine].tolist() == list(range(int(mine.sum())))
            assert part.scores[mine].tolist() == sorted(part.scores[mine].tolist(), reverse=True)


def test_every_caption_has_its_turn_and_no_more_than_are_kept():
    rows = torch.cat([part.rows for part in items()]).tolist()
    assert set(rows) == set(ROWS.tolist())
    assert max(map(rows.count, rows)) == 3


def test_the_seed_alone_decides():
    one, same, other = items(), items(), items(1)
    assert all(torch.equal(a.texts.values, b.texts.values) for a, b in zip(one, same, strict=True))
    words = [torch.cat([part.texts.values.flatten() for part in some]) for some in (one, other)]
    assert words[0].tolist() != words[1].tolist()


def test_the_model_stays_in_its_mode():
    seen = processor()
    model = host(seen).train()
    asked = {"mask_refill": SMALL, "candidate_filter": CandidateFilter(), "keep": 2, "seed": 0}
    for part in generate_items(model, inputs(seen), ROWS, **asked):
        assert not part.scores.requires_grad
        assert torch.is_grad_enabled()
        assert model.training


def test_a_model_that_fills_nothing():
    seen = processor()
    asked = {"mask_refill": SMALL, "candidate_filter": CandidateFilter(), "keep": 2, "seed": 0}
    with pytest.raises(ValueError, match=r"has no heads for fill.*name them in its outputs"):
        next(generate_items(host(seen, outputs=("rank",)), inputs(seen), ROWS, **asked))
