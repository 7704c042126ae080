"""Text to ids for SigLIP (SentencePiece, English or many languages) and SigLIP 2 (Gemma's), from tokenizer.json.

Texts are cleaned before they are cut into tokens, as they were in training. The libraries do not agree on how; the
layout of a checkpoint says whose rule holds:

    punctuation   SigLIP in transformers: lower case, no ASCII punctuation, single spaces
    words         both in open_clip ("canonicalize"): the same, HTML entities as characters, and _ separates words
    lower         SigLIP 2 in transformers: lower case

Every sequence is the text, EOT, and padding up to one length. Nothing stands before the text.
"""

from __future__ import annotations

import hashlib
import html
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as AnyTokenizer

from dca.core.errors import UserError
from dca.core.files import read_json

Cleaning = Literal["punctuation", "words", "lower"]
# `clean` of open_clip's SigLIPs.
CANONICALIZE = "canonicalize"
TOKENIZER_FILE, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# EOT and padding of SigLIP and of SigLIP 2, where no file names them.
USUAL_TOKENS = (("</s>", "</s>"), ("<eos>", "<pad>"))
WORD_BOUNDARY = "▁"


class SigLIPTokenizer:
    """Text to ids.

    Args:
        tokenizer: The content of tokenizer.json, of the `tokenizers` library.
        context_length: Length of every sequence, EOT and padding included.
        cleaning: What is done to a text first; see the head of this file.
        eot: Token behind the text.
        pad: Token that fills the rest of a sequence.

    Raises:
        UserError: If there are no such tokens.
    """

    def __init__(self, tokenizer: AnyTokenizer, context_length: int, cleaning: Cleaning, *, eot: str, pad: str) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.cleaning = cleaning
        self.eot_id, self.pad_id = self._find_token(eot), self._find_token(pad)
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def _find_token(self, token: str) -> int:
        index = self.tokenizer.token_to_id(token)
        if index is None:
            raise UserError(f"{TOKENIZER_FILE} has no {token} token: it is not a tokenizer of SigLIP")
        return int(index)

    @property
    def start_ids(self) -> tuple[int, ...]:
        """None: a sequence begins with the text."""
        return ()

    @property
    def special_ids(self) -> frozenset[int]:
        """EOT, padding, and the others that are marked as special."""
        marked = {index for index, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        return frozenset({self.eot_id, self.pad_id, *marked})

    @property
    def largest_id(self) -> int:
        """The largest id of a token."""
        return int(max(self.tokenizer.get_vocab().values()))

    def clean(self, text: str) -> str:
        """The text as it is cut into tokens."""
        if self.cleaning == "lower":
            return text.lower()
        if self.cleaning == "words":
            text = html.unescape(html.unescape(text)).replace("_", " ")
        return " ".join(text.lower().translate(NO_PUNCTUATION).split())

    def encode(self, text: str, *, continued: bool = False) -> list[int]:
        """Ids of the text alone, without EOT; continued: as they are behind other words, where a space makes tokens."""
        cleaned = self.clean(text)
        return self._ids([f" {cleaned}" if continued and cleaned else cleaned])[0]

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids [.., EOT] of each text, without padding; longer ones are cut and still end with EOT."""
        room = self.context_length - 1
        return [[*ids[:room], self.eot_id] for ids in self._ids([self.clean(text) for text in texts])]

    def _ids(self, cleaned: Sequence[str]) -> list[list[int]]:
        return [list(e.ids) for e in self.tokenizer.encode_batch(list(cleaned), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of the ids."""
        tokens = (self.tokenizer.id_to_token(i) or "" for i in ids)
        return "".join(tokens).replace(WORD_BOUNDARY, " ").strip()

    def digest(self) -> str:
        """sha256 of vocabulary, rules and cleaning: two tokenizers with the same digest give the same ids."""
        parts = [self.tokenizer.to_str(), self.cleaning, self.eot_id, self.pad_id]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load_siglip_tokenizer(folder: Path, context_length: int, clean: str | None = None) -> SigLIPTokenizer:
    """Tokenizer from the files of a checkpoint.

    Args:
        folder: Has tokenizer.json, and tokenizer_config.json where the names of EOT and padding are not the usual ones.
        context_length: Length of every sequence.
        clean: What open_clip's configuration says; None for a checkpoint in the layout of transformers.

    Raises:
        UserError: If there is no such file, or it is no tokenizer of SigLIP.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        raise UserError(f"{folder}: no tokenizer", hint=f"put the checkpoint's {TOKENIZER_FILE} there")
    try:
        tokenizer = AnyTokenizer.from_file(str(folder / TOKENIZER_FILE))
    except Exception as error:  # `tokenizers` raises bare Exception for malformed files
        raise UserError(f"{folder}: {TOKENIZER_FILE} cannot be read ({error})") from None
    config = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    _require_usual_sequences(folder, config)
    eot, pad = _find_names(tokenizer, config, folder)
    if clean not in (None, CANONICALIZE):
        raise UserError(f"{folder}: texts are to be cleaned by '{clean}'; {CANONICALIZE} alone is known")
    # Only the tokenizer of SigLIP 2 has tokens of its own for EOT and padding.
    cleaning: Cleaning = "words" if clean is not None else "punctuation" if eot == pad else "lower"
    return SigLIPTokenizer(tokenizer, context_length, cleaning, eot=eot, pad=pad)


def _require_usual_sequences(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise for sequences other than those of the released SigLIPs."""
    unusual = [
        f"{key}: {config[key]!r}"
        for key, usual in (("padding_side", "right"), ("add_bos_token", False), ("add_eos_token", True))
        if config.get(key, usual) != usual
    ]
    if unusual:
        raise UserError(
            f"{folder}: {TOKENIZER_CONFIG} asks for other sequences than text, EOT, padding",
            details=unusual,
            hint="take the checkpoint's own file",
        )


def _find_names(tokenizer: AnyTokenizer, config: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """The tokens of EOT and padding."""
    named = [config.get(key) for key in ("eos_token", "pad_token")]
    eot, pad = (str(token.get("content")) if isinstance(token, Mapping) else token for token in named)
    if eot and pad:
        return str(eot), str(pad)
    vocabulary = tokenizer.get_vocab()
    for names in reversed(USUAL_TOKENS):
        if all(name in vocabulary for name in names):
            return names
    raise UserError(
        f"{folder}: neither {TOKENIZER_FILE} nor {TOKENIZER_CONFIG} says which tokens end and fill a text",
        hint=f"put the checkpoint's {TOKENIZER_CONFIG} there",
    )
