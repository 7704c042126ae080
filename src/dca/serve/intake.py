"""From an image file to its features: decoded in a process of its own, then encoded in batches with others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from dca.backbones.encoder import Encoder
from dca.methods.base import Method
from dca.serve.decoder import DecodedImage, DecoderPool
from dca.serve.encoder import Batcher, ImageFeatures, Pixels, encode_images
from dca.serve.options import ServeOptions
from dca.serve.predictions import ServedModel, ServedPrediction


class Predictor(Protocol):
    """What has a current model; None where there is none yet."""

    @property
    def current(self) -> ServedModel | None:
        """The model that predicts."""


@dataclass(frozen=True)
class EncodedImage:
    """What is known of an image file. suffix: of such a file. thumbnail: a small JPEG."""

    width: int
    height: int
    suffix: str
    thumbnail: bytes
    features: ImageFeatures


@dataclass(frozen=True)
class _Arrival:
    """An image that waits for the encoder, and for the prediction of whose model; None for features alone."""

    pixels: Pixels
    predictor: Predictor | None


class Intake:
    """The way from image files to features, for one backbone; several projects may share it.

    Args:
        encoder: The backbone.
        options: Limits.
        method: A method that changes the image tower; None for the frozen one.
        on_batch: Called with the number of images of each batch.

    Attributes:
        uploads: Limits how many images are decoded and encoded at a time.
    """

    def __init__(
        self,
        encoder: Encoder,
        options: ServeOptions,
        method: Method | None = None,
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.encoder, self._method = encoder, method
        self.uploads = asyncio.Semaphore(options.uploads)
        self._decoders = DecoderPool(encoder.preprocess, options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dca-batch")
        self._batcher = Batcher(self._process, options.batch, self._thread, on_batch)

    @property
    def decoders(self) -> int:
        """Number of decoding processes that are ready or at work."""
        return self._decoders.count

    async def start(self) -> None:
        """Start the decoding processes and the queue."""
        await asyncio.gather(self._decoders.start(), self._batcher.start())

    async def stop(self) -> None:
        """End all processes and threads."""
        await self._batcher.stop()
        await self._decoders.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def decode(self, data: bytes) -> DecodedImage:
        """Decode an image file; raises RequestError if it cannot be."""
        return await self._decoders.decode(data)

    async def encode(self, data: bytes, predictor: Predictor | None = None) -> tuple[EncodedImage, ServedPrediction]:
        """Decode and encode an image file, and predict its class with the current model of the predictor, if any.

        Raises:
            RequestError: If it cannot be decoded.
        """
        return await self.encode_decoded(await self._decoders.decode(data), predictor)

    async def encode_decoded(
        self, decoded: DecodedImage, predictor: Predictor | None = None
    ) -> tuple[EncodedImage, ServedPrediction]:
        """As `encode`, of an image that is decoded."""
        features, prediction = await self._batcher.submit(_Arrival(decoded.pixels, predictor))
        image = EncodedImage(decoded.width, decoded.height, decoded.suffix, decoded.thumbnail, features)
        return image, prediction

    def _process(self, arrivals: Sequence[_Arrival]) -> list[tuple[ImageFeatures, ServedPrediction]]:
        """Encode images together, and predict those together that one model predicts."""
        features = encode_images(self.encoder, [arrival.pixels for arrival in arrivals], self._method)
        models = [arrival.predictor.current if arrival.predictor else None for arrival in arrivals]
        found: list[ServedPrediction] = [ServedPrediction.missing()] * len(arrivals)
        for model in {id(model): model for model in models if model is not None}.values():
            rows = [n for n, own in enumerate(models) if own is model]
            for n, prediction in zip(rows, model.predict([features[n] for n in rows]), strict=True):
                found[n] = prediction
        return list(zip(features, found, strict=True))
