from __future__ import annotations

from counterfoil.serve.thumbnails import Thumbnails


def test_what_was_not_used_for_longest_goes():
    kept = Thumbnails(most=10)
    for name in "abc":
        kept.put(name, bytes(3))
    assert kept.get("a") == bytes(3)
    kept.put("d", bytes(4))
    assert [name for name in "abcd" if kept.get(name) is not None] == ["a", "c", "d"]


def test_what_is_put_again_counts_once():
    kept = Thumbnails(most=10)
    for size in (9, 2, 4):
        kept.put("a", bytes(size))
    kept.put("b", bytes(6))
    assert kept.get("a") == bytes(4)
    assert len(kept) == 2


def test_what_is_larger_than_all_room_is_not_kept():
    kept = Thumbnails(most=10)
    kept.put("a", bytes(11))
    assert kept.get("a") is None
