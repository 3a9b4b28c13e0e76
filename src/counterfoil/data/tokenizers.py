"""Tokenizers: word vocabularies, Hugging Face's and open_clip's.

`split_words` lower-cases and splits at blanks, punctuation and English clitics, as
``nltk.word_tokenize(caption.lower())`` does but without downloads: the two agree on 99.9 % of
222,177 captions of Flickr30k and COCO.

>>> split_words("A man's dog doesn't run.")
['a', 'man', "'s", 'dog', 'does', "n't", 'run', '.']
"""

from __future__ import annotations

import copy
import hashlib
import html
import json
import pickle
import re
import string
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_choice
from counterfoil.core.io import check_file, read_json, write_json
from counterfoil.core.optional import first_line, hub_options, optional_import
from counterfoil.core.types import ModalityBatch

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"
SPECIAL = (PAD, START, END, UNKNOWN)

# Chinese and Japanese, which have no blanks between words: each character is a word here
_CHARACTERS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(
    r"""[CHARACTERS] | <unk> | `` | '' | \.{2,} | --+
    | \d+(?:[.,:/]\d+)+                                  # 3.5  1,000  10:30
    | (?:[^\W\d]\.)+(?=\s+\S)                           # initials before another word: u.s.
    | (?:mrs?|dr|st|jr|sr|vs|ft|dept|corp|inc)\.(?=\s+\S)
    | can(?=not\b) | gon(?=na\b) | got(?=ta\b) | gim(?=me\b) | lem(?=me\b) | wan(?=na\b)
    | \w+?(?=n't\b) | n't\b | '(?:s|re|ve|ll|d|m)\b
    | \w+(?:(?:[-./]|'(?!(?:s|re|ve|ll|d|m)\b))\w+)*
    | [^\w\s]""".replace("\\w+", "[^\\WCHARACTERS]+").replace("CHARACTERS", _CHARACTERS),
    re.VERBOSE,
)
_UNUSED = re.compile(r"\[unused\d+\]")
_OPENING = re.compile(r"(^|[\s(\[{<])\"")


def split_words(text: str) -> list[str]:
    """Lower-cased words and punctuation marks of a caption, and Chinese and Japanese characters.

    >>> split_words("A dog runs."), split_words("iPhoneを持つ人")
    (['a', 'dog', 'runs', '.'], ['iphone', 'を', '持', 'つ', '人'])
    """
    text = text.lower()
    if '"' in text:
        text = _OPENING.sub(r"\1`` ", text).replace('"', " '' ")
    return _WORD.findall(text)


# Thai, Lao, Burmese and Khmer are written without blanks between words, which span characters.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{6,}")
MANY_UNKNOWN = 0.2  # share of unknown words that is worth a warning
SUBWORDS = (
    "use a model that reads pieces of words of this language, such as a multilingual CLIP "
    "(`open_clip:` or a model of sentence-transformers), or put blanks between the words"
)


def without_blanks(texts: Iterable[str]) -> int:
    """Number of captions in scripts that have no blanks between words: each is one word, or two.

    >>> without_blanks(["สุนัขวิ่งบนหิมะ", "一只狗在雪地里奔跑", "a dog in the snow"])
    1
    """
    return sum(_UNSPACED.search(text) is not None for text in texts)


def word_spans(text: str) -> list[tuple[int, int]]:
    """First character of each word of `split` in the caption, and the one after its last.

    >>> text = 'A "big" dog.'
    >>> [text[start:stop] for start, stop in word_spans(text)]
    ['A', '"', 'big', '"', 'dog', '.']
    """
    low = text.lower()
    back = _places_before_lower(text)
    spans, at = [], 0
    for word in split_words(text):
        while low[at].isspace():
            at += 1
        stop = at + 1 if low[at] == '"' else at + len(word)  # split_words has `` and '' for "
        spans.append((back[at], back[stop - 1] + 1))
        at = stop
    return spans


