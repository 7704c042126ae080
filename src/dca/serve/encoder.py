"""The encoder of a server: many images at once, and on a CPU on all of its cores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from dca.methods.interface import Method
from dca.serve.model_view import Encoded

Pixels = NDArray[np.uint8]


class Encoder:
    """Turns pixels into features.

    On a CPU, torch divides every operation among the cores, and all of them wait for the slowest each time. Where other
    work wants the cores, too, as here, that costs a multiple. So each core gets a part of the images instead; only a
    single image is encoded by all cores together.
    """

    def __init__(self) -> None:
        self._cores = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._cores, "dca-encode", initializer=torch.set_num_threads, initargs=(1,))

    def __call__(self, method: Method, pixels: Sequence[Pixels]) -> list[Encoded]:
        """Features of images; pixels: uint8 (3, S, S) each."""
        parts = min(self._cores, len(pixels)) if method.clip.device.type == "cpu" else 1
        if parts < 2:
            return encode(method, pixels)
        size = -(-len(pixels) // parts)
        chunks = [pixels[start : start + size] for start in range(0, len(pixels), size)]
        done = self._pool.map(encode, [method] * len(chunks), chunks)
        return [image for part in done for image in part]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@torch.no_grad()
def encode(method: Method, pixels: Sequence[Pixels]) -> list[Encoded]:
    """Features of images in one pass; pixels: uint8 (3, S, S) each."""
    clip = method.clip
    batch = clip.preprocess.normalize(torch.from_numpy(np.stack(pixels)).to(clip.device))
    frozen = clip.encode_image(batch)
    own = [None] * len(pixels) if method.frozen_images else [row.clone() for row in method.encode(batch)]
    # Copies: a row of the batch would keep all of it in memory.
    return [Encoded(row.clone(), other) for row, other in zip(frozen, own, strict=True)]
