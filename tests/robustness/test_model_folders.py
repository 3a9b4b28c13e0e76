"""Hostile folders of every kind of model: opened without harm, or refused in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import folder_cases
from counterfoil.core.model_files import check_tokenizer
from counterfoil.model import load_model
from folder_cases import KINDS, name_of, watched

PICTURE = np.zeros((20, 24, 3), np.uint8)
DECOY = "def main(*words, **more):\n    open({mark!r}, 'a').close()\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return folder_cases.made(tmp_path_factory.mktemp("folders"))


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder that no model may reach; a module there can be imported."""
    with folder_cases.libraries(tmp_path):
        place = tmp_path / "outside"
        place.mkdir()
        (place / "decoy.py").write_text(DECOY.format(mark=str(tmp_path / "ran")))
        (place / "config.json").write_text("{}")
        monkeypatch.syspath_prepend(place)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.chdir(place)
        yield place


ASKED: list[object] = []


def refuse(*address: object, **_: object) -> None:
    ASKED.append(address)
    raise OSError("no network here")


def opened(kind: str, folder: Path, outside: Path) -> str:
    """Open and use a model; the refusal, or "". Nothing that is forbidden may happen."""
    ASKED.clear()
    refusal = ""
    with watched(outside) as found:
        try:
            load_model(name_of(kind, folder)).similarity(PICTURE, "a dog")
        except ValueError as error:
            refusal = str(error)
    assert found == []
    assert ASKED == []
    assert not (outside.parent / "ran").exists()
    assert "\n" not in refusal
    return refusal


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_opens_without_the_network(kind, folders, outside):
    assert opened(kind, folders[kind], outside) == ""


# Names in JSON.

Place = tuple[str, tuple[str | int, ...]]  # a file, and the keys of a string in it

HOSTILE = (
    "decoy.main",
    "torch.distributed.run.main",
    "torch.utils.collect_env.main",
    "os.system",
    "somebody/repo",
    "somebody/repo--decoy.main",
    "hf-hub:somebody/repo",
    "../outside",
    "OUTSIDE",  # its path
)