def _places_before_lower(text: str) -> list[int]:
    """The place in a text of each character of its lower-cased form, which may be longer."""
    return [place for place, sign in enumerate(text) for _ in sign.lower()]


@final
@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of each text.

    `words` has the index of the word that each token is a piece of, -1 for special tokens; it is
    None if every token is a word. `truncated` is the number of texts that were truncated.
    """

    ids: list[list[int]]
    words: list[list[int]] | None = None
    truncated: int = 0


class Tokenizer(ABC):
    """Converts captions to token ids; saved with the model.

    Attributes:
        size: of the vocabulary.
        pad: id of padding.
        mask: id of the mask token; None if there is none.
        divides: whether words may be split into pieces, with `TokenIds.words`.
        wordless: ids of special and unused tokens.
        unknown: id of all words without one of their own; None if there are none.
    """

    size: int
    pad: int = 0
    mask: int | None = None
    divides: bool = False
    wordless: tuple[int, ...] = ()
    unknown: int | None = None

    @property
    def title(self) -> str:
        """Which tokenizer it is, in words."""
        return f"{type(self).__name__} of {self.size:,} tokens"

    @abstractmethod
    def read(self, texts: Sequence[str]) -> TokenIds:
        """Ids of each text with special tokens, never empty, and the words they belong to."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with special tokens; never empty."""
        return self.read(texts).ids

    def count_unknown(self, texts: Sequence[str]) -> tuple[int, int]:
        """Number of unknown words, or pieces, of texts, and of all."""
        if self.unknown is None or not texts:
            return 0, 0
        special = {*self.wordless} - {self.unknown}
        ids = [i for row in self.encode(texts) for i in row if i not in special]
        return ids.count(self.unknown), len(ids)

    @abstractmethod
    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Strings of token ids."""

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """First character of each token of each text and the one after its last.

        Both are 0 for special tokens.

        Raises:
            ValueError: this tokenizer has no offsets.
        """
        raise ValueError("this tokenizer has no offsets of its tokens")

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that `open_tokenizer` reads."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Sixteen hex digits, the hash of everything that ids depend on."""


@final
class WordTokenizer(Tokenizer):
    """A word vocabulary; captions become ``<start> word ... <end>``.

    Args:
        words: by id; among them ``<pad> <start> <end> <unk>``, in any place.
        longest: captions are truncated to this many words.

    Raises:
        ValueError: one of the four is missing, or a word occurs twice.
    """

    def __init__(self, words: Sequence[str], *, longest: int = 60) -> None:
        self.words, self.longest, self.size = list(words), longest, len(words)
        self._ids = {word: place for place, word in enumerate(self.words)}
        if missing := [word for word in SPECIAL if word not in self._ids]:
            raise ValueError(
                f"a vocabulary holds {' '.join(SPECIAL)} and words; this one, which begins with "
                f"{' '.join(self.words[:4])!r}, has no {missing[0]}"
            )
        self.wordless = tuple(sorted(self._ids[word] for word in SPECIAL))
        self.pad, self.unknown = self._ids[PAD], self._ids[UNKNOWN]
        self._start, self._end = self._ids[START], self._ids[END]
        if len(self._ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"{twice!r} occurs twice in the vocabulary; every word has one id")

    @staticmethod
    def of(texts: Iterable[str], *, min_count: int = 1, longest: int = 60) -> WordTokenizer:
        """The vocabulary of captions: words that occur `min_count` times, most frequent first."""
        counts = Counter(word for text in texts for word in split_words(text))
        words = [word for word, count in counts.items() if count >= min_count]
        words.sort(key=lambda word: (-counts[word], word))
        return WordTokenizer([*SPECIAL, *(w for w in words if w not in SPECIAL)], longest=longest)

    def read(self, texts: Sequence[str]) -> TokenIds:
        rows, unknown = [split_words(text) for text in texts], self._ids[UNKNOWN]
        ids = ([self._ids.get(word, unknown) for word in row[: self.longest]] for row in rows)
        return TokenIds(
            [[self._start, *row, self._end] for row in ids],
            truncated=sum(len(row) > self.longest for row in rows),
        )

    def count_unknown(self, texts: Sequence[str]) -> tuple[int, int]:
        """Number of unknown words of texts, and of all, without punctuation."""
        words = [
            word for text in texts for word in split_words(text) if any(map(str.isalnum, word))
        ]
        return sum(word not in self._ids for word in words), len(words)

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return [[(0, 0), *word_spans(text)[: self.longest], (0, 0)] for text in texts]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.words[i] for i in ids]

    def save(self, folder: Path) -> None:
        plain = {"kind": "words", "longest": self.longest, "words": self.words}
        write_json(folder / "tokenizer.json", plain)

    @property
    def digest(self) -> str:
        text = f"{self.longest}\x00" + "\x00".join(self.words)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@final
