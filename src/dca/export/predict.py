"""Classify images with an exported model; needs only onnxruntime, pillow and numpy.

    python predict.py photo.jpg other.jpg
    python predict.py photos/ --top 3 --reject 0.05 -o labels.csv

`model.onnx` and `classes.json` are read from the folder of this file. In your own program:

    from predict import Model
    model = Model("path/to/this/folder")
    model.predict(["photo.jpg"])            # probabilities (1, C), columns as in classes.json
    model.predict_details(["photo.jpg"])    # and p-values for "none of these", and what sets of classes follow from
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

# The formats that are opened, and how many times the longer side of an image may be the shorter one.
FORMATS, MOST_ASPECT = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF"), 200
# Names of the files in folders that are taken for images.
SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
    ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm", ".avif", ".avifs",
)  # fmt: skip
NONE_OF_THESE = "none of these"
# Most images per batch, and most values that compare them with training images.
BATCH, MOST_VALUES = 32, 2**22
LOG_ERRORS = 3  # log severity of onnxruntime: errors only


class Predictions(NamedTuple):
    """What the model says of N images.

    probabilities: (N, C) float32. p_values: (N,) float64, small for images of none of the classes; None if the model
    cannot tell. ranks: (N, C), how many training images are less strange in their class than this one would be in each;
    None if the model cannot tell.
    """

    probabilities: NDArray[np.float32]
    p_values: NDArray[np.float64] | None
    ranks: NDArray[np.int32] | None


class Model:
    """An exported model.

    folder: holds `model.onnx` and `classes.json`. threads: of onnxruntime; 0 takes one per core.
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        folder = Path(folder)
        about = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
        self.name: str = about["name"]
        self.labels: list[Any] = about["labels"]
        self.inputs: list[dict[str, Any]] = about["inputs"]
        self.smallest_p_value: float | None = about["smallest_p_value"]
        self.set_images: int | None = about["set_images"]
        self.session = open_session(folder / "model.onnx", threads=threads)
        self.batch = max(1, min(BATCH, MOST_VALUES // max((self.set_images or 0) * len(self.labels), 1)))

    def predict(self, images: Sequence[str | Path | Image.Image]) -> NDArray[np.float32]:
        """Predict probabilities (N, C) of N images, columns in the order of `labels`."""
        return self.predict_details(images).probabilities

    def predict_details(self, images: Sequence[str | Path | Image.Image]) -> Predictions:
        """Predict everything that the model says of N images."""
        starts = range(0, len(images), self.batch)
        return join_predictions(
            [self._nothing(), *(self.predict_crops(self.crop(images[at : at + self.batch])) for at in starts)]
        )

    def _nothing(self) -> Predictions:
        """What is said of no image; onnxruntime takes at least one."""
        columns = len(self.labels)
        return Predictions(
            np.zeros((0, columns), np.float32),
            None if self.smallest_p_value is None else np.zeros(0),
            None if self.set_images is None else np.zeros((0, columns), np.int32),
        )

    def crop(self, images: Sequence[str | Path | Image.Image]) -> list[NDArray[np.uint8]]:
        """The crops of N images for each input, (N, S, S, 3); every image is decoded once."""
        opened = [open_image(image) for image in images]
        return [
            np.array([crop_image(rgb, given["preprocess"]) for rgb in opened], np.uint8).reshape(
                -1, *given["shape"][1:]
            )
            for given in self.inputs
        ]

    def predict_crops(self, crops: Sequence[NDArray[np.uint8]]) -> Predictions:
        """Predict images by the crops for each input, (N, S, S, 3)."""
        wanted = [given.name for given in self.session.get_outputs()]
        feeds = {given["name"]: crop for given, crop in zip(self.inputs, crops, strict=True)}
        found = dict(zip(wanted, self.session.run(wanted, feeds), strict=True))
        return Predictions(found["probabilities"], found.get("p_values"), found.get("ranks"))

    def require_rate(self, rate: float | None) -> None:
        """Raise ValueError if the model cannot say "none of these" at this rate of false rejections."""
        if rate is None:
            return
        if self.smallest_p_value is None:
            raise ValueError("this model cannot tell images of none of its classes: export one that was fitted with it")
        if 0 < rate < self.smallest_p_value:
            raise ValueError(f"no p-value of this model is below {self.smallest_p_value:.4f}: use a larger rate")

    def require_coverage(self, coverage: float | None) -> None:
        """Raise ValueError if the model cannot give sets of classes with this coverage."""
        if coverage is None:
            return
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage of {coverage:g}: give a number between 0 and 1, such as 0.9")
        if self.set_images is None:
            raise ValueError("this model cannot give sets of classes: export one that was fitted with an estimate")
        if coverage * (self.set_images + 1) > self.set_images + 1e-9:
            raise ValueError(f"a coverage of {coverage:g} is too much for {self.set_images} training images")


def join_predictions(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of several batches as one."""

    def join(columns: Sequence[Any]) -> Any:
        return None if columns[0] is None else np.concatenate(columns)

    probabilities, p_values, ranks = (join([part[n] for part in parts]) for n in range(3))
    return Predictions(probabilities, p_values, ranks)


def open_session(file: str | Path, *, threads: int = 0) -> Any:
    """Open an ONNX file with onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = LOG_ERRORS
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def open_image(image: str | Path | Image.Image) -> Image.Image:
    """Open and decode an image, as 8-bit RGB; raises for images that the library would refuse."""
    if not isinstance(image, Image.Image):
        Image.init()
        with Image.open(image, formats=[name for name in FORMATS if name in Image.OPEN]) as opened:
            if Image.MAX_IMAGE_PIXELS is not None and opened.width * opened.height > Image.MAX_IMAGE_PIXELS:
                raise ValueError(f"more than {Image.MAX_IMAGE_PIXELS // 10**6} million pixels")
            opened.load()
            return open_image(opened)
    if not 0 < max(image.size) <= MOST_ASPECT * min(image.size):
        raise ValueError(f"{image.width} x {image.height} pixels: a side is more than {MOST_ASPECT} times the other")
    return to_rgb(image)


def crop_image(rgb: Image.Image, preprocess: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Crop an image to an input of the model, uint8 (S, S, 3): resize the short side, cut out the centre."""
    size, resize, filtering = preprocess["size"], preprocess["resize"], Image.Resampling(preprocess["resample"])
    if resize is None:
        rgb = rgb.resize((size, size), filtering)
    else:
        short, long = min(rgb.size), max(rgb.size)
        scaled = int(resize * long / short)
        rgb = rgb.resize((resize, scaled) if rgb.width <= rgb.height else (scaled, resize), filtering)
    margins = ((rgb.width - size) / 2, (rgb.height - size) / 2)
    left, top = (round(margin) if preprocess.get("even") else math.floor(margin) for margin in margins)
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


def make_row(
    labels: Sequence[Any],
    path: str,
    found: Predictions,
    *,
    top: int = 1,
    reject: float | None = None,
    coverage: float | None = None,
    set_images: int | None = None,
) -> dict[str, Any]:
    """What is said of one image, the first of `found`, with the names that `dca predict --json` uses."""
    p = found.probabilities[0]
    order = np.argsort(-p, kind="stable")
    best = [{"label": str(labels[c]), "probability": float(p[c])} for c in order[:top]]
    row: dict[str, Any] = {"path": path, **best[0], "top": best}
    if found.p_values is not None:
        row["p_value"] = float(found.p_values[0])
        if reject is not None and row["p_value"] <= reject:
            row["label"] = NONE_OF_THESE
    if coverage is not None and found.ranks is not None and set_images is not None:
        kept = found.ranks[0] < coverage * (set_images + 1)
        kept[order[0]] = True
        row["set"] = [str(labels[c]) for c in order if kept[c]]
    return row


def list_images(paths: Sequence[str]) -> list[str]:
    """The files, with folders replaced by all images below them, hidden ones left out, in order."""
    files: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(path)
            continue
        for folder, inner, names in os.walk(path):
            inner[:] = sorted(name for name in inner if not is_hidden(name))
            shown = (name for name in sorted(names) if not is_hidden(name) and name.lower().endswith(SUFFIXES))
            files += [os.path.join(folder, name) for name in shown]
    return files


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to the system."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def predict_rows(model: Model, paths: Sequence[str], **options: Any) -> Iterator[dict[str, Any]]:
    """A row for every file, in order; one that cannot be read has `path` and `error`."""
    for path in paths:
        try:
            crops = model.crop([path])
        except Exception as error:  # decoders raise almost anything on bytes that are no image
            yield {"path": path, "error": str(error)}
            continue
        yield make_row(model.labels, path, model.predict_crops(crops), set_images=model.set_images, **options)


def list_columns(model: Model, top: int, coverage: float | None) -> list[str]:
    """Columns of a table, as `dca predict -o` has them."""
    more = [f"{name}_{n}" for n in range(2, min(top, len(model.labels)) + 1) for name in ("label", "probability")]
    optional = [["p_value"] * (model.smallest_p_value is not None), ["set"] * (coverage is not None)]
    return ["path", "label", "probability", *more, *optional[0], *optional[1], "error"]


def write_csv(rows: Iterator[dict[str, Any]], columns: Sequence[str], file: Any) -> int:
    """Write rows as a CSV table that is safe to open in a spreadsheet; returns how many images cannot be read."""
    writer, unreadable = csv.writer(file, lineterminator="\n"), 0
    writer.writerow(columns)
    for row in rows:
        unreadable += "error" in row
        cells = dict(row)
        for n, best in enumerate(row.get("top", ())[1:], 2):
            cells[f"label_{n}"], cells[f"probability_{n}"] = best["label"], best["probability"]
        writer.writerow([to_cell(cells.get(name)) for name in columns])
    return unreadable


def to_cell(value: Any) -> str:
    """A value for a CSV cell, with an apostrophe in front of text that a spreadsheet would run as a formula."""
    if isinstance(value, float):
        return f"{value:.6f}"
    text = "" if value is None else "; ".join(value) if isinstance(value, list) else str(value)
    risky = text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) and not re.fullmatch(r"[+-]\d+(\.\d+)?", text)
    return f"'{text}" if risky else text


def format_line(row: Mapping[str, Any]) -> str:
    """A row as a line of text."""
    best = [row, *row["top"][1:]]
    parts = [f"{row['path']}  " + "   ".join(f"{guess['label']}  {guess['probability']:.3f}" for guess in best)]
    if "p_value" in row:
        parts.append(f"p-value {row['p_value']:.3f}")
    if "set" in row:
        parts.append("{" + ", ".join(row["set"]) + "}")
    return make_visible("   ".join(parts))


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict the images on the command line; returns 1 if some of them cannot be read, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description="Classify images, and all images in folders.")
    parser.add_argument("images", nargs="+", help="image files and folders")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="name the N most probable classes")
    parser.add_argument(
        "--reject", type=float, metavar="P", help=f"say '{NONE_OF_THESE}' for images whose p-value is at most P"
    )
    parser.add_argument(
        "--set-coverage",
        type=float,
        metavar="C",
        help="also give the set of classes that holds the right one about so often",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write a CSV table")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--csv", action="store_true", help="print a CSV table")
    kind.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    model = Model(Path(__file__).resolve().parent)
    paths, columns = list_images(args.images), list_columns(model, args.top, args.set_coverage)
    try:
        if args.top < 1 or not paths:
            raise ValueError("--top takes 1 or more" if paths else "there are no images in these folders")
        model.require_rate(args.reject)
        model.require_coverage(args.set_coverage)
    except ValueError as error:
        parser.error(str(error))
    rows = predict_rows(model, paths, top=args.top, reject=args.reject, coverage=args.set_coverage)
    if args.output is not None:
        unfinished = f"{args.output}.partial"
        with open(unfinished, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            unreadable = write_csv(rows, columns, file)
        os.replace(unfinished, args.output)
        sys.stdout.write(f"{len(paths)} images in {make_visible(args.output)}; {unreadable} cannot be read\n")
        return 1 if unreadable else 0
    if args.csv:
        return 1 if write_csv(rows, columns, sys.stdout) else 0
    known, unreadable = [], 0
    for row in rows:
        if "error" in row:
            unreadable += 1
            sys.stderr.write(make_visible(f"{os.fspath(row['path'])}: {row['error']}") + "\n")
        elif not args.json:
            sys.stdout.write(format_line(row) + "\n")
        known.append(row)
    if args.json:
        sys.stdout.write(json.dumps(known, indent=2) + "\n")
    return 1 if unreadable else 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, e.g. `head`, has closed the pipe: nothing may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