def strings(folder: Path) -> list[Place]:
    """Every string of every JSON file, but for the words of vocabularies and our own words."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        found += [(name, keys) for keys in _strings(json.loads(path.read_text()), ())]
    return found


def _strings(plain: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(plain, str):
        yield keys
    if isinstance(plain, dict | list):
        for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from _strings(value, (*keys, key))


def change(folder: Path, file: str, keys: tuple[str | int, ...], value: object) -> None:
    """Set a value in a JSON file; objects on the way are made."""
    path = folder / file
    plain = json.loads(path.read_text()) if path.exists() else {}
    place = plain
    for key in keys[:-1]:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(plain))


def copied(kind: str, folders: Mapping[str, Path], tmp_path: Path) -> Path:
    """A copy of a folder, whose absolute paths are the copy's."""
    folder = Path(shutil.copytree(folders[kind], tmp_path / "folder" / kind))
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace(str(folders[kind]), str(folder)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_string_of_a_folder_does_harm(kind, folders, outside, tmp_path):
    folder = copied(kind, folders, tmp_path)
    for place, (file, keys) in enumerate(strings(folder)):
        before = (folder / file).read_text()
        for value in HOSTILE[place % 3 :: 3]:  # all of them at every third place
            change(folder, file, keys, value.replace("OUTSIDE", str(outside)))
            opened(kind, folder, outside)
        (folder / file).write_text(before)


Change = tuple[str, str, tuple[str | int, ...], object]  # kind, file, keys, value
Refused = tuple[str, str, tuple[str | int, ...], object, str]  # and the sentence
ACTIVATION, LIBRARY = "allowed is an activation of torch.nn", "a module of sentence-transformers"
BERT, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"
ADAPTER, OPEN_CLIP = "adapter_config.json", "open_clip_config.json"
BASE, RUN = "base_model_name_or_path", "torch.utils.collect_env.main"
ELSEWHERE = "which is not in the folder; put it into the folder"
MERGE = "which is not in the folder; merge the adapter into its base"
NAMES: tuple[Refused, ...] = (
    ("cross-encoder", "config.json", ("sentence_transformers", "activation_fn"), RUN, ACTIVATION),
    ("cross-encoder", "config.json", ("sbert_ce_default_activation_function",), RUN, ACTIVATION),
    ("cross-encoder", SETTINGS, ("activation_fn",), "torch.distributed.run.main", ACTIVATION),
    ("cross-encoder", SETTINGS, ("activation_fn",), "torch.nn.Module", ACTIVATION),
    ("dense", "1_Dense/config.json", ("activation_function",), RUN, ACTIVATION),
    ("ours of dense", "encoder/1_Dense/config.json", ("activation_function",), RUN, ACTIVATION),
    ("clip", "config.json", ("text_config", "hidden_act"), "decoy.main", ACTIVATION),
    ("dense", "modules.json", (1, "type"), "decoy.Dense", LIBRARY),
    ("dense", "modules.json", (1, "type"), "sentence_transformers.util.fullname", LIBRARY),
    ("multi-vector", "router_config.json", ("types", "a"), "decoy.Dense", LIBRARY),
    ("dense", "modules.json", (1, "path"), "../outside", "folder outside of"),
    ("multi-vector", "modules.json", (1, "path"), "../../outside", ELSEWHERE),
    ("clip", "tokenizer_config.json", ("tokenizer_class",), "Trainer", "a tokenizer of transf"),
    ("timm", "tokenizer_config.json", ("tokenizer_class",), "decoy.main", "a tokenizer of transf"),
    ("blip", "preprocessor_config.json", ("image_processor_type",), "Trainer", "a processor of"),
    ("dense", "processor_config.json", ("processor_class",), "decoy.main", "a processor of"),
    ("clip", "config.json", ("architectures", 0), "decoy.main", "a class of transformers"),
    ("vilt", "config.json", ("model_type",), "somebody/repo", "a kind of model of transformers"),
    ("clip", "config.json", ("dtype",), "decoy.main", "a type of torch"),
    ("clip", "config.json", ("_attn_implementation",), "somebody/repo", "in transformers itself"),
    ("clip", "config.json", ("quantization_config", "quant_method"), "decoy", "bitsandbytes, gptq"),
    ("dense", BERT, ("model_args", "attn_implementation"), "somebody/repo", "transformers itself"),
    ("dense", BERT, ("model_args", "adapter_kwargs"), {"a": 0}, "would run code from elsewhere"),
    ("dense", BERT, ("modality_config", "image", "method"), "push_to_hub", "forward or get_image"),
    ("dense", BERT, ("tokenizer_name_or_path",), "somebody/repo", ELSEWHERE),
    ("dense", ADAPTER, (BASE,), "somebody/repo", MERGE),
    ("dense", ADAPTER, (BASE,), "../outside", MERGE),
    ("dense", ADAPTER, (BASE,), "OUTSIDE", MERGE),
    ("clip", ADAPTER, (BASE,), "somebody/repo", MERGE),
    ("adapter", ADAPTER, (BASE,), "somebody/repo", MERGE),
    ("adapter", ADAPTER, ("peft_type",), "XLORA", "allowed is LORA"),
    ("adapter", ADAPTER, ("megatron_config",), {"a": 0}, "would run code from elsewhere"),
    ("adapter", ADAPTER, ("auto_mapping",), {"parent_library": "decoy"}, "a module of transf"),
    ("open_clip", OPEN_CLIP, ("model_cfg", "text_cfg", "hf_model_name"), "somebody/r", ELSEWHERE),
    ("open_clip", OPEN_CLIP, ("model_cfg", "vision_cfg", "timm_model_name"), "hf-hub:a/b", "timm"),
    ("clip", "model.safetensors.index.json", ("weight_map", "a"), "../a", "no file beside it"),
)


@pytest.mark.parametrize("changed", NAMES, ids=lambda changed: " ".join(map(str, changed[:4])))
def test_a_name_that_is_on_no_list_is_refused(changed, folders, outside, tmp_path):
    kind, file, keys, value, sentence = changed
    folder = copied(kind, folders, tmp_path)
    change(folder, file, keys, str(outside) if value == "OUTSIDE" else value)
    assert sentence in opened(kind, folder, outside)


ALLOWED: tuple[Change, ...] = (
    ("cross-encoder", "config.json", ("sentence_transformers", "activation_fn"), "torch.nn.Tanh"),
    ("dense", "1_Dense/config.json", ("activation_function",), "torch.nn.modules.linear.Identity"),
    ("dense", "modules.json", (1, "type"), "sentence_transformers.models.Dense"),
    ("clip", "config.json", ("_name_or_path",), "openai/clip-vit-base-patch32"),
    ("clip", "tokenizer_config.json", ("name_or_path",), "openai/clip-vit-base-patch32"),
    ("clip", "tokenizer_config.json", ("special_tokens_map_file",), "OUTSIDE"),
    ("clip", "tokenizer_config.json", ("model_max_length",), 10**30),
    ("open_clip", OPEN_CLIP, ("model_cfg", "text_cfg", "hf_tokenizer_name"), "timm/ViT-SigLIP"),
)


@pytest.mark.parametrize("changed", ALLOWED, ids=lambda changed: " ".join(map(str, changed[:4])))
def test_what_public_folders_hold_opens(changed, folders, outside, tmp_path):
    kind, file, keys, value = changed
    folder = copied(kind, folders, tmp_path)
    change(folder, file, keys, str(outside) if value == "OUTSIDE" else value)
    assert opened(kind, folder, outside) == ""


# Numbers.

PICTURES, PROCESSOR = "preprocessor_config.json", "processor_config.json"
SIZES: tuple[Refused, ...] = (
    ("vilt", PICTURES, ("size", "shortest_edge"), None, "only square ones can be given"),
    ("vilt", PICTURES, ("size", "shortest_edge"), 100_000, "at most 8,192"),
    ("vilt", PICTURES, ("size", "shortest_edge"), "x", "only square ones can be given"),
    ("vilt", PICTURES, ("image_mean", 1), None, "gives image_mean [0.5, None, 0.5]; three"),
    ("blip", PICTURES, ("image_std",), [0.5, 0, 0.5], "no std of 0"),
    ("blip", PICTURES, ("size",), {"height": [1], "width": [1]}, "only square ones can be given"),
    ("clip", PICTURES, ("size", "height"), 0.5, "only square ones can be given"),
    ("clip", PICTURES, ("size",), {"height": -1, "width": -1}, "only square ones can be given"),
    ("siglip", PICTURES, ("size",), {"height": 100_000, "width": 100_000}, "at most 8,192"),
    ("clip", "config.json", ("vision_config", "image_size"), 100_000, "at most 8,192"),
    ("clip", "config.json", ("text_config", "vocab_size"), 10**9, "at most 16,777,216"),
    ("blip", "config.json", ("vision_config", "num_hidden_layers"), 10**6, "at most 1,000"),
    ("vilt", "config.json", ("hidden_size",), 10**9, "at most 16,777,216"),
    ("open_clip", OPEN_CLIP, ("model_cfg", "vision_cfg", "image_size"), 10**5, "at most 8,192"),
    ("open_clip", OPEN_CLIP, ("model_cfg", "vision_cfg", "layers"), 10**6, "at most 1,000"),
    ("open_clip", OPEN_CLIP, ("model_cfg", "embed_dim"), None, "gives embed_dim None; a whole"),
    ("open_clip", OPEN_CLIP, ("model_cfg", "vision_cfg", "image_size"), [None], "image_size [None"),
    ("open_clip", OPEN_CLIP, ("preprocess_cfg", "mean", 0), None, "three numbers are needed"),
    ("timm", "config.json", ("num_hidden_layers",), 10**6, "at most 1,000"),
    ("dense", PROCESSOR, ("image_processor", "size", "height"), 100_000, "at most 8,192"),
    ("adapter", ADAPTER, ("r",), 10**9, "at most 16,777,216"),
)


@pytest.mark.parametrize("changed", SIZES, ids=lambda changed: " ".join(map(str, changed[:4])))
def test_numbers_are_bounded(changed, folders, outside, tmp_path):
    kind, file, keys, value, sentence = changed
    folder = copied(kind, folders, tmp_path)
    change(folder, file, keys, value)
    assert sentence in opened(kind, folder, outside)


# Files that are none.


def fifo(path: Path) -> None:
    os.mkfifo(path)


FILES: tuple[tuple[str, str, Any, str], ...] = (
    ("dense", "1_Dense/model.safetensors", fifo, "no regular file"),
    ("dense", "1_Dense/config.json", fifo, "no regular file"),
    ("cross-encoder", "chat_template.jinja", fifo, "no regular file"),
    ("multi-vector", "model.safetensors", fifo, "no regular file"),
    ("clip", "model.safetensors", fifo, "no regular file"),
    ("clip", "special_tokens_map.json", fifo, "no regular file"),
    ("vilt", "preprocessor_config.json", fifo, "no regular file"),
    ("blip", "added_tokens.json", fifo, "no regular file"),
    ("timm", "vocab.txt", fifo, "no regular file"),
    ("open_clip", "open_clip_model.safetensors", fifo, "no regular file"),
    ("adapter", "base/model.safetensors", fifo, "no regular file"),
    ("ours", "processor.json", fifo, "no regular file"),
    ("ours of clip", "pieces/tokenizer.json", fifo, "no regular file"),
    ("clip", "a/b/c", lambda path: path.symlink_to("/dev/zero"), "link out of the model's folder"),
    ("clip", "chat_template.jinja", lambda p: p.symlink_to("/etc/passwd"), "a link out of the mod"),
    ("dense", "2_Normalize/a", lambda path: path.symlink_to("nowhere"), "a link to nothing"),
    ("ours", "a", lambda path: path.symlink_to("a"), "a link to nothing"),
    ("blip", "a", lambda path: path.symlink_to("../.."), "link out of the model's folder"),
)


@pytest.mark.parametrize(
    "kind,file,make,sentence", FILES, ids=[f"{kind} {file}" for kind, file, *_ in FILES]
)
def test_special_files_are_refused(kind, file, make, sentence, folders, outside, tmp_path):
    path = copied(kind, folders, tmp_path) / file
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    refusal = opened(kind, tmp_path / "folder" / kind, outside)
    assert sentence in refusal
    assert str(path) in refusal


@pytest.mark.parametrize("kind", ["clip", "dense"])
def test_the_hubs_cache_of_links_opens(kind, folders, outside, tmp_path):
    cache, source = tmp_path / "models--user--model", folders[kind]
    (cache / "blobs").mkdir(parents=True)
    for number, path in enumerate(path for path in source.rglob("*") if path.is_file()):
        place = cache / "snapshots" / "0" / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, cache / "blobs" / str(number))
        place.symlink_to(os.path.relpath(cache / "blobs" / str(number), place.parent))
    assert opened(kind, cache / "snapshots" / "0", outside) == ""


