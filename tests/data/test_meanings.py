from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import sentence_cases
from counterfoil.negatives.similarity import SentenceEncoder

TEXTS = ["A dog runs .", "a red dog runs", "dog", "a dog runs ."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("sentence_transformers")
    words = ["a", "dog", "runs", "red", "."]
    return sentence_cases.encoder(tmp_path_factory.mktemp("encoder"), words)


def test_vectors_are_those_of_the_model(folder: str) -> None:
    import transformers

    found = SentenceEncoder(folder).vectors(TEXTS)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    read = transformers.AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            tokens = read(text.lower(), return_tensors="pt", return_token_type_ids=False)
            mean = model(**tokens).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=1e-4)
    assert found.dtype == torch.float32
    assert float(found[0] @ found[3]) == pytest.approx(1, abs=1e-6)
    assert float(found[0] @ found[2]) < 0.999


def test_nothing_has_no_vectors(folder: str) -> None:
    assert SentenceEncoder(folder).vectors([]).shape[0] == 0


def test_what_is_no_encoder_is_said(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no modules\.json, so it is no model of sentence-t"):
        SentenceEncoder(str(tmp_path))
    strange = json.loads((Path(folder) / "modules.json").read_text())
    strange[1]["type"] = "mine.Pooling"
    sentence_cases.write(tmp_path, "modules.json", strange)
    with pytest.raises(ValueError, match=r"names the class 'mine\.Pooling', which is not of"):
        SentenceEncoder(str(tmp_path))
    sentence_cases.write(tmp_path, "modules.json", strange[:1])
    with pytest.raises(ValueError, match="is no sentence encoder that can be read"):
        SentenceEncoder(str(tmp_path))


def test_the_library_has_to_be_there(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match="pip install sentence-transformers"):
        SentenceEncoder(folder)
