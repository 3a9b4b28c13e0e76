"""SigLIP 2: captions and pictures as its authors prepare them, whatever a release's files say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from PIL import Image
from torch.nn.functional import normalize

import hub_cases
from counterfoil import Model, load_model
from counterfoil.export.models import export_model

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
MERGES = ["d o", "do g", "▁ dog", "D o", "Do g", "▁ Dog", "s n", "▁ a", "▁ A"]
PIECES = [*"▁aAdDogsnw", *(merge.replace(" ", "") for merge in MERGES)]
IDS = {piece: place for place, piece in enumerate([*SPECIAL, *PIECES])}
HALF, LENGTH = [0.5, 0.5, 0.5], 64
# the keys of google/siglip2-base-patch16-224 and -naflex; both leave out pad_token_id and
# max_position_embeddings, for which transformers has SigLIP's 1 and 64
SQUARE = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}}
NAFLEX = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 4, "patch_size": 16}
PICTURES = {
    **{"do_normalize": True, "do_rescale": True, "do_resize": True, "do_convert_rgb": None},
    **{"image_mean": HALF, "image_std": HALF, "resample": 2, "rescale_factor": 1 / 255},
}


def checkpoint(folder: Path, kind: str) -> Path:
    """A small model with the configuration of a released one, and Gemma's special tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    small = sizes | {"num_hidden_layers": 1}
    text = small | {"vocab_size": 256_000, "projection_size": 8}
    vision = small | {"patch_size": 16}
    if kind == "siglip2":
        config = transformers.Siglip2Config(
            text_config=text, vision_config=vision | {"num_patches": 4}
        )
        transformers.Siglip2Model(config).save_pretrained(folder)
    else:
        vision |= {"image_size": 32}
        config = transformers.SiglipConfig(text_config=text, vision_config=vision)
        transformers.SiglipModel(config).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    assert written["model_type"] == kind
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "max_position_embeddings"):
        written["text_config"].pop(key, None)
    (folder / "config.json").write_text(json.dumps(written))
    hub_cases.processor(folder, **PICTURES, **(NAFLEX if kind == "siglip2" else SQUARE))
    merges = [tuple(merge.split()) for merge in MERGES]
    read = tokenizers.Tokenizer(tokenizers.models.BPE(IDS, merges, unk_token="<unk>"))
    read.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    read.post_processor = tokenizers.processors.TemplateProcessing(  # as some releases have it
        single="<bos> $A", special_tokens=[("<bos>", IDS["<bos>"])]
    )
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=read, **names)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["siglip", "siglip2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("hub") / request.param, request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


def test_captions_are_lower_case_with_a_lasting_end_and_no_beginning(model: Model) -> None:
    tokenizer = model.processor.tokenizer
    long = "A Dog " * LENGTH
    read = tokenizer.read(["A Dog", long])
    assert read.ids[0] == [IDS["a"], IDS["▁dog"], IDS["<eos>"]]
    assert (len(read.ids[1]), read.ids[1][-2:]) == (LENGTH, [IDS["▁a"], IDS["<eos>"]])
    assert read.words[0] == [0, 1, -1]
    text = "İA Dog"  # the first letter is two in lower case
    assert [text[a:b] for a, b in tokenizer.spans([text])[0]][-2:] == [" Dog", ""]


def test_captions_are_padded_to_64_with_0(model: Model) -> None:
    """Against the model of transformers, given the ids that the authors' code makes."""
    full = torch.zeros(1, LENGTH, dtype=torch.long)
    full[0, :3] = torch.tensor([IDS["a"], IDS["▁dog"], IDS["<eos>"]])
    with torch.no_grad():
        output = model.model.body.get_text_features(input_ids=full)
    expected = normalize(output.pooler_output[0], dim=0)
    found = torch.from_numpy(model.encode_texts("A DOG")[0])
    torch.testing.assert_close(found, expected)
    wrong = model.model.body.get_text_features(input_ids=full.masked_fill(full == 0, 1))
    assert not torch.allclose(normalize(wrong.pooler_output[0], dim=0), expected, atol=1e-2)


def test_pictures_are_resized_bilinearly(folder: Path, model: Model) -> None:
    """Against the processor that transformers makes of the same file."""
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    ours = model.processor.process_images([picture]).values[0]
    theirs = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    values = torch.as_tensor(theirs(picture, return_tensors="pt")["pixel_values"][0])
    if "siglip2" in folder.name:  # (patches, 16 · 16 · 3), channels last
        values = values.view(2, 2, 16, 16, 3).permute(4, 0, 2, 1, 3).reshape(3, 32, 32)
    torch.testing.assert_close(ours, values, rtol=0, atol=1e-6)


def test_what_is_saved_or_exported_reads_captions_alike(model: Model, tmp_path: Path) -> None:
    caption = "A Dog in SNOW"
    model.save_pretrained(tmp_path / "saved")
    saved = load_model(tmp_path / "saved")
    np.testing.assert_allclose(saved.encode_texts(caption), model.encode_texts(caption), atol=1e-6)
    assert saved.digest() == model.digest()
    if model.model._kind == "siglip2":
        return  # transformers alone does not know how ours squares pictures
    export_model(model.model, model.processor, "hf", tmp_path / "hf", name="mine")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = there(caption, truncation=True, max_length=LENGTH)["input_ids"]
    assert ids == model.processor.tokenizer.encode([caption])[0]
    assert json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())["resample"] == 2


def test_a_tokenizer_without_an_end_is_refused(folder: Path, tmp_path: Path) -> None:
    from counterfoil.data.tokenizers import WordPieceTokenizer

    fast = transformers.AutoTokenizer.from_pretrained(folder)
    fast.eos_token = None
    fast.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no end mark, with which SigLIP 2 was trained"):
        WordPieceTokenizer(str(tmp_path), siglip2=True)