class WordPieceTokenizer(Tokenizer):
    """A Hugging Face tokenizer, with its own special tokens.

    Args:
        name: name or folder.
        longest: captions are truncated to this many pieces.
        siglip2: read captions as SigLIP 2 was trained: in lower case, without a first special
            token, and with the end mark also where a caption is truncated, whatever the files of
            the tokenizer say (https://arxiv.org/abs/2502.14786).

    Raises:
        ValueError: there is no such tokenizer, or SigLIP 2's has no end mark.
    """

    def __init__(self, name: str, *, longest: int = 64, siglip2: bool = False) -> None:
        self.name, self.longest, self.siglip2 = name, longest, siglip2
        self._pieces = _pretrained(name)
        if siglip2 and self._pieces.eos_token_id is None:
            raise ValueError(
                f"the tokenizer {name!r} has no end mark, with which SigLIP 2 was trained; use the "
                "tokenizer of its checkpoint"
            )
        self.size = len(self._pieces)
        self.pad = int(self._pieces.pad_token_id or 0)
        self.mask = self._pieces.mask_token_id
        self.divides = bool(self._pieces.is_fast)
        unused = (i for word, i in self._pieces.get_vocab().items() if _UNUSED.fullmatch(word))
        self.wordless = tuple(sorted({*self._pieces.all_special_ids, *unused}))
        others = (self._pieces.eos_token_id, self._pieces.bos_token_id, self._pieces.pad_token_id)
        if self._pieces.unk_token_id not in others:  # CLIP's is its end mark, and never used
            self.unknown = self._pieces.unk_token_id

    @property
    def title(self) -> str:
        backend = getattr(self._pieces, "backend_tokenizer", None)
        kind = type(backend.model).__name__ if backend else type(self._pieces).__name__
        return f"{kind} of {self.size:,} tokens"

    @property
    def pretrained(self) -> Any:
        """The tokenizer of transformers."""
        return self._pieces

    def exported(self) -> Any:
        """A copy for transformers alone, which reads captions as this tokenizer does."""
        pieces = copy.deepcopy(self._pieces)
        if not self.siglip2:
            return pieces
        from tokenizers import normalizers, processors

        backend = pieces.backend_tokenizer
        own = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        end = pieces.eos_token
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, pieces.eos_token_id)]
        )
        return pieces

    def read(self, texts: Sequence[str]) -> TokenIds:
        out = self._cut(texts)
        ids = [list(row) for row in out["input_ids"]]
        if not self.divides and not self.siglip2:
            return TokenIds(ids, None, sum(len(row) >= self.longest for row in ids))
        truncated = sum(bool(encoding.overflowing) for encoding in out.encodings)
        if not self.siglip2:
            words = [[-1 if w is None else w for w in out.word_ids(n)] for n in range(len(ids))]
            return TokenIds(ids, words, truncated)
        words = []  # by the pieces: Gemma's tokenizer takes a caption for one word
        for row in ids:
            starts = [piece.startswith(GEMMA_BLANK) for piece in self.tokens(row)]
            words.append([*(sum(starts[1 : place + 1]) for place in range(len(row))), -1])
        return TokenIds([[*row, self._pieces.eos_token_id] for row in ids], words, truncated)

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        if not self.divides:
            return super().spans(texts)
        rows = self._cut(texts, return_offsets_mapping=True)["offset_mapping"]
        if not self.siglip2:
            return [[(start, stop) for start, stop in row] for row in rows]
        spans = []
        for text, row in zip(texts, rows, strict=True):
            back = _places_before_lower(text)
            within = [(back[a], back[b - 1] + 1) if b > a else (0, 0) for a, b in row]
            spans.append([*within, (0, 0)])
        return spans

    def _cut(self, texts: Sequence[str], **options: bool) -> Any:
        """The output of the tokenizer; of SigLIP 2's without the end mark."""
        texts = _beginnings(texts, self.longest)
        if not self.siglip2:
            return self._pieces(texts, truncation=True, max_length=self.longest, **options)
        return self._pieces(
            [text.lower() for text in texts],
            truncation=True,
            max_length=self.longest - 1,
            add_special_tokens=False,
            **options,
        )

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return list(self._pieces.convert_ids_to_tokens(list(ids)))

    def save(self, folder: Path) -> None:
        self._pieces.save_pretrained(folder / "pieces")
        settings = {"kind": "pieces", "longest": self.longest, "siglip2": self.siglip2}
        write_json(folder / "tokenizer.json", settings)

    @cached_property
    def digest(self) -> str:  # of 49,408 pieces 0.8 s
        backend = getattr(self._pieces, "backend_tokenizer", None)
        rules = json.loads(backend.to_str()) if backend else self._pieces.get_vocab()
        for setting in ("truncation", "padding"):  # set by every call
            rules.pop(setting, None)
        text = f"{self.longest} {self.pad} {self.siglip2} {json.dumps(rules, sort_keys=True)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


