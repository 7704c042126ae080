"""OpenAI's own files, TorchScript archives, by path and by the names that people type; hostile ones are refused."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from dca.backbones import architectures
from dca.backbones.architectures import ARCHITECTURES, OPENAI_MODELS, QUICK, Architecture
from dca.backbones.clip import CLIP
from dca.backbones.sources import find_backbone, recorded_location
from dca.backbones.torchscript import MOST_PICKLE, read_torchscript
from dca.core.errors import UserError
from dca.runs.spec import _backbone_name
from helpers.references import photos, shake, texts

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
LIMIT = 2e-5
SMALL = Architecture(embed_dim=24, image_size=32, layers=2, width=128, patch_size=16, text_width=128, text_layers=2)


def reference(architecture: Architecture = SMALL, *, quick_gelu: bool = True) -> Any:
    """open_clip's model of these sizes with shaken weights."""
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    return shake(open_clip.model.CLIP(**architecture.to_open_clip(quick_gelu=quick_gelu)))


def save_archive(model: Any, path: Path, image_size: int = 32) -> Path:
    """As OpenAI published its models: scripted, the weights in float16, with three constants."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, value in (("input_resolution", image_size), ("context_length", 77), ("vocab_size", 49408)):
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(value))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(tensor.half())
    torch.jit.script(model.half()).save(str(path))
    model.float()
    return path


def largest_difference(clip: CLIP, model: Any, quick_pixels: bool = True) -> float:
    """Of unit features, ours and the model's, with OpenAI's preprocessing by torchvision."""
    from open_clip import get_tokenizer, image_transform

    size = clip.config.vision.image_size
    preprocess = image_transform(size, is_train=False)
    with torch.no_grad():
        images = F.normalize(model.encode_image(torch.stack([preprocess(image) for image in photos()])), dim=-1)
        words = F.normalize(model.encode_text(get_tokenizer("ViT-B-32")(texts())), dim=-1)
        own = [F.normalize(clip.encode_image(photos()), dim=-1), F.normalize(clip.encode_text(texts()), dim=-1)]
    return max(float((a - b).abs().max()) for a, b in zip((images, words), own, strict=True))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_archive(reference(), tmp_path_factory.mktemp("openai") / "ViT-B-32.pt")


@pytest.fixture
def openai_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(architectures, "OPENAI_CACHE", tmp_path / "cache" / "clip")
    (tmp_path / "cache" / "clip").mkdir(parents=True)
    return tmp_path / "cache" / "clip"


def test_an_archive_is_read_by_path_and_agrees(tmp_path: Path) -> None:
    model = reference()
    clip = CLIP.from_pretrained(save_archive(model, tmp_path / "ViT-B-32.pt"))
    assert largest_difference(clip, model) < LIMIT
    assert clip.config.vision.activation == "quick_gelu"


def test_the_tensors_are_those_that_torch_reads(archive: Path) -> None:
    expected = torch.jit.load(str(archive), map_location="cpu").state_dict()
    found = read_torchscript(archive)
    assert set(found) == set(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize("name", [name for name in OPENAI_MODELS if name.startswith("ViT")])
def test_an_archive_is_found_by_the_name_that_people_type(
    openai_cache: Path, archive: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    shutil.copyfile(archive, openai_cache / OPENAI_MODELS[name].file)
    with caplog.at_level(logging.WARNING):
        clip = CLIP.from_pretrained(name)
    assert clip.source == name
    assert clip.digest == CLIP.from_pretrained(archive).digest
    assert "is not the file that OpenAI published" in caplog.text
    assert find_backbone(name, clip.digest) == name


def test_the_published_names_files_and_hashes_are_openai_s() -> None:
    pytest.importorskip("open_clip", reason="needs open_clip")
    from open_clip.pretrained import get_pretrained_url

    for name, model in OPENAI_MODELS.items():
        url = get_pretrained_url(
            name.replace("/", "-").removesuffix("@336px") + ("-336" if "@" in name else ""), "openai"
        )
        assert url.split("/")[-2:] == [model.sha256, model.file]


def test_a_name_that_is_not_in_openai_s_cache_is_looked_for_on_the_hub(
    openai_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="openai/clip-vit-base-patch16"):
        CLIP.from_pretrained("ViT-B/16", cache_dir=str(tmp_path))


def test_architectures_are_open_clip_s() -> None:
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    for name, architecture in ARCHITECTURES.items():
        for quick in (False, True):
            theirs = open_clip.get_model_config(name + QUICK * quick)
            if theirs is None:
                continue
            ours = architecture.to_open_clip(quick_gelu=quick)
            defaults = {"head_width": 64, "mlp_ratio": 4.0, "patch_size": None}
            assert ours["vision_cfg"] == {key: {**defaults, **theirs["vision_cfg"]}[key] for key in ours["vision_cfg"]}
            assert ours["text_cfg"] == theirs["text_cfg"]
            assert (ours["embed_dim"], ours["quick_gelu"]) == (theirs["embed_dim"], theirs.get("quick_gelu", False))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """An architecture of this name that takes no time."""
    monkeypatch.setattr(architectures, "ARCHITECTURES", {**ARCHITECTURES, "ViT-tiny": SMALL})
    monkeypatch.setattr("dca.backbones.clip.weights.ARCHITECTURES", {**ARCHITECTURES, "ViT-tiny": SMALL})
    return "ViT-tiny"


@pytest.mark.parametrize("form", ["pt", "wrapped", "safetensors"])
@pytest.mark.parametrize("quick_gelu", [False, True])
def test_a_plain_state_dict_with_a_named_architecture_agrees(
    tmp_path: Path, small: str, quick_gelu: bool, form: str
) -> None:
    model = reference(quick_gelu=quick_gelu)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    path = tmp_path / f"weights.{'safetensors' if form == 'safetensors' else 'pt'}"
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save({"epoch": 3, "state_dict": state} if form == "wrapped" else state, path)
    name = small + QUICK * quick_gelu
    clip = CLIP.from_pretrained(f"{name}:{path}")
    assert largest_difference(clip, model) < LIMIT
    assert clip.source == f"{name}:{path.name}"
    assert recorded_location(clip.digest) == f"{name}:{path}"
    assert CLIP.from_pretrained(find_backbone(clip.source, clip.digest)).digest == clip.digest
    assert _backbone_name(f"{name}:{path}") == clip.source


def test_openai_s_state_dict_with_a_named_architecture_says_its_activation(tmp_path: Path, small: str) -> None:
    model = reference(quick_gelu=True)
    state = {**model.state_dict(), "input_resolution": torch.tensor(32)}
    torch.save(state, tmp_path / "weights.pt")
    assert largest_difference(CLIP.from_pretrained(f"{small}:{tmp_path / 'weights.pt'}"), model) < LIMIT


def test_numbers_of_float16_under_a_name_that_means_gelu_are_not_taken_for_openai_s(tmp_path: Path, small: str) -> None:
    path = tmp_path / "weights.pt"
    torch.save({name: tensor.half().float() for name, tensor in reference().state_dict().items()}, path)
    with pytest.raises(UserError, match="QuickGELU") as caught:
        CLIP.from_pretrained(f"{small}:{path}")
    assert f"--architecture {small}-quickgelu" in caught.value.render("cli")
    assert CLIP.from_pretrained(f"{small}-quickgelu:{path}").config.vision.activation == "quick_gelu"


def test_a_bare_state_dict_without_a_name_says_how_to_name_it(tmp_path: Path) -> None:
    torch.save(reference().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UserError, match="which activation") as caught:
        CLIP.from_pretrained(tmp_path / "weights.pt")
    assert "--architecture NAME" in caught.value.render("cli")


def test_the_command_line_takes_a_file_and_its_architecture(
    tmp_path: Path, small: str, photos: Path, dca: Callable[..., Any]
) -> None:
    torch.save(reference().state_dict(), tmp_path / "weights.pt")
    model, named = tmp_path / "m.dca", ["--architecture", small, "--backbone", tmp_path / "weights.pt"]
    said = dca("fit", photos, *named, "--shots", 2, "-o", model, "-q")
    assert said.code == 0, said.err
    assert json.loads((model / "config.json").read_text())["backbone"]["source"] == f"{small}:weights.pt"
    image = next((photos / "test").rglob("*.png"))
    assert dca("predict", model, image).code == 0
    for wrong, part in (("ViT-B-61", "unknown architecture"), (small, "is none")):
        said = dca("fit", photos, "--architecture", wrong, "--backbone", "mini", "-o", tmp_path / "other.dca")
        assert said.code == 2
        assert part in said.err


# Hostile archives.


class Evil:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("owned",)


def write_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in {"m/constants.pkl": b"\x80\x02).", "m/code/x.py": b"import os", **files}.items():
            archive.writestr(name, content)
    return path


def scripted(*instructions: bytes) -> bytes:
    """A pickle of a scripted module with one attribute `t`, made by these instructions."""
    return b"\x80\x02c__torch__.M\nM\n)\x81}(X\x01\x00\x00\x00t" + b"".join(instructions) + b"ub."


def tensor(key: bytes = b"0", length: int = 4, size: int = 4, stride: int = 1, offset: int = 0) -> bytes:
    """Instructions that make a tensor of these values."""

    def number(value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    name = b"X" + struct.pack("<I", len(key)) + key
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + name + b"X\x03\x00\x00\x00cpu" + number(length) + b"tQ"
    )
    rest = number(offset) + b"(" + number(size) + b"t(" + number(stride) + b"t\x89ccollections\nOrderedDict\n)Rt"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"R"


FOUR = struct.pack("<4f", 1, 2, 3, 4)


def overlapping(path: Path) -> Path:
    """Two names for the same bytes in the file."""
    write_zip(path, {"m/data.pkl": scripted(tensor()), "m/data/0": FOUR * 50_000})
    content = path.read_bytes()
    start = content.rindex(b"PK\x01\x02")
    size = content.rindex(b"PK\x05\x06") - start
    entry = content[start : start + size]
    more = b"".join(entry.replace(b"m/data/0", b"m/data/%d" % n) for n in range(1, 9))
    end = bytearray(content[start + size :])
    files, length = struct.unpack_from("<H", end, 10)[0] + 8, struct.unpack_from("<I", end, 12)[0] + len(more)
    struct.pack_into("<HHI", end, 8, files, files, length)
    path.write_bytes(content[: start + size] + more + bytes(end))
    return path


def many_names(path: Path) -> Path:
    """A directory of 10 MB of names, which would take ten times its bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(40_000):
            archive.writestr(zipfile.ZipInfo(f"m/code/{n:0200}"), b"")
    return path


