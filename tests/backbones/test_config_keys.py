"""Keys of Hugging Face configurations: all that `transformers` writes are known, others are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import tiny_config
from dca.backbones.clip import CLIP, CLIPConfig
from dca.backbones.preprocess import Preprocess
from dca.core.errors import UserError

PROCESSOR = {
    "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3, "resample": 3, "rescale_factor": 1 / 255, "do_convert_rgb": True, "do_pad": None,
    "image_processor_type": "CLIPImageProcessorFast",
}  # fmt: skip


def test_what_transformers_writes_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    written = json.loads(transformers.CLIPConfig(**tiny_config().to_hf()).to_json_string(use_diff=False))
    assert CLIPConfig.from_hf(written) == tiny_config()
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    assert Preprocess.from_hf(json.loads(processor.to_json_string())).size == 32


def test_dumps_of_old_versions_are_read() -> None:
    """They hold every option of text generation, and a part of the configuration twice."""
    raw = tiny_config().to_hf()
    old = {"bos_token_id": 0, "add_cross_attention": False, "pruned_heads": {}, "is_decoder": False, "top_p": 1.0,
           "num_beams": 1, "dropout": 0.0, "use_bfloat16": False, "id2label": {"0": "LABEL_0"}}  # fmt: skip
    raw["vision_config"] |= old
    raw |= {"text_config_dict": None, "vision_config_dict": dict(raw["vision_config"]), "torch_dtype": "float32"}
    raw["vision_config"] = {}
    assert CLIPConfig.from_hf(raw) == tiny_config()


@pytest.mark.parametrize(("section", "key", "value"), [
    ("text_config", "is_causal", False), ("text_config", "is_decoder", True), ("vision_config", "use_rope", True),
    ("vision_config", "num_channels", 4), ("vision_config", "qk_norm", None), ("", "text_projection_bias", True),
    ("", "auto_map", {"AutoModel": "modeling.py"}), ("", "quantization_config", {"bits": 4}),
])  # fmt: skip
def test_unknown_keys_are_refused_by_name(section: str, key: str, value: Any) -> None:
    raw = tiny_config().to_hf()
    (raw[section] if section else raw)[key] = value
    with pytest.raises(UserError) as caught:
        CLIPConfig.from_hf(raw, "transformers:FOLDER")
    assert any(line.startswith(f"{section}.{key}: ".lstrip(".")) for line in caught.value.details)
    assert "--backbone transformers:FOLDER" in caught.value.render("cli")


@pytest.mark.parametrize(("key", "value"), [
    ("do_pad", True), ("crop_pct", 0.9), ("rescale_factor", 1.0), ("offset", True), ("min_pixels", 7),
    ("image_processor_type", "BitImageProcessor"),
])  # fmt: skip
def test_preprocessing_that_we_do_not_do_is_refused_by_name(key: str, value: Any) -> None:
    assert Preprocess.from_hf(PROCESSOR).size == 32
    with pytest.raises(UserError) as caught:
        Preprocess.from_hf(PROCESSOR | {key: value})
    assert (str(value) if key.endswith("type") else key) in str(caught.value)


def test_a_folder_of_another_family_says_so_before_anything_else(tmp_path: Path, tiny_folder: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "other"))
    (folder / "config.json").write_text(json.dumps({"model_type": "align"}))
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(UserError, match="type 'align'") as caught:
        CLIP.from_pretrained(folder)
    assert f"--backbone transformers:{folder}" in caught.value.render("cli")