GEMMA_BLANK = "▁"  # begins the first piece of a word behind a blank


@final
class CharacterTokenizer(Tokenizer):
    """Unicode code points, for models of a library that tokenizes captions itself.

    Blanks at both ends are dropped.
    """

    def __init__(self) -> None:
        self.size = sys.maxunicode + 1
        self.divides = True
        self.wordless = (0,)

    def read(self, texts: Sequence[str]) -> TokenIds:
        texts = [text.strip() for text in texts]
        words = []
        for text in texts:
            row = [-1] * len(text)
            for number, (start, stop) in enumerate(word_spans(text)):
                row[start:stop] = [number] * (stop - start)
            words.append(row)
        return TokenIds([[*map(ord, text)] for text in texts], words)

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        starts = (len(text) - len(text.lstrip()) for text in texts)
        return [
            [(start + n, start + n + 1) for n in range(len(text.strip()))]
            for start, text in zip(starts, texts)
        ]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [chr(i) for i in ids]

    def save(self, folder: Path) -> None:
        write_json(folder / "tokenizer.json", {"kind": "characters", "longest": LONGEST})

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"characters").hexdigest()[:16]


LONGEST = 1_000_000  # words or pieces of a caption


def open_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer that was saved in a folder."""
    path = folder / "tokenizer.json"
    content = read_json(path, "a tokenizer")
    longest: Any = content.get("longest") if isinstance(content, dict) else None
    match content if type(longest) is int and 1 <= longest <= LONGEST else None:
        case {"kind": "words", "words": list(words)} if all(isinstance(w, str) for w in words):
            return WordTokenizer(words, longest=longest)
        case {"kind": "characters"}:
            return CharacterTokenizer()
        case {"kind": "pieces"}:
            siglip2 = content.get("siglip2") is True
            return WordPieceTokenizer(str(folder / "pieces"), longest=longest, siglip2=siglip2)
        case {"kind": "open_clip", "clean": str(clean), "ends": bool(ends), "pieces": bool(own)}:
            pieces = WordPieceTokenizer(str(folder / "pieces"), longest=longest) if own else None
            return OpenClipTokenizer(clean=clean, longest=longest, pieces=pieces, ends=ends)
    raise ValueError(f"{path} is not a tokenizer that counterfoil wrote")


def _beginnings(texts: Iterable[str], longest: int) -> list[str]:
    """Cut texts far behind their last piece that counts: a long word takes time with its square."""
    most = max(10_000, 100 * longest)  # characters
    return [text[:most] for text in texts]


def _pretrained(name: str) -> Any:
    needs = f'the tokenizer {name!r} needs transformers: pip install "counterfoil[hf]"'
    transformers, options = optional_import("transformers", needs), hub_options(name)
    try:
        pieces = transformers.AutoTokenizer.from_pretrained(name, **options)
    except Exception as error:  # libraries raise anything at damaged files
        first = first_line(error)
        raise ValueError(f"{name!r} is no tokenizer that can be read here: {first}") from error
    if len(pieces) <= len(set(pieces.all_special_ids)):  # transformers invents an empty one
        raise ValueError(
            f"{name!r} has no tokenizer files, such as tokenizer.json; copy them beside the model"
        )
    return pieces


# Token ids of many texts.


@final
@dataclass(frozen=True, eq=False, slots=True)
class TokenArray:
    """Token ids of T texts, as one flat array."""

    flat: Tensor  # (S,) int32 ids, text after text
    starts: Tensor  # (T + 1,) long, index of the first id of each text, and S
    pad: int
    words: Tensor | None = None  # (S,) int32, see `TokenIds`
    truncated: int = 0  # texts that were truncated

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self, rows: Tensor) -> Tensor:
        """(N,) number of ids of some texts."""
        return self.starts[rows + 1] - self.starts[rows]

    def holds(self, token: int | None) -> bool:
        """Whether a token is in any text."""
        return token is not None and bool((self.flat == token).any())

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) long ids and (N, L) bool mask of some texts, padded to the longest."""
        index, mask = self._index(rows)
        return self.flat[index].long().masked_fill(~mask, self.pad), mask

    def items(self, ids: Tensor, rows: Tensor) -> ModalityBatch:
        """The texts of some rows as model inputs, whose ids are `ids`."""
        values, mask = self.take(rows)
        if self.words is None:
            return ModalityBatch(ids, values, mask)
        words = self.words[self._index(rows)[0]].long().masked_fill(~mask, -1)
        return ModalityBatch(ids, values, mask, words=words)

    def _index(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) indices into `flat`, and their mask."""
        lengths = self.lengths(rows)
        place = torch.arange(int(lengths.max()) if len(rows) else 0)
        mask = place < lengths.unsqueeze(1)
        # Indices of padding run into the next text; clamped so that the last one does not overrun.
        index = (self.starts[rows].unsqueeze(1) + place).clamp(max=max(len(self.flat) - 1, 0))
        return index, mask


def pack_tokens(reading: TokenIds, pad: int) -> TokenArray:
    """Token ids from lists to one flat array."""
    starts = torch.tensor([0, *accumulate(map(len, reading.ids))])
    flat = torch.tensor([*chain.from_iterable(reading.ids)], dtype=torch.int32)
    words = None
    if reading.words is not None:
        words = torch.tensor([*chain.from_iterable(reading.words)], dtype=torch.int32)
    return TokenArray(flat, starts, pad, words, reading.truncated)


def tokenize(texts: Sequence[str], tokenizer: Tokenizer) -> TokenArray:
    """Token ids of texts as one flat array."""
    # Hugging Face tokenizers refuse an empty list
    return pack_tokens(tokenizer.read(texts) if texts else TokenIds([]), tokenizer.pad)


# Vocabularies that come with the checkpoints of VSE++, SCAN, BFAN, VSRN and AOQ: JSON with
# "word2idx", "idx2word" and "idx", or the pickle of an object of a class Vocabulary with these
# attributes, often written by Python 2. A pickle can run any code, so that nothing but this class
# is constructed. Ids are unchanged.


_VOCABULARY_MODULES = ("vocab", "__main__", "Vocabulary", "data.vocab", "lib.vocab")


@final
class Vocabulary:
    """Replaces the authors' class; has attributes and no code."""