def dumped(path: Path) -> Path:
    return write_zip(path, {"m/data.pkl": pickle.dumps({"t": Evil()}, protocol=2)})


INNER = b"c__torch__.M\nM\n)\x81}X\x01\x00\x00\x00t"
HOSTILE: dict[str, Callable[[Path], Path]] = {
    "runs a function": dumped,
    "asks for another class": lambda p: write_zip(p, {"m/data.pkl": scripted(b"cbuiltins\neval\n)R")}),
    "calls by another instruction": lambda p: write_zip(
        p, {"m/data.pkl": b"\x80\x02(X\x05\x00\x00\x00ownedios\nmkdir\n."}
    ),
    "more values than the file has": lambda p: write_zip(
        p, {"m/data.pkl": scripted(tensor(length=10**12, size=10**12)), "m/data/0": FOUR}
    ),
    "a shape beyond its values": lambda p: write_zip(
        p, {"m/data.pkl": scripted(tensor(size=2**40, stride=0)), "m/data/0": FOUR}
    ),
    "changed after it was checked": lambda p: write_zip(
        p, {"m/data.pkl": scripted(tensor(), b"}X\x04\x00\x00\x00sizeM\xff\xff\x85sb"), "m/data/0": FOUR}
    ),
    "values that unpack to gigabytes": lambda p: write_zip(
        p, {"m/data.pkl": scripted(tensor(length=2**26, size=2**26)), "m/data/0": bytes(2**28)}, zipfile.ZIP_DEFLATED
    ),
    "a pickle that unpacks to gigabytes": lambda p: write_zip(
        p, {"m/data.pkl": b"\x80\x02" + b"]" * 2**28 + b"."}, zipfile.ZIP_DEFLATED
    ),
    "a memo of gigabytes": lambda p: write_zip(p, {"m/data.pkl": b"\x80\x02]r\xff\xff\xff\x7f."}),
    "a text of gigabytes": lambda p: write_zip(p, {"m/data.pkl": b"\x80\x02X\xff\xff\xff\x7fx."}),
    "files that overlap": overlapping,
    "a directory of many names": many_names,
    "modules in modules": lambda p: write_zip(
        p, {"m/data.pkl": b"\x80\x02" + INNER * 9999 + b"N" + b"sb" * 9999 + b"."}
    ),
    "one storage for ten thousand tensors": lambda p: write_zip(
        p, {"m/data.pkl": b"\x80\x02c__torch__.M\nM\n)\x81}(" + b"".join(
            b"X\x04\x00\x00\x00%04d" % n + tensor(length=4096, size=4096) for n in range(9000)
        ) + b"ub.", "m/data/0": FOUR * 1024}
    ),
    "damaged": lambda p: p.write_bytes(b"PK\x05\x06" + bytes(18)) and p,
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = HOSTILE[attack](tmp_path / "evil.pt")
    with pytest.raises(UserError) as caught:
        CLIP.from_pretrained(path)
    assert not (tmp_path / "owned").exists()
    assert "evil.pt" in str(caught.value)


LIMITED = """
import resource, sys
from pathlib import Path
from dca.backbones.clip import CLIP
from dca.core.errors import UserError

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
for path in sys.argv[1:]:
    try:
        CLIP.from_pretrained(path)
    except UserError as error:
        assert not isinstance(error.__cause__, MemoryError), path
        print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
@pytest.mark.slow
def test_hostile_archives_are_refused_within_400_mb(tmp_path: Path) -> None:
    paths = [attack(tmp_path / f"{n}.pt") for n, attack in enumerate(HOSTILE.values())]
    run = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["refused"] * len(HOSTILE)


def test_the_attacks_would_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own unpickler runs them, and reads the harmless twin of the others."""
    monkeypatch.chdir(tmp_path)
    pickle.load(io.BytesIO(pickle.dumps({"t": Evil()}, protocol=2)))
    assert (tmp_path / "owned").exists()
    harmless = write_zip(tmp_path / "harmless.pt", {"m/data.pkl": scripted(tensor()), "m/data/0": FOUR})
    assert read_torchscript(harmless)["t"].tolist() == [1, 2, 3, 4]
    assert MOST_PICKLE > 10 * 300_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B/32", "RN50"])
def test_archives_of_true_size_agree(openai_cache: Path, name: str) -> None:
    architecture = ARCHITECTURES[name.replace("/", "-")]
    model = reference(architecture)
    save_archive(model, openai_cache / OPENAI_MODELS[name].file, architecture.image_size)
    assert largest_difference(CLIP.from_pretrained(name), model) < LIMIT
