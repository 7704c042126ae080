from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import MERGES, small_vocabulary
from dca.backbones.clip.tokenizer import OPENAI_MERGES, Tokenizer, _read_openai, build_bpe, load_tokenizer
from dca.core.errors import UserError

WORDS = (
    "a photo of the this is drawing cat dog Golden Retriever highway or road annual crop land don't it's we'll I'd "
    "naïve café Straße ΑΘΗΝΑ москва 東京 日本語 한국어 العربية हिन्दी emoji 😀 👩‍🚀 🇫🇷 ½ ² ﬁ ｆｕｌｌ Ǆ İ ß "
    "x-ray 747-400 F/A-18 R2D2 3.14 1,000 100% $5 #tag @home a/b (c) [d] {e} <f> & | ~ ^ `q` \"quoted\" 'single' "
    "st. bernard... !!! ?! under_score tab\there new\nline nb\u00a0sp zero\u200bwidth e\u0301 n\u0303 supercali"
).split(" ")


def varied_strings(count: int, seed: int = 0) -> list[str]:
    """Words of many scripts in random order, spacing and case, and runs of random characters."""
    rng = random.Random(seed)
    strings = ["", " ", "a photo of a", "."]
    while len(strings) < count:
        if rng.random() < 0.25:
            points = [
                rng.choice([rng.randrange(32, 127), rng.randrange(160, 0x2FFF)]) for _ in range(rng.randrange(1, 20))
            ]
            strings.append("".join(map(chr, points)))
        else:
            text = rng.choice([" ", "  ", ", ", "-", ""]).join(rng.choices(WORDS, k=rng.randrange(1, 12)))
            strings.append(rng.choice([text, text.upper(), text.title()]))
    return strings


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real CLIP vocabulary as vocab.json and merges.txt."""
    spec = find_spec("open_clip")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the vocabulary file inside open_clip_torch (pip install --no-deps open_clip_torch)")
    vocab, merges = _read_openai(Path(spec.submodule_search_locations[0]) / OPENAI_MERGES)
    folder = tmp_path_factory.mktemp("real")
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges), encoding="utf-8")
    return folder


def reference_ids(folder: Path, texts: list[str], length: int) -> list[list[int]]:
    from transformers import CLIPTokenizerFast

    reference = CLIPTokenizerFast.from_pretrained(str(folder))
    return [reference(t, truncation=True, max_length=length)["input_ids"] for t in texts]


@pytest.mark.parametrize("length", [77, 16])
def test_ids_equal_transformers_on_2000_strings_with_the_real_vocabulary(real_folder: Path, length: int) -> None:
    texts = varied_strings(2000 if length == 77 else 200)
    ours = load_tokenizer(real_folder, length)(texts)
    theirs = reference_ids(real_folder, texts, length)
    assert [t for t, a, b in zip(texts, ours, theirs, strict=True) if a != b] == []


def test_real_vocabulary_gives_the_published_ids(real_folder: Path) -> None:
    tokenizer = load_tokenizer(real_folder, 77)
    assert tokenizer.encode("a photo of a") == [320, 1125, 539, 320]
    assert (tokenizer.sot_id, tokenizer.eot_id) == (49406, 49407)
    assert tokenizer.decode(tokenizer.encode("A photo of a Cat.")) == "a photo of a cat ."


def test_ids_equal_transformers_with_a_small_vocabulary(tiny_folder: Path) -> None:
    texts = varied_strings(300, seed=1)
    assert load_tokenizer(tiny_folder, 77)(texts) == reference_ids(tiny_folder, texts, 77)


def test_tokenizer_json_and_merges_agree(tiny_folder: Path, tmp_path: Path) -> None:
    build_bpe(*small_vocabulary()).save(str(tmp_path / "tokenizer.json"))
    texts = varied_strings(100, seed=2)
    one, other = load_tokenizer(tmp_path, 77), load_tokenizer(tiny_folder, 77)
    assert one(texts) == other(texts)
    assert one.digest() == other.digest()


def test_long_texts_are_cut_and_still_end_with_eot() -> None:
    tokenizer = Tokenizer(build_bpe(*small_vocabulary()), 8)
    ids = tokenizer(["cat " * 50])[0]
    assert len(ids) == 8
    assert (ids[0], ids[-1]) == (tokenizer.sot_id, tokenizer.eot_id)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {"type": "nonsense"}}', ""])
def test_damaged_tokenizer_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match="tokenizer cannot be read"):
        load_tokenizer(tmp_path, 77)


def test_missing_tokenizer_says_which_files_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer") as caught:
        load_tokenizer(tmp_path, 77)
    assert "merges.txt" in caught.value.hint


def test_a_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    vocab, merges = small_vocabulary()
    engine = build_bpe({t: i for t, i in vocab.items() if not t.startswith("<|")}, merges)
    text = engine.to_str().replace("<|startoftext|>", "<s>").replace("<|endoftext|>", "</s>")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="not a CLIP tokenizer"):
        load_tokenizer(tmp_path, 77)
    assert MERGES
