from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import make_clip, save_hf, small_vocabulary, tiny_config
from dca.backbones.clip import CLIP, VIT_B_16, CLIPConfig
from dca.backbones.clip.weights import openai_source
from dca.core.errors import UserError


def tensor_of(output: Any) -> torch.Tensor:
    """`transformers` returns the features, or an output object that holds them."""
    return output if isinstance(output, torch.Tensor) else output.pooler_output


def saved_by_transformers(folder: Path, raw: dict[str, Any], tokenizer_from: Path) -> Any:
    from transformers import CLIPConfig as TheirConfig
    from transformers import CLIPModel

    torch.random.manual_seed(0)
    model = CLIPModel(TheirConfig(**raw)).eval()
    model.save_pretrained(folder)
    for name in ("vocab.json", "merges.txt", "preprocessor_config.json"):
        shutil.copyfile(tokenizer_from / name, folder / name)
    return model


def assert_same_features(clip: CLIP, model: Any, texts: list[str]) -> None:
    config = clip.config
    pixels = torch.randn(2, 3, config.vision.image_size, config.vision.image_size)
    sequences = clip.tokenizer(texts)
    ids = torch.tensor([s + [config.text.eot_id] * (config.text.context_length - len(s)) for s in sequences])
    with torch.no_grad():
        torch.testing.assert_close(
            clip.encode_image(pixels), tensor_of(model.get_image_features(pixels)), atol=1e-5, rtol=0
        )
        expected = tensor_of(model.get_text_features(input_ids=ids))
        torch.testing.assert_close(clip.encode_text(texts), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_features_equal_transformers_on_a_tiny_checkpoint_it_saved(
    tmp_path: Path, tiny_folder: Path, activation: str
) -> None:
    raw = tiny_config(activation).to_hf()
    model = saved_by_transformers(tmp_path / "clip", raw, tiny_folder)
    assert_same_features(CLIP.from_pretrained(tmp_path / "clip"), model, ["a photo of a cat.", "dog", "x" * 90])


@pytest.mark.slow
def test_features_equal_transformers_in_vit_b_16_shape(tmp_path: Path, tiny_folder: Path) -> None:
    """The real sizes of both towers; the vocabulary is the small one, so that the test stays quick."""
    vocab = len(small_vocabulary()[0])
    raw = VIT_B_16.to_hf()
    raw["text_config"] |= {"vocab_size": vocab, "bos_token_id": vocab - 2, "eos_token_id": vocab - 1}
    model = saved_by_transformers(tmp_path / "clip", raw, tiny_folder)
    path = tmp_path / "clip" / "preprocessor_config.json"
    text = path.read_text().replace("32", "224")
    path.write_text(text)
    assert_same_features(CLIP.from_pretrained(tmp_path / "clip"), model, ["a photo of a cat.", "dog and cat"])


def openai_state(clip: CLIP) -> dict[str, torch.Tensor]:
    return {k: v for n, t in clip.state_dict().items() for k, v in openai_source(n).write(t).items()}


def copy_files(folder: Path, tiny_folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names or ("vocab.json", "merges.txt", "preprocessor_config.json"):
        shutil.copyfile(tiny_folder / name, folder / name)
    return folder


@pytest.fixture
def wide() -> CLIP:
    """A CLIP whose towers have 64-wide heads, as OpenAI's state dicts imply."""
    config = tiny_config()
    vision = config.vision.__class__(**{**vars(config.vision), "width": 64, "heads": 1, "hidden": 256})
    text = config.text.__class__(**{**vars(config.text), "width": 64, "heads": 1, "hidden": 256})
    return make_clip(CLIPConfig(vision=vision, text=text, embed_dim=16))


@pytest.mark.parametrize("form", ["safetensors", "pt", "wrapped"])
def test_an_openai_state_dict_is_read(tmp_path: Path, tiny_folder: Path, wide: CLIP, form: str) -> None:
    folder = copy_files(tmp_path / "openai", tiny_folder)
    state = openai_state(wide) | {"input_resolution": torch.tensor(32), "context_length": torch.tensor(77)}
    if form == "safetensors":
        path = folder / "weights.safetensors"
        save_file(state, path)
    else:
        path = folder / "weights.pt"
        wrapped = {"epoch": 1, "state_dict": {f"module.{k}": v for k, v in state.items()}}
        torch.save(wrapped if form == "wrapped" else state, path)
    read = CLIP.from_pretrained(path)
    assert read.config == wide.config
    assert read.digest == wide.digest


def test_an_open_clip_folder_is_read(tmp_path: Path, tiny_folder: Path, wide: CLIP) -> None:
    folder = copy_files(tmp_path / "open", tiny_folder, "vocab.json", "merges.txt")
    save_file(openai_state(wide), folder / "open_clip_model.safetensors")
    vision, text = wide.config.vision, wide.config.text
    config = {
        "model_cfg": {
            "embed_dim": 16,
            "quick_gelu": True,
            "vision_cfg": {"image_size": 32, "layers": vision.layers, "width": 64, "patch_size": 8},
            "text_cfg": {
                "context_length": 77, "vocab_size": text.vocab_size, "width": 64, "heads": 1, "layers": text.layers,
            },
        },
        "preprocess_cfg": {"mean": list(wide.preprocess.mean), "std": list(wide.preprocess.std)},
    }  # fmt: skip
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    wide.preprocess = replace(wide.preprocess, even=True)  # as torchvision cuts
    assert CLIP.from_pretrained(folder).digest == wide.digest


def test_the_activation_of_a_bare_state_dict_is_not_guessed(tmp_path: Path, tiny_folder: Path, wide: CLIP) -> None:
    folder = copy_files(tmp_path / "bare", tiny_folder)
    save_file(openai_state(wide), folder / "weights.safetensors")
    with pytest.raises(UserError, match="which activation"):
        CLIP.from_pretrained(folder / "weights.safetensors")


def test_a_state_dict_of_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tensors of an OpenAI CLIP") as caught:
        CLIPConfig.from_openai_tensors({"visual.layer1.weight": torch.zeros(1)}, tmp_path)
    assert "visual.conv1.weight" in caught.value.details


def test_pytorch_bin_is_read_with_weights_only(tmp_path: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "bin"
    shutil.copytree(tiny_folder, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert CLIP.from_pretrained(folder).digest == CLIP.from_pretrained(tiny_folder).digest


class Evil:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("owned",)


def test_pickles_that_need_code_are_refused_and_not_run(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copy_files(tmp_path / "evil", tiny_folder)
    torch.save({"x": Evil()}, folder / "weights.pt")
    with pytest.raises(UserError, match="refused") as caught:
        CLIP.from_pretrained(folder / "weights.pt")
    assert "safetensors" in caught.value.hint
    assert not (tmp_path / "owned").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_archives_of_other_models_are_refused(tmp_path: Path, tiny_folder: Path) -> None:
    folder = copy_files(tmp_path / "script", tiny_folder)
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(folder / "model.pt"))
    with pytest.raises(UserError, match="OpenAI CLIP"):
        CLIP.from_pretrained(folder / "model.pt")


@pytest.mark.parametrize("data", [b"", b"\x00" * 4, b"\xff" * 64, b"\x08\x00\x00\x00\x00\x00\x00\x00{broken}"])
def test_damaged_weight_files_are_named(tmp_path: Path, tiny_folder: Path, data: bytes) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="safetensors"):
        CLIP.from_pretrained(folder)
    (folder / "weights.pt").write_bytes(data)
    with pytest.raises(UserError, match="refused"):
        CLIP.from_pretrained(folder / "weights.pt")


def test_wrong_missing_and_foreign_tensors_are_listed_by_name(tmp_path: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(tiny_folder, folder)
    state = load_file(folder / "model.safetensors")
    del state["text_model.final_layer_norm.bias"]
    state["visual_projection.weight"] = torch.zeros(3, 3)
    state["text_projection.weight"] = torch.full_like(state["text_projection.weight"], float("nan"))
    state["stranger"] = torch.zeros(1)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(UserError) as caught:
        CLIP.from_pretrained(folder)
    text = str(caught.value)
    for expected in ("missing text_model.final_layer_norm.bias", "visual_projection.weight: shape (3, 3)",
                     "text_projection.weight: holds NaN", "unexpected stranger"):  # fmt: skip
        assert expected in text


def test_preprocessing_may_lie_inside_a_processor(tmp_path: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "processor"
    shutil.copytree(tiny_folder, folder)
    own = folder / "preprocessor_config.json"
    nested = {"processor_class": "CLIPProcessor", "image_processor": json.loads(own.read_text())}
    (folder / "processor_config.json").write_text(json.dumps(nested))
    own.unlink()
    assert CLIP.from_pretrained(folder).preprocess == CLIP.from_pretrained(tiny_folder).preprocess
    (folder / "processor_config.json").write_text('{"processor_class": "CLIPProcessor"}')
    with pytest.raises(UserError, match=r"no preprocessor_config\.json"):
        CLIP.from_pretrained(folder)


def test_missing_preprocessing_is_an_error(tmp_path: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "no_preprocess"
    shutil.copytree(tiny_folder, folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"preprocessor_config\.json"):
        CLIP.from_pretrained(folder)


def test_preprocessing_of_another_size_is_an_error(tmp_path: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "size"
    shutil.copytree(tiny_folder, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(path.read_text().replace("32", "48"))
    with pytest.raises(UserError, match="48 px"):
        CLIP.from_pretrained(folder)


def test_old_hf_files_with_placeholder_ids_use_the_vocabulary_end() -> None:
    raw = tiny_config().to_hf()
    raw["text_config"] |= {"bos_token_id": 0, "eos_token_id": 2}
    assert CLIPConfig.from_hf(raw).text == tiny_config().text


def test_hf_config_round_trips() -> None:
    assert CLIPConfig.from_hf(VIT_B_16.to_hf()) == VIT_B_16


def test_weights_survive_the_way_to_hf_and_back(tmp_path: Path) -> None:
    clip = make_clip(seed=5)
    assert CLIP.from_pretrained(save_hf(clip, tmp_path / "there")).digest == clip.digest


def test_digest_sees_weights_and_preprocessing(tmp_path: Path, tiny_folder: Path) -> None:
    one = make_clip(seed=0)
    assert one.digest == make_clip(seed=0).digest
    assert one.digest != make_clip(seed=1).digest
    folder = tmp_path / "mean"
    shutil.copytree(tiny_folder, folder)
    path = folder / "preprocessor_config.json"
    path.write_text(path.read_text().replace("0.48", "0.49"))
    assert CLIP.from_pretrained(folder).digest != CLIP.from_pretrained(tiny_folder).digest
