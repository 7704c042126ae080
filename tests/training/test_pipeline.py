"""Images in batches: every one in its place, on a CPU as ahead of a GPU, whatever the number of cores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dca.backbones.clip import CLIP
from dca.backbones.encoder import MOST_ON_CPU
from dca.images.crops import view_crops
from dca.images.decode import Unreadable, open_image
from dca.images.hashing import sha256_of
from dca.training import pipeline
from dca.training.pipeline import Source, choose_batch_size, encode_batches


@pytest.fixture
def images(photos: Path, tmp_path: Path) -> list[Path]:
    """All 30 test images, and one file that is none, in the middle."""
    (tmp_path / "bad.jpg").write_text("hello")
    found = sorted((photos / "test").rglob("*.png"))
    return [*found[:10], tmp_path / "bad.jpg", *found[10:]]


def literal(clip: CLIP, images: list[Path]) -> list[torch.Tensor | None]:
    """Features of every image, one after the other; None for one that cannot be read."""
    rows: list[torch.Tensor | None] = []
    with torch.no_grad():
        for image in images:
            bad = image.name == "bad.jpg"
            rows.append(None if bad else clip.encode_image(clip.preprocess([open_image(image)]))[0])
    return rows


def require_equal(batches: Iterator[Any], expected: list[torch.Tensor | None], size: int) -> None:
    listed, number = list(batches), 0
    assert [len(batch.outcomes) for batch in listed[:-1]] == [size] * (len(listed) - 1)
    for batch in listed:
        rows = iter(batch.result if batch.result is not None else [])
        for outcome in batch.outcomes:
            if expected[number] is None:
                assert isinstance(outcome, Unreadable)
            else:
                torch.testing.assert_close(next(rows), expected[number], rtol=1e-5, atol=1e-5)
            number += 1
        assert next(rows, None) is None
    assert number == len(expected)


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_image_is_encoded_in_its_place(clip: CLIP, images: list[Path], size: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sources = (Source(image, clip.preprocess.crop) for image in images)
        require_equal(encode_batches(sources, clip.encode_image, clip, size=size), literal(clip, images), size)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("listed", [True, False])
def test_a_gpu_is_given_the_same_crops_as_a_cpu(clip: CLIP, images: list[Path], listed: bool) -> None:
    """Decoded ahead, from a list or a stream, and by the thread that encodes; crops that are there already stay."""
    sources = [Source(image, clip.preprocess.crop) for image in images]
    ready = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    sources[3] = Source(images[3], ready)
    ahead = list(pipeline._decode_ahead(sources if listed else iter(sources)))
    here = [pipeline.decode_source(source) for source in sources]
    assert ahead[3] is not None
    for one, other in zip(ahead, here, strict=True):
        assert one == other if isinstance(one, Unreadable) else torch.equal(one, torch.as_tensor(other))


def test_only_a_few_images_are_decoded_ahead(clip: CLIP, images: list[Path]) -> None:
    opened = list[int]()

    def crop(image: Any) -> Any:
        opened.append(1)
        return clip.preprocess.crop(image)

    batches = encode_batches([Source(images[0], crop)] * 400, clip.encode_image, clip, size=4)
    next(batches)
    assert len(opened) <= 4 * (2 + 2 * (torch.get_num_threads() + 1) + 1)
    batches.close()


def test_an_error_of_the_crop_is_not_hidden(clip: CLIP, images: list[Path]) -> None:
    def crop(image: Any) -> Any:
        raise RuntimeError("our bug")

    for count in (1, 40):
        with pytest.raises(RuntimeError, match="our bug"):
            list(encode_batches([Source(images[0], crop)] * count, clip.encode_image, clip, size=4))


def test_a_batch_holds_all_views_of_its_images(clip: CLIP, images: list[Path]) -> None:
    opened = [(image, open_image(image)) for image in images if image.name != "bad.jpg"][:5]
    crops = [partial(view_crops, size=32, views=range(3), content=sha256_of(image)) for image, _ in opened]
    sources = [Source(image, crop) for (image, _), crop in zip(opened, crops, strict=True)]
    batches = list(encode_batches(sources, lambda pixels: pixels, clip, size=2))
    assert [tuple(batch.result.shape) for batch in batches if batch.result is not None] == [
        (6, 3, 32, 32),
        (6, 3, 32, 32),
        (3, 3, 32, 32),
    ]
    expected = torch.cat([view_crops(image, 32, range(3), sha256_of(path)) for path, image in opened])
    assert torch.equal(
        torch.cat([batch.result for batch in batches if batch.result is not None]), clip.preprocess.normalize(expected)
    )


def test_bits_do_not_depend_on_the_number_of_cores(clip: CLIP, images: list[Path]) -> None:
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        sources = [Source(image, clip.preprocess.crop) for image in images if image.name != "bad.jpg"]
        batches = encode_batches(sources, clip.encode_image, clip, size=4)
        found.append(torch.cat([batch.result for batch in batches if batch.result is not None]))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_small_images_come_in_large_batches_on_a_gpu(clip: CLIP) -> None:
    for side, expected in ((32, 1024), (112, 512), (448, 128)):
        gpu: Any = SimpleNamespace(device=torch.device("cuda"), preprocess=SimpleNamespace(size=side))
        assert choose_batch_size(gpu) == expected
    assert choose_batch_size(clip) == MOST_ON_CPU
