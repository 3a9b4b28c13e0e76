"""Encodings on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from artifact_cases import resealed
from counterfoil.core.types import Embeddings
from counterfoil.scoring.embedding_store import ENCODINGS, EmbeddingStore, EmbeddingWriter

COUNT, LONGEST, WIDTH = 7, 5, 3


def bags(*, gram: bool = True) -> Embeddings:
    """Bags of 1 to 5 vectors, one of them with a hole."""
    rng = torch.Generator().manual_seed(0)
    mask = torch.arange(LONGEST) < torch.tensor([1, 5, 2, 3, 4, 5, 2]).unsqueeze(1)
    mask[4, 1] = False
    tokens = torch.randn(COUNT, LONGEST, WIDTH, generator=rng)
    tokens = torch.where(mask.unsqueeze(2), tokens, torch.tensor(7.0))
    return Embeddings(tokens, mask, tokens @ tokens.mT if gram else None)


def put(writer: EmbeddingWriter, made: Embeddings, *batches: list[int]) -> None:
    for batch in batches:
        part = made.rows(torch.tensor(batch))
        longest = int((part.mask * torch.arange(1, LONGEST + 1)).max())
        gram = None if part.gram is None else part.gram[:, :longest, :longest]
        writer.put(
            torch.tensor(batch), Embeddings(part.tokens[:, :longest], part.mask[:, :longest], gram)
        )


def stored(folder: Path, made: Embeddings, precision: str = "fp32") -> EmbeddingStore:
    writer = EmbeddingWriter(folder, precision)
    put(writer, made, [1, 5, 4], [3, 0, 6], [2])
    writer.close()
    return EmbeddingStore(folder, COUNT)


def same(found: Embeddings, made: Embeddings, rows: list[int], atol: float = 0.0) -> None:
    expected = made.rows(torch.tensor(rows)).padded(found.tokens.shape[1])
    length = found.mask.shape[1]
    assert torch.equal(found.mask, expected.mask[:, :length])
    assert not expected.mask[:, length:].any()
    there = found.mask
    kept = expected.tokens[:, :length]
    torch.testing.assert_close(found.tokens[there], kept[there], rtol=0, atol=atol)
    if made.gram is not None:
        square = there.unsqueeze(2) & there.unsqueeze(1)
        assert torch.equal(found.gram[square], expected.gram[:, :length, :length][square])
    assert found.tokens.isfinite().all()


@pytest.mark.parametrize("gram", [True, False])
@pytest.mark.parametrize("precision,atol", [("fp32", 0.0), ("fp16", 2e-3)])
def test_what_is_written_is_read(tmp_path, precision, atol, gram):
    made = bags(gram=gram)
    found = stored(tmp_path / "bags", made, precision)
    assert len(found) == COUNT
    assert not found.single
    for rows in ([0], [6, 1, 1], list(range(COUNT)), [4, 2]):
        same(found.rows(torch.tensor(rows)), made, rows, atol)


def test_no_padding_is_stored(tmp_path):
    stored(tmp_path / "bags", bags())
    assert (tmp_path / "bags" / "tokens.f32").stat().st_size == 22 * WIDTH * 4


def test_single_vectors(tmp_path):
    tokens = torch.randn(COUNT, 1, WIDTH)
    made = Embeddings(tokens, torch.ones(COUNT, 1, dtype=torch.bool))
    writer = EmbeddingWriter(tmp_path / "bags", "fp32")
    writer.put(torch.arange(COUNT).flip(0), made.rows(torch.arange(COUNT).flip(0)))
    writer.close()
    found = EmbeddingStore(tmp_path / "bags", COUNT)
    assert found.single
    assert torch.equal(found.vectors(torch.tensor([5, 0])), tokens[[5, 0], 0])


def test_writing_goes_on_where_it_was_saved(tmp_path):
    made, folder = bags(), tmp_path / "bags"
    writer = EmbeddingWriter(folder, "fp32")
    put(writer, made, [1, 5, 4])
    writer.save()
    put(writer, made, [3, 0, 6])  # lost: what is put after the last save does not count
    writer._files.close()
    again = EmbeddingWriter(folder, "fp32")
    assert again.manifest.batches == 1
    put(again, made, [3, 0, 6], [2])
    again.close()
    whole = tmp_path / "whole"
    stored(whole, made)
    for path in whole.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_unfinished_writing_is_not_read(tmp_path):
    writer = EmbeddingWriter(tmp_path / "bags", "fp32")
    put(writer, bags(), [1, 5, 4])
    writer.close()
    with pytest.raises(ValueError, match="holds 3 encodings, but 7 are needed"):
        EmbeddingStore(tmp_path / "bags", COUNT)


@pytest.mark.parametrize("name", ["tokens.f32", "items.i64", "mask.u8", "gram.f32"])
def test_files_that_lack_what_was_committed_are_not_appended_to(tmp_path, name):
    stored(tmp_path / "bags", bags())
    path = tmp_path / "bags" / name
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="is shorter than"):
        EmbeddingWriter(tmp_path / "bags", "fp32")
    path.unlink()
    with pytest.raises(ValueError, match="is shorter than"):
        EmbeddingWriter(tmp_path / "bags", "fp32")


def test_damaged_notes_are_refused(tmp_path):
    folder = tmp_path / "bags"
    stored(folder, bags())
    with pytest.raises(ValueError, match="was begun in fp32, not fp16"):
        EmbeddingWriter(folder, "fp16")
    items = folder / "items.i64"
    whole = items.read_bytes()
    items.write_bytes(whole[16:] + whole[16:32])
    with pytest.raises(ValueError, match="its checksum does not fit"):
        EmbeddingStore(folder, COUNT)
    resealed(folder)
    with pytest.raises(ValueError, match="does not hold every row once"):
        EmbeddingStore(folder, COUNT)
    items.write_bytes(whole[:8] + (9).to_bytes(8, "little") + whole[16:])
    resealed(folder)
    with pytest.raises(ValueError, match="its lengths do not fit"):
        EmbeddingStore(folder, COUNT)
    items.write_bytes(whole[:-16])
    note = json.loads((resealed(folder) / ENCODINGS.file).read_text())
    with pytest.raises(ValueError, match="has 96 bytes, but its manifest promises 112"):
        EmbeddingStore(folder, COUNT)
    (folder / ENCODINGS.file).write_text(json.dumps({**note, "items": -1}))
    with pytest.raises(ValueError, match="is damaged: items: input should be greater"):
        EmbeddingStore(folder, COUNT)
    (folder / ENCODINGS.file).unlink()
    with pytest.raises(ValueError, match="does not exist; the manifest of encodings"):
        EmbeddingStore(folder, COUNT)