def test_links_inside_of_a_folder_open(folders, outside, tmp_path):
    folder = copied("clip", folders, tmp_path)
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    assert opened("clip", folder, outside) == ""


# Tokenizers.

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
LEVELS = {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 30}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
PIECE, WHOLE = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "pair": [PIECE, WHOLE], "special_tokens": {}}
GROWING = "characters of one; 256 are the limit"
BOMBS: dict[str, tuple[dict[str, Any], str]] = {
    "six rules": ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 6}}, GROWING),
    "nested": (
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Sequence", "normalizers": [REPLACE] * 3}] * 2,
            }
        },
        GROWING,
    ),
    "one long rule": ({"normalizer": REPLACE | {"content": "a" * 10**6}}, GROWING),
    "a pattern of nothing": (
        {"normalizer": REPLACE | {"pattern": {"Regex": ""}, "content": "a" * 999}}, GROWING,
    ),
    "a long beginning": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, GROWING),
    "bytes of bytes": ({"normalizer": LEVELS}, GROWING),
    "bytes before words": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 30}}, GROWING,
    ),
    "a text many times": (
        {"post_processor": TEMPLATE | {"single": [PIECE] * 10**4}}, "longer texts of captions",
    ),
    "a mark that nobody knows": (
        {
            "post_processor": TEMPLATE
            | {"single": [{"SpecialToken": {"id": "x", "type_id": 0}}, PIECE]}
        },
        "puts 'x' around texts",
    ),
    "endless padding": (
        {
            "padding": {
                "strategy": {"Fixed": 10**9},
                **{"direction": "Right", "pad_to_multiple_of": None},
                **{"pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
            }
        },
        "longer texts of captions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("kind", ["clip", "dense", "ours of clip"])
def test_tokenizers_are_bounded(bomb, kind, folders, outside, tmp_path):
    folder = copied(kind, folders, tmp_path)
    changes, sentence = BOMBS[bomb]
    file = "pieces/tokenizer.json" if kind == "ours of clip" else "tokenizer.json"
    for key, value in changes.items():
        change(folder, file, (key,), value)
    assert sentence in opened(kind, folder, outside)


@pytest.mark.parametrize(
    "rules",
    [
        [{"type": "NFC"}, REPLACE | {"pattern": {"Regex": r"\s+"}, "content": " "}],  # CLIP
        [{"type": "Prepend", "prepend": "▁"}, REPLACE | {"content": "▁"}],  # Llama
        [REPLACE | {"pattern": {"Regex": str(n)}, "content": "-"} for n in range(4)],  # ALBERT
    ],
)
def test_rules_of_public_tokenizers_are_known(rules):
    check_tokenizer({"normalizer": {"type": "Sequence", "normalizers": rules}}, "here")
