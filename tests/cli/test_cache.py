"""``counterfoil cache``."""

from __future__ import annotations

import os
import time

import pytest


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache of its own: an old and a new file, a folder, and a file that is not ours."""
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path))
    (tmp_path / "pixels").mkdir()
    for name, days in (("old.npy", 40), ("new.npy", 0)):
        (tmp_path / "pixels" / name).write_bytes(b"x" * 1_000_000)
        when = time.time() - days * 24 * 3600
        os.utime(tmp_path / "pixels" / name, (when, when))
    (tmp_path / "states" / "a").mkdir(parents=True)
    (tmp_path / "states" / "a" / "part.npy").write_bytes(b"x" * 500_000)
    (tmp_path / "mine.txt").write_text("not of the cache")
    return tmp_path


def test_listed_with_sizes(cached, printed):
    shown = printed("cache")
    assert "pixels (decoded pictures): 2 entries, 2.0 MB, the oldest 40 days old" in shown
    assert "states (outputs of frozen models): 1 entry, 0.5 MB" in shown
    assert "tokens (tokenised captions): 0 entries, 0.0 MB" in shown
    assert (cached / "pixels" / "old.npy").exists()


def test_old_files_of_a_kind_are_deleted(cached, printed):
    shown = printed("cache", "--clear", "pixels", "--days", 30)
    assert "deleted 1 entry, 1.0 MB" in shown
    assert [path.name for path in (cached / "pixels").iterdir()] == ["new.npy"]
    assert (cached / "states" / "a" / "part.npy").exists()


def test_all_is_deleted_but_what_is_not_ours(cached, printed):
    outside = cached.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("x")
    (cached / "states" / "link").symlink_to(outside)
    printed("cache", "--clear", "all")
    assert not [path for kind in ("pixels", "states") for path in (cached / kind).iterdir()]
    assert (cached / "mine.txt").exists()
    assert (outside / "kept").exists()
