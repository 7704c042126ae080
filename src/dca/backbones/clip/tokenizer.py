"""Byte-pair encoding with `tokenizers`, read from the checkpoint's own files."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as BPETokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Lowercase, Replace
from tokenizers.normalizers import Sequence as Normalizers

from dca.core.errors import UserError

SOT, EOT = "<|startoftext|>", "<|endoftext|>"
OPENAI_MERGES = "bpe_simple_vocab_16e6.txt.gz"
# Of the 262,144 lines of that file CLIP uses the first 48,894 merges, and these are inside this package.
OPENAI_MERGE_COUNT = 49152 - 256 - 2
OPENAI_VOCABULARY = 49152 + 256
BUILT_IN_MERGES = Path("openai") / "merges.txt.gz"
WORD_PATTERN = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
FILES_NEEDED = f"tokenizer.json, or vocab.json and merges.txt, or {OPENAI_MERGES}"


class Tokenizer:
    """Text to ids, as in CLIP: NFC, runs of white space become one space, lower case, then merges.

    Args:
        bpe: The byte-pair encoding, of the `tokenizers` library.
        context_length: Most ids of a text, SOT and EOT included.

    Raises:
        UserError: If the encoding has no SOT or EOT token.

    Example:
        >>> from dca import CLIP
        >>> tokenizer = CLIP.from_pretrained("mini").tokenizer
        >>> ids = tokenizer(["a photo of a cat"])[0]
        >>> ids[1:-1] == tokenizer.encode("a photo of a cat")
        True
        >>> tokenizer.decode(ids[1:-1])
        'a photo of a cat'
    """

    def __init__(self, bpe: BPETokenizer, context_length: int) -> None:
        self.bpe = bpe
        self.context_length = context_length
        self.sot_id = self._find_special_token(SOT)
        self.eot_id = self._find_special_token(EOT)
        bpe.no_padding()
        bpe.no_truncation()

    def _find_special_token(self, token: str) -> int:
        index = self.bpe.token_to_id(token)
        if index is None:
            raise UserError(f"the tokenizer has no {token} token: it is not a CLIP tokenizer")
        return int(index)

    @property
    def start_ids(self) -> tuple[int, ...]:
        """SOT, which every sequence begins with."""
        return (self.sot_id,)

    @property
    def special_ids(self) -> frozenset[int]:
        """SOT and EOT."""
        return frozenset({self.sot_id, self.eot_id})

    def encode(self, text: str, *, continued: bool = False) -> list[int]:
        """Ids of the text alone, without SOT and EOT; the same behind other words (`continued`)."""
        return list(self.bpe.encode(text, add_special_tokens=False).ids)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids [SOT, .., EOT] of each text; longer ones are cut and still end with EOT."""
        room = self.context_length - 2
        encoded = self.bpe.encode_batch(list(texts), add_special_tokens=False)
        return [[self.sot_id, *e.ids[:room], self.eot_id] for e in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of the ids."""
        tokens = (self.bpe.id_to_token(i) or "" for i in ids)
        return "".join(tokens).replace("</w>", " ").strip()

    def digest(self) -> str:
        """sha256 of the vocabulary: two tokenizers with the same digest give the same ids."""
        vocabulary = sorted(self.bpe.get_vocab().items())
        return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def load_tokenizer(folder: Path, context_length: int) -> Tokenizer:
    """Tokenizer from the files in `folder`, in any of the usual formats."""
    try:
        if (folder / "tokenizer.json").is_file():
            bpe = BPETokenizer.from_file(str(folder / "tokenizer.json"))
        elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            bpe = build_bpe(*_read_vocab(folder))
        elif (folder / OPENAI_MERGES).is_file():
            bpe = build_bpe(*_read_openai(folder / OPENAI_MERGES))
        else:
            raise UserError(f"{folder}: no tokenizer", hint=f"put {FILES_NEEDED} there")
    except UserError:
        raise
    except Exception as error:  # `tokenizers` raises bare Exception for malformed files
        raise UserError(
            f"{folder}: the tokenizer cannot be read ({error})", hint=f"it must be {FILES_NEEDED}"
        ) from None
    return Tokenizer(bpe, context_length)


def load_openai_tokenizer(context_length: int) -> Tokenizer:
    """The tokenizer of OpenAI's CLIP, which nearly all others use, too; its merges are inside this package."""
    path = Path(str(files("dca.backbones.clip"))) / BUILT_IN_MERGES
    return Tokenizer(build_bpe(*_read_openai(path)), context_length)


def build_bpe(vocab: dict[str, int], merges: list[tuple[str, str]]) -> BPETokenizer:
    """CLIP's byte-level BPE over the given tables."""
    bpe = BPETokenizer(
        BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="</w>", unk_token=EOT)
    )
    bpe.normalizer = Normalizers([NFC(), Replace(Regex(r"\s+"), " "), Lowercase()])
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.add_special_tokens([SOT, EOT])
    return bpe


def _read_vocab(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#version")]
    return vocab, [(a, b) for a, b in pairs]


def _read_openai(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of OpenAI's gzipped merge list, ids in CLIP's order."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = (line for line in file if "#version" not in line)
        lines = list(islice(rows, OPENAI_MERGE_COUNT))
    merges = [(a, b) for a, b in (line.split() for line in lines)]
    alphabet = _byte_alphabet()
    tokens = [*alphabet, *(c + "</w>" for c in alphabet), *(a + b for a, b in merges), SOT, EOT]
    return {token: i for i, token in enumerate(tokens)}, merges


def _byte_alphabet() -> list[str]:
    """The 256 byte symbols in CLIP's id order: printable ones first, the rest shifted past 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(hidden))]
