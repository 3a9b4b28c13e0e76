"""Checks of a model folder, made before any library reads it: a folder may be untrusted.

Libraries import and call what a file of a folder names, fetch what it refers to, and wait at a pipe
for a writer. `check_model_folder` looks at every file of a folder once; what decides about code is
compared with lists of what may be named.
"""

from __future__ import annotations

import base64
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from counterfoil.core.io import read_json

Keys: TypeAlias = tuple[str, ...]  # of the objects around a value, outermost first

LAYERS = 1000  # of a model
SIDE = 8192  # of a picture that a processor makes, in pixels
PIXELS = 2**26  # of a picture
SIZE = 2**24  # of a layer, a vocabulary or a text
GROWTH = 256  # characters that the rules of a tokenizer may make of one
PIECES = 64  # of the template around a text
OWN = ("model.json", "processor.json", "evaluations.json")  # with lists of their own, or only data


def check_model_folder(folder: Path, *, fetches: bool = False) -> None:
    """Refuse a folder that makes a library run code, leave the folder, hang or fill the memory.

    Args:
        folder: of a model, its parts and its tokenizer.
        fetches: the model is one of the hub, whose files may name others of the hub.

    Raises:
        ValueError: a file is no regular one, or names what it may not.
    """
    files = tuple(
        (path, path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(_files(folder))
        if path.suffix == ".json" and path.name not in OWN
    )
    _check_json(folder, files, fetches=fetches)


def check_settings(
    plain: object, where: object, folder: Path | None = None, *, fetches: bool = False
) -> None:
    """Refuse settings of a library's model, as `check_model_folder` does.

    Args:
        plain: parsed JSON.
        where: where it is from, for the error.
        folder: inside which files may be named; None for settings without a folder.
        fetches: other places may be named, as by a model of the hub.
    """
    for keys, value in _leaves(plain):
        if isinstance(value, str):
            _check_name(keys, value, where)
            if not fetches and _is_elsewhere(keys, value, folder):
                raise ValueError(
                    f"{where} asks for {value!r} as {keys[-1]}, which is not in the folder; "
                    f"{_REMEDIES.get(keys[-1], _COPY)}"
                )
        if keys[-1] in _SWITCHES and value:
            raise ValueError(
                f"{where} sets {keys[-1]}={value!r}, which would run code from elsewhere; the "
                "model is refused"
            )
        for key, number in _numbers(keys, value):
            if not number <= (most := _limit(key)):  # NaN, too
                raise ValueError(f"{where} sets {key} to {number!r}; at most {most:,} is possible")


def _check_name(keys: Keys, value: str, where: object) -> None:
    """Refuse a name of code that is not on the list of its kind."""
    for applies, known, allowed in _RULES:
        if applies(keys) and not known.fullmatch(value):
            raise ValueError(
                f"{where} names {value!r} as {keys[-1]}; allowed is {allowed}, and the model is "
                "refused"
            )


# Files.


def _files(folder: Path) -> Iterator[Path]:
    """The regular files in a folder, at any depth; anything else but folders is refused."""
    inside = [root for root in (folder.resolve(), _blobs(folder.resolve())) if root]
    waiting = [folder]
    while waiting:
        for path in waiting.pop().iterdir():
            linked = path.is_symlink()
            try:
                mode = path.stat().st_mode
                target = path.resolve(strict=True)
            except (OSError, RuntimeError):
                raise ValueError(f"{path} is a link to nothing; remove it") from None
            if linked and not any(target.is_relative_to(root) for root in inside):
                raise ValueError(
                    f"{path} is a link out of the model's folder, to {target}; put the file there "
                    "in its place"
                )
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise ValueError(
                    f"{path} is no regular file, and reading it might never end; remove it"
                )
            elif not linked:  # what is inside of a linked folder is seen where it lies
                waiting.append(path)


def _blobs(folder: Path) -> Path | None:
    """The folder into which the hub's cache links; None for a folder outside of the cache."""
    place = next((place for place in folder.parents if place.name == "snapshots"), None)
    return place and place.parent / "blobs"


@lru_cache(maxsize=64)  # a folder is asked about by each library that reads it
def _check_json(folder: Path, files: tuple[tuple[Path, int, int], ...], *, fetches: bool) -> None:
    for path, _, _ in files:
        plain = read_json(path, "settings of a model")
        if isinstance(plain, dict):
            check_tokenizer(plain, path)
            _check_shards(plain.get("weight_map"), path)
        if path.name == "tokenizer.json":
            continue  # large, and all of its names are kinds of rules
        if path.name == "modules.json":
            plain = {"modules": plain}
        check_settings(plain, path, folder, fetches=fetches)


def _check_shards(shards: object, path: Path) -> None:
    """Refuse an index of weights that names other files than those beside it."""
    for name in shards.values() if isinstance(shards, dict) else ():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{path} names {name!r}, which is no file beside it")


# What may be named.


_ACTIVATIONS = (
    "Identity|Sigmoid|Tanh|ReLU|ReLU6|LeakyReLU|PReLU|RReLU|ELU|CELU|SELU|GELU|SiLU|Mish|GLU|"
    "Hardsigmoid|Hardswish|Hardtanh|Hardshrink|Softshrink|Tanhshrink|LogSigmoid|Softplus|"
    "Softsign|Softmax|LogSoftmax|Softmin"
)
_ACTIVATION = re.compile(r"\w*|torch\.nn\.(modules\.(activation|linear)\.)?(" + _ACTIVATIONS + ")")
_MODULES = (
    "Asym|BoW|CLIPModel|CNN|Dense|Dropout|LayerNorm|LogitScore|LSTM|MLMTransformer|"
    "MultiVectorMask|Normalize|Pooling|Router|SparseAutoEncoder|SparseStaticEmbedding|"
    "SpladePooling|StaticEmbedding|TokenPooling|Transformer|WeightedLayerPooling|"
    "WordEmbeddings|WordWeights"
)
_FAMILIES = "base|sentence_transformer|cross_encoder|multi_vector_encoder|sparse_encoder"
_MODULE = re.compile(
    rf"sentence_transformers\.(models|({_FAMILIES})\.(modules|models))(\.\w+)?\."
    rf"({_MODULES})|pylate\.models\.Dense\.Dense"
)
_PLAIN, _NAME = re.compile(r"\w*"), re.compile(r"[\w.-]*")
_TYPE = re.compile(r"(torch\.)?(auto|bfloat16|float(16|32|64)|float8_\w+|u?int\d+|bool)?")
_TOKENIZER = re.compile(r"(\w*Tokenizer\w*|\w+Backend)?")
_PROCESSOR = re.compile(r"(\w*(Processor|FeatureExtractor)(Fast|Pil)?)?")
_METHOD = re.compile(r"forward|get_(text|image|vision|audio|video|multimodal)_\w+")

_Rule: TypeAlias = tuple[Callable[[Keys], bool], re.Pattern[str], str]


def _last(*names: str) -> Callable[[Keys], bool]:
    return lambda keys: keys[-1] in names


def _below(*names: str) -> Callable[[Keys], bool]:
    return lambda keys: not set(names).isdisjoint(keys)


_RULES: tuple[_Rule, ...] = (
    (
        lambda keys: re.search(r"activation|(^|_)act(_fn|_layer)?$", keys[-1]) is not None,
        _ACTIVATION,
        "an activation of torch.nn",
    ),
    (
        lambda keys: keys == ("modules", "type") or "types" in keys,
        _MODULE,
        "a module of sentence-transformers",
    ),
    (
        _last("tokenizer_class", "slow_tokenizer_class", "fast_tokenizer_class"),
        _TOKENIZER,
        "a tokenizer of transformers",
    ),
    (
        _last(
            *("processor_class", "image_processor_type", "image_processor_class"),
            *("feature_extractor_type", "feature_extractor_class", "video_processor_type"),
        ),
        _PROCESSOR,
        "a processor of transformers",
    ),
    (_last("architectures", "base_model_class"), _PLAIN, "a class of transformers"),
    (_last("model_type", "text_model_type"), _NAME, "a kind of model of transformers"),
    (_last("dtype", "torch_dtype"), _TYPE, "a type of torch"),
    (
        _below("attn_implementation", "_attn_implementation", "experts_implementation"),
        _PLAIN,
        "an implementation in transformers itself",
    ),
    (
        lambda keys: "modality_config" in keys and keys[-1] == "method",
        _METHOD,
        "forward or get_image_features",
    ),
    (
        _last("quant_method"),
        re.compile("bitsandbytes|gptq|awq|compressed-tensors"),
        "bitsandbytes, gptq, awq or compressed-tensors",
    ),
    (_last("peft_type"), re.compile("LORA"), "LORA"),
    (_last("megatron_core"), re.compile(r"megatron\.core"), "megatron.core"),
    (
        _last("parent_library"),
        re.compile(r"transformers(\.models\.\w+\.modeling_\w+)?"),
        "a module of transformers",
    ),
    (_last("architecture", "backbone", "timm_model_name"), _NAME, "a name of timm"),
)

# what makes a library run or fetch something, whatever its value
_SWITCHES = (
    *("allow_all_kernels", "use_kernels", "kernel_config", "trust_remote_code"),
    *("megatron_config", "checkpoint_path", "gguf_file", "adapter_kwargs"),
)


def _leaves(plain: object, keys: Keys = ()) -> Iterator[tuple[Keys, object]]:
    """Every value of nested objects and lists, with the keys above it."""
    if keys:
        yield keys, plain
    if isinstance(plain, Mapping):
        for key, value in plain.items():
            yield from _leaves(value, (*keys, str(key)))
    elif isinstance(plain, list):
        for value in plain:
            yield from _leaves(value, keys)


# Other places that a file refers to.


# what libraries write for people and never read, and open_clip's, for which the folder is read
_UNREAD = ("name_or_path", "_name_or_path", "special_tokens_map_file", "hf_tokenizer_name")
_REMEDIES = {
    "base_model_name_or_path": "merge the adapter into its base (merge_and_unload of peft) and "
    "save the whole model"
}
_COPY = "put it into the folder, and its full path into this file"


def _is_elsewhere(keys: Keys, value: str, folder: Path | None) -> bool:
    """True for what a library would read outside of the folder, or fetch from the hub."""
    key = keys[-1]
    if key in _UNREAD or not value:
        return False
    place = Path(value)
    inside = folder is not None and (folder / value).resolve().is_relative_to(folder.resolve())
    if key.endswith("_name_or_path") or key in ("hf_model_name", "tokenizer_name"):
        # libraries look for a relative path in the folder of the process, and then on the hub
        return not (place.is_absolute() and inside and place.exists())
    if keys == ("modules", "path"):
        return not inside
    return key.endswith("_file") and not inside and place.exists()


# Numbers.


_SIDES = re.compile(r"(image|img|input|crop|resize|patch)_size|size|height|width|shortest_edge")
_PIXELS = re.compile(r"(min|max)_pixels|longest_edge")
_DEPTHS = re.compile(r"(\w+_)?(layers?|depths?)")
_SIZES = re.compile(
    r"\w+_(size|dim|width|channels|heads|embeddings|experts|patches|divisor)s?|"
    r"dim|heads|d_model|n_embd|n_positions|r|context_length"
)


def _numbers(keys: Keys, value: object) -> Iterator[tuple[str, float]]:
    """The numbers at a place that are limited, each with its key."""
    if isinstance(value, int | float) and keys[-1] not in ("shortest_edge", "longest_edge"):
        yield keys[-1], value
    if isinstance(value, Mapping):
        edges = [(key, value[key]) for key in ("shortest_edge", "longest_edge") if key in value]
        if len(edges) == 2:  # numbers of pixels in the models of Qwen
            edges = [("max_pixels", number) for _, number in edges]
        yield from ((key, number) for key, number in edges if isinstance(number, int | float))


def _limit(key: str) -> float:
    """The largest number that may stand at a key."""
    limits = ((_SIDES, SIDE), (_DEPTHS, LAYERS), (_SIZES, SIZE), (_PIXELS, PIXELS))
    return next((most for names, most in limits if names.fullmatch(key)), math.inf)


# Tokenizers.


def check_tokenizer(plain: Mapping[str, Any], where: object) -> None:
    """Refuse a tokenizer of Hugging Face whose rules make long texts of short ones.

    Raises:
        ValueError: a character may become more than `GROWTH` ones, or a text several.
    """
    grown = _growth(plain.get("normalizer")) * _growth(plain.get("pre_tokenizer"))
    if grown > GROWTH:
        raise ValueError(
            f"{where} has rules that make up to {grown:,} characters of one; {GROWTH:,} are the "
            "limit, and the tokenizer is refused"
        )
    for rule in _processors(plain.get("post_processor")):
        known = rule.get("special_tokens")
        for keys, value in _leaves({side: rule.get(side) for side in ("single", "pair")}):
            if keys[1:] == ("SpecialToken", "id") and not (
                isinstance(known, dict) and value in known
            ):
                raise ValueError(f"{where} puts {value!r} around texts and does not say what it is")
    for keys, value in _leaves({key: plain.get(key) for key in _OUTPUTS}):
        large = isinstance(value, int) and value > SIZE
        if large or (isinstance(value, list) and len(value) > PIECES and keys[-1] != "tokens"):
            raise ValueError(
                f"{where} makes longer texts of captions ({keys[-1]} of its {keys[0]}) than any "
                "model reads; the tokenizer is refused"
            )


def _processors(rule: Any) -> Iterator[Mapping[str, Any]]:
    """The rules that write what stands around a text."""
    if isinstance(rule, dict):
        yield rule
        inner = rule.get("processors")
        for one in inner if isinstance(inner, list) else ():
            yield from _processors(one)


_OUTPUTS = ("post_processor", "padding", "truncation")


def _growth(rule: Any) -> int:
    """How many characters a rule of a tokenizer makes of one, at most."""
    match rule:
        case {"normalizers": list(rules)} | {"pretokenizers": list(rules)}:
            return math.prod(map(_growth, rules))
        case {"type": "Replace", "pattern": {"String": str(given)}, "content": str(content)}:
            return max(1, -(-len(content) // max(len(given), 1)))
        case {"type": "Replace", "content": str(content)}:
            return 1 + len(content)
        case {"type": "Prepend", "prepend": str(start)}:
            return 1 + len(start)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_replacement(table)
        case {"type": "ByteLevel" | "Metaspace" | "BertNormalizer"}:
            return 2
    return 1


def _longest_replacement(table: str) -> int:
    """Of a table of sentencepiece: a trie behind its size, and then the replacements."""
    try:
        content = base64.b64decode(table)
        skipped = 4 + int.from_bytes(content[:4], "little")
        return max(len(part.decode()) for part in content[skipped:].split(b"\0"))
    except ValueError:  # it is damaged, which the library says
        return 1