@final
class _VocabularyUnpickler(pickle.Unpickler):
    """Unpickles `Vocabulary` and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary" and module in _VOCABULARY_MODULES:
            return Vocabulary
        if (module, name) in (("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")):
            return _reconstruct
        if (module, name) in (("__builtin__", "object"), ("builtins", "object")):
            return object
        raise ValueError(
            f"it holds {module}.{name}; only a Vocabulary of words and numbers is read"
        )


def _reconstruct(kind: Any, parent: Any, state: Any) -> Vocabulary:
    """Replaces ``copy_reg._reconstructor``, which pickles of Python 2 call, for this one class."""
    if kind is not Vocabulary or parent is not object or state is not None:
        raise ValueError("it holds something else than a Vocabulary")
    return Vocabulary()


def read_vocabulary(path: Path, *, longest: int = 60) -> WordTokenizer:
    """Read an authors' vocabulary, JSON or pickle."""
    if path.suffix in (".pkl", ".pickle"):
        ids: Any = _read_pickle(path)
    else:
        plain = read_json(path, "a vocabulary")
        ids = plain.get("word2idx") if isinstance(plain, dict) else None
        if not isinstance(ids, dict):
            raise ValueError(f'{path} is not a vocabulary: {{"word2idx": {{...}}}} is needed')
    words: list[str | None] = [None] * len(ids)
    for word, place in ids.items():
        if not isinstance(word, str) or type(place) is not int:
            raise ValueError(f"{path}: {word!r}: {place!r} is not a word with its id")
        if not 0 <= place < len(words) or words[place] is not None:
            raise ValueError(
                f"{path}: word {word!r} has id {place}; {len(words):,} words need the ids 0 to "
                f"{len(words) - 1:,}, each once"
            )
        words[place] = word
    try:
        return WordTokenizer([str(word) for word in words], longest=longest)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_pickle(path: Path) -> dict[Any, Any]:
    try:
        check_file(path)
        with path.open("rb") as file:
            vocabulary = _VocabularyUnpickler(file, encoding="latin1").load()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; a vocabulary is needed there") from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"{path} cannot be read as a vocabulary: {error}") from error
    ids = getattr(vocabulary, "word2idx", None) if isinstance(vocabulary, Vocabulary) else None
    if not isinstance(ids, dict):
        raise ValueError(f"{path} is not a Vocabulary with word2idx")
    return ids


