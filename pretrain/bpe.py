"""Learning the tokenizer: CLIP's byte-pair scheme on our own texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import trainers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import RobertaProcessing

from dca.backbones.clip.tokenizer import EOT, SOT, build_bpe
from pretrain import pack
from pretrain.config import PretrainConfig
from pretrain.lexicon import read_lexicon

END = "</w>"
NAME_WEIGHT, LEMMA_WEIGHT = 20, 3


def learn(texts: Iterable[str], vocab_size: int) -> Engine:
    """Byte-pair encoding of `vocab_size` tokens, SOT and EOT (the last two) included.

    Ids are in CLIP's order: the 256 byte symbols, the same as word ends, the merges. Every
    byte has both forms, so that texts in any language can be encoded.
    """
    alphabet = sorted(ByteLevel.alphabet())
    plain = build_bpe({}, [])
    engine = Engine(BPE(end_of_word_suffix=END))
    engine.normalizer, engine.pre_tokenizer = plain.normalizer, plain.pre_tokenizer
    wanted = vocab_size - 2 * len(alphabet) - 2
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, end_of_word_suffix=END, show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    learned = json.loads(engine.to_str())["model"]["merges"]
    merges = [(a, b) for a, b in learned][:wanted]
    tokens = [*alphabet, *(c + END for c in alphabet), *(a + b for a, b in merges), SOT, EOT]
    finished = build_bpe({token: i for i, token in enumerate(tokens)}, merges)
    finished.post_processor = RobertaProcessing((EOT, len(tokens) - 1), (SOT, len(tokens) - 2), False, False)
    return finished


def save(engine: Engine, folder: Path, context: int) -> None:
    """Write tokenizer.json, vocab.json, merges.txt and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    model: dict[str, Any] = json.loads(engine.to_str())["model"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    special = {"bos_token": SOT, "eos_token": EOT, "unk_token": EOT, "pad_token": EOT}
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": context, "do_lower_case": True} | special
    texts = {
        "vocab.json": json.dumps(model["vocab"], ensure_ascii=False),
        "merges.txt": f"#version: 0.2\n{merges}\n",
        "tokenizer_config.json": json.dumps(settings, indent=1),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def corpus_texts(config: PretrainConfig) -> Iterator[str]:
    """Texts to learn from: captions once, names more often, the words and definitions of the lexicon."""
    folder = Path(config.data.pack)
    for source in pack.sources(folder):
        names: set[str] = set()
        for record in pack.read_index(folder, source):
            yield from record.captions
            if record.auto:
                yield record.auto
            names.update(record.names)
        yield from sorted(names) * NAME_WEIGHT
    for noun in read_lexicon(config.data.lexicon).visible():
        yield from noun.lemmas * LEMMA_WEIGHT
        yield noun.gloss
