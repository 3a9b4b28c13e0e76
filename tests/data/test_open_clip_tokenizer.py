from __future__ import annotations

import json
import sys
import types

import pytest

import recipes_cases
import vision_cases
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import (
    OpenClipTokenizer,
    WordPieceTokenizer,
    load_open_clip_tokenizer,
    open_tokenizer,
)


@pytest.fixture(autouse=True)
def stand_in(tmp_path, monkeypatch):
    fixed = types.SimpleNamespace(fix_text=lambda text: text.replace("~", "a"))
    monkeypatch.setitem(sys.modules, "open_clip", vision_cases.open_clip(tmp_path))
    monkeypatch.setitem(sys.modules, "ftfy", fixed)


def test_pieces_know_their_words():
    found = OpenClipTokenizer(clean="lower", longest=7).read(["A dog", "bad eggs and more"])
    assert found.ids[0] == [38, 19, 4, 15, 25, 39]
    assert found.words == [[-1, 0, 1, 1, 1, -1], [-1, 0, 0, 0, 1, 1, -1]]
    assert len(found.ids[1]) == 7
    assert OpenClipTokenizer(clean="lower").tokens([38, 4, 25]) == ["<start>", "d", "g</w>"]


@pytest.mark.parametrize(
    "clean, text, same",
    [
        ("whitespace", "  ~  dog &amp;amp; snow ", "a dog & snow"),
        ("lower", "A Dog", "a dog"),
        ("canonicalize", "A big_Dog, (in) the-snow!", "a big dog in thesnow"),
    ],
)
def test_captions_are_cleaned_first(clean, text, same, tmp_path):
    folder = str(recipes_cases.clip_like(tmp_path / "siglip", "siglip"))
    pieces = WordPieceTokenizer(folder, longest=12)
    words = OpenClipTokenizer(clean=clean, longest=12, pieces=pieces)
    assert words.encode([text]) == pieces.encode([same])
    assert words.pad == pieces.pad == 1
    assert words.divides


def test_the_end_may_be_left_out(tmp_path):
    folder = recipes_cases.clip_like(tmp_path / "siglip", "siglip")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"sep_token": "</s>"}))
    pieces = WordPieceTokenizer(str(folder), longest=12)
    found = OpenClipTokenizer(clean="lower", longest=12, pieces=pieces, ends=False).encode(
        ["a dog"]
    )
    assert pieces.encode(["a dog"])[0][-1] == 39
    assert found == [[*pieces.encode(["a dog"])[0][:-1], 0]]


@pytest.mark.parametrize("public", [False, True])
def test_saved_and_opened(public, tmp_path):
    folder = str(recipes_cases.clip_like(tmp_path / "siglip", "siglip"))
    pieces = WordPieceTokenizer(folder, longest=9) if public else None
    words = OpenClipTokenizer(clean="canonicalize", longest=9, pieces=pieces)
    Processor(PixelProcessor(4), words).save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert again.digest == words.digest
    assert again.encode(["A dog!"]) == words.encode(["A dog!"])
    found = Processor.open(tmp_path).tokenizer
    assert isinstance(found, OpenClipTokenizer)
    assert found.digest != OpenClipTokenizer(clean="lower", longest=9, pieces=pieces).digest


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'upper' is not a cleaning of open_clip"):
        OpenClipTokenizer(clean="upper")
    with pytest.raises(ValueError, match="'open_clip:ViT-X' is no model of open_clip"):
        load_open_clip_tokenizer("open_clip:ViT-X")
    folder = vision_cases.clip_folder(tmp_path / "clip")
    plain = json.loads((folder / "open_clip_config.json").read_text())
    plain["model_cfg"]["text_cfg"] |= {"tokenizer_mode": "clips"}
    (folder / "open_clip_config.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="reads captions with tokenizer_mode, which is not known"):
        load_open_clip_tokenizer(f"open_clip:local-dir:{folder}")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"kind": "open_clip"}))
    with pytest.raises(ValueError, match="is not a tokenizer that counterfoil wrote"):
        open_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ValueError, match=r'pip install "counterfoil\[vision\]"'):
        load_open_clip_tokenizer("open_clip:ViT-T-8")