# open_clip.

OPEN_CLIP_PREFIX = "open_clip:"
_LOCAL_FOLDER = "local-dir:"
CLEANINGS = ("lower", "whitespace", "canonicalize")
_END = "</w>"  # of a word, in CLIP's own vocabulary


@final
class OpenClipTokenizer(Tokenizer):
    """The tokenizer of an open_clip model: CLIP's vocabulary or a Hugging Face tokenizer.

    Args:
        clean: cleaning of captions. "whitespace" repairs mojibake, HTML and blanks; "lower" also
            lower-cases; "canonicalize" also removes punctuation.
        longest: captions are truncated to this many pieces.
        pieces: a Hugging Face tokenizer; None for CLIP's vocabulary.
        ends: keep the separator that this tokenizer appends; otherwise it becomes id 0.

    Raises:
        ValueError: open_clip is not installed, or there is no such cleaning.
    """

    divides = True

    def __init__(
        self,
        *,
        clean: str,
        longest: int = 77,
        pieces: WordPieceTokenizer | None = None,
        ends: bool = True,
    ) -> None:
        self.clean = parse_choice(CLEANINGS, clean, "a cleaning of open_clip")
        self.longest, self.pieces, self.ends = longest, pieces, ends
        if pieces:
            self.size, self.pad, self.wordless = pieces.size, pieces.pad, pieces.wordless
            self.divides = pieces.divides
        else:
            self._own = _library().SimpleTokenizer(context_length=longest, clean=clean)
            self.size = int(self._own.vocab_size)
            self.wordless = tuple(self._own.all_special_ids)

    def read(self, texts: Sequence[str]) -> TokenIds:
        if self.pieces:
            tokens = self.pieces.read([self._cleaned(text) for text in texts])
            last = None if self.ends else self.pieces.pretrained.sep_token_id
            ids = [[0 if i == last else i for i in row] for row in tokens.ids]
            return TokenIds(ids, tokens.words, tokens.truncated)
        start, stop = self._own.sot_token_id, self._own.eot_token_id
        rows = [self._own.encode(text) for text in _beginnings(texts, self.longest)]
        cut = [row[: self.longest - 2] for row in rows]
        words = []
        for row in cut:
            ends = [piece.endswith(_END) for piece in self.tokens(row)]
            words.append([-1, *(sum(ends[:place]) for place in range(len(row))), -1])
        truncated = sum(len(row) > self.longest - 2 for row in rows)
        return TokenIds([[start, *row, stop] for row in cut], words, truncated)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        if self.pieces:
            return self.pieces.tokens(ids)
        return [self._own.decoder[i] for i in ids]

    def save(self, folder: Path) -> None:
        if self.pieces:
            self.pieces.save(folder)
        settings = {"clean": self.clean, "longest": self.longest, "ends": self.ends}
        plain = {"kind": "open_clip", **settings, "pieces": self.pieces is not None}
        write_json(folder / "tokenizer.json", plain)

    @property
    def digest(self) -> str:
        inner = self.pieces.digest if self.pieces else "own"
        text = f"open_clip {self.clean} {self.longest} {self.ends} {inner}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _cleaned(self, text: str) -> str:
        import ftfy

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
        if self.clean == "canonicalize":
            text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
        text = " ".join(text.split())
        return text if self.clean == "whitespace" else text.lower()


