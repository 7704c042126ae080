"""Classify images with an exported model; needs only onnxruntime, pillow and numpy.

    python predict.py photo.jpg other.jpg
    python predict.py photos/*.jpg --json

`model.onnx` and `classes.json` are read from the folder of this file. In your own program:

    from predict import Model
    Model("path/to/this/folder").predict(["photo.jpg"])    # probabilities (1, C), columns as in classes.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

# The formats that are opened, and how many times the longer side of an image may be the shorter one.
FORMATS, MOST_ASPECT = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF"), 200
BATCH = 32
LOG_ERRORS = 3  # log severity of onnxruntime: errors only


class Model:
    """An exported model.

    folder: holds `model.onnx` and `classes.json`. threads: of onnxruntime; 0 takes one per core.
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        folder = Path(folder)
        about = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
        self.labels: list[Any] = about["labels"]
        self.preprocess: dict[str, Any] = about["preprocess"]
        self.session = open_session(folder / "model.onnx", threads=threads)

    def predict(self, images: Sequence[str | Path | Image.Image]) -> NDArray[np.float32]:
        """Predict probabilities (N, C) of N images, columns in the order of `labels`."""
        batches = [predict_batch(self.session, crops) for crops in iter_batches(images, self.preprocess)]
        return np.concatenate([np.zeros((0, len(self.labels)), np.float32), *batches])


def open_session(file: str | Path, *, threads: int = 0) -> Any:
    """Open an ONNX file with onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = LOG_ERRORS
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def predict_batch(session: Any, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Predict probabilities (B, C) of crops (B, S, S, 3)."""
    probabilities: NDArray[np.float32] = session.run(["probabilities"], {"images": crops})[0]
    return probabilities


def iter_batches(
    images: Sequence[str | Path | Image.Image], preprocess: Mapping[str, Any]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the images as crops (B, S, S, 3), at most `BATCH` per batch."""
    for start in range(0, len(images), BATCH):
        yield np.stack([crop_image(image, preprocess) for image in images[start : start + BATCH]])


def crop_image(image: str | Path | Image.Image, preprocess: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Crop an image to the input of the model, uint8 (S, S, 3): resize the short side, cut out the centre."""
    if not isinstance(image, Image.Image):
        Image.init()
        with Image.open(image, formats=[name for name in FORMATS if name in Image.OPEN]) as opened:
            if Image.MAX_IMAGE_PIXELS is not None and opened.width * opened.height > Image.MAX_IMAGE_PIXELS:
                raise ValueError(f"more than {Image.MAX_IMAGE_PIXELS // 10**6} million pixels")
            opened.load()
            return crop_image(opened, preprocess)
    if not 0 < max(image.size) <= MOST_ASPECT * min(image.size):
        raise ValueError(f"{image.width} x {image.height} pixels: a side is more than {MOST_ASPECT} times the other")
    rgb = to_rgb(image)
    size, resize, filtering = preprocess["size"], preprocess["resize"], Image.Resampling(preprocess["resample"])
    if resize is None:
        rgb = rgb.resize((size, size), filtering)
    else:
        short, long = min(rgb.size), max(rgb.size)
        scaled = int(resize * long / short)
        rgb = rgb.resize((resize, scaled) if rgb.width <= rgb.height else (scaled, resize), filtering)
    left, top = (rgb.width - size) // 2, (rgb.height - size) // 2
    return np.asarray(rgb.crop((left, top, left + size, top + size)))


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to 8-bit RGB: EXIF rotation applied, transparent parts white, 16-bit grey scaled to 8 bits."""
    with suppress(ValueError, SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError):  # damaged EXIF data
        image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(scale_to_8_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def scale_to_8_bits(values: NDArray[Any], mode: str) -> NDArray[np.uint8]:
    """Scale grey values of more than 8 bits to 0..255: by the range of the mode that holds them, else by their own."""
    wide = np.nan_to_num(values.astype(np.float64))
    low, high = float(wide.min()), float(wide.max())
    ranges = (65535.0,) if mode.startswith("I;16") else (255.0, 65535.0) if mode == "I" else (1.0, 255.0, 65535.0)
    for top in ranges:
        if low >= 0 and high <= top:
            low, high = 0.0, top
            break
    return np.rint((wide - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def make_visible(text: str) -> str:
    """Text for one line of a terminal: what it would obey, or not show, is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict the images on the command line; returns 1 if some of them cannot be read."""
    parser = argparse.ArgumentParser(description="Classify images.")
    parser.add_argument("images", nargs="+", help="image files")
    parser.add_argument("--json", action="store_true", help="print all probabilities as JSON")
    args = parser.parse_args(arguments)
    model = Model(Path(__file__).resolve().parent)
    rows, unreadable = [], 0
    for path in args.images:
        try:
            (probs,) = model.predict([path])
        except Exception as error:  # decoders raise almost anything on bytes that are no image
            unreadable += 1
            sys.stderr.write(make_visible(f"{os.fspath(path)}: {error}") + "\n")
            continue
        best = int(probs.argmax())
        rows.append({"path": path, "label": model.labels[best], "p": float(probs[best]), "all": probs.tolist()})
    if args.json:
        sys.stdout.write(json.dumps({"labels": model.labels, "items": rows}, indent=2) + "\n")
    else:
        lines = (make_visible(f"{row['path']}  {row['label']}  {row['p']:.3f}") for row in rows)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