def load_open_clip_tokenizer(name: str, *, longest: int = 0) -> OpenClipTokenizer:
    """The tokenizer of an open_clip model.

    Args:
        name: ``open_clip:`` and an architecture, ``hf-hub:USER/MODEL`` or ``local-dir:FOLDER``.
        longest: pieces of a caption, where they are more than in its configuration.

    Raises:
        ValueError: open_clip is not installed, there is no such model, or its tokenizer has
            settings that are not supported.
    """
    where = name.removeprefix(OPEN_CLIP_PREFIX)
    try:
        settings = _library().get_model_config(where)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} has no configuration of open_clip: {error}") from error
    if settings is None:
        raise ValueError(f"{name!r} is no model of open_clip")
    text: dict[str, Any] = settings["text_cfg"]
    public = text.get("hf_tokenizer_name")
    options = dict(text.get("tokenizer_kwargs") or {})
    clean = options.pop("clean", "whitespace" if public else "lower")
    ends = not options.pop("strip_sep_token", False)
    longest = max(longest, int(text.get("context_length", 77)))
    if unknown := [*options, *(["tokenizer_mode"] if text.get("tokenizer_mode") else [])]:
        raise ValueError(f"{name} reads captions with {unknown[0]}, which is not known here")
    if public and where.startswith(_LOCAL_FOLDER):
        public = where.removeprefix(_LOCAL_FOLDER)
    pieces = WordPieceTokenizer(public, longest=longest) if public else None
    return OpenClipTokenizer(clean=clean, longest=longest, pieces=pieces, ends=ends)


def _library() -> Any:
    needs = 'captions of an open_clip model need open_clip: pip install "counterfoil[vision]"'
    return optional_import("open_clip", needs)
