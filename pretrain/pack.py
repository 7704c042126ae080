"""A pack: for each source SOURCE.bin, image files end to end, and SOURCE.jsonl.gz, one line per image.

A line gives `id`, `off` and `len` (position of the image file in SOURCE.bin), and what is known about
the image: `names` (most usual first), `captions`, `wnid`, `split`, `auto` (a sentence made from a list
of its objects). `pack_folder` makes a source from any folder of images.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from dca.core.errors import UserError
from dca.images.decode import to_rgb

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
SHORT, LONG, QUALITY = 72, 96, 80


@dataclass(frozen=True)
class Record:
    """One image of a pack and what is known about it."""

    id: str
    offset: int
    length: int
    names: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    wnid: str = ""
    split: str = ""
    auto: str = ""


def sources(pack: Path) -> list[str]:
    """Names of the sources in the folder."""
    found = sorted(p.name.removesuffix(".jsonl.gz") for p in pack.glob("*.jsonl.gz"))
    return [name for name in found if (pack / f"{name}.bin").is_file()]


def read_index(pack: Path, source: str, leave_out: frozenset[str] = frozenset()) -> list[Record]:
    """Records of a source, without those whose id is to be left out."""
    with gzip.open(pack / f"{source}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [_record(row) for row in rows if row["id"] not in leave_out]


def _record(row: dict[str, Any]) -> Record:
    return Record(
        id=row["id"],
        offset=row["off"],
        length=row["len"],
        names=tuple(row.get("names", ())),
        captions=tuple(row.get("captions", ())),
        wnid=row.get("wnid", ""),
        split=row.get("split", ""),
        auto=row.get("auto", ""),
    )


def read_leave_out(path: str) -> frozenset[str]:
    """Ids of a JSON object's keys or of a JSON list; none for an empty path."""
    return frozenset(json.loads(Path(path).read_text(encoding="utf-8"))) if path else frozenset()


def shrink(image: Image.Image) -> Image.Image:
    """RGB with a short side of at most 72 px and the long side cut to the middle 96 px."""
    image = to_rgb(image)
    scale = min(1.0, SHORT / min(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    width, height = (min(side, round(min(size) * LONG / SHORT)) for side in size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def folder_rows(folder: Path, captions: Path | None) -> Iterator[dict[str, Any]]:
    """What is known about the images of a folder.

    captions: JSONL of {"file": ..., "names": [...], "captions": [...]}, files relative to the
    folder. Without it, images are in one sub-folder per name.
    """
    if captions is not None:
        with captions.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())
        return
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.parent != folder:
            name = path.parent.name.replace("_", " ").lower()
            yield {"file": str(path.relative_to(folder)), "names": [name]}


def pack_folder(folder: Path, captions: Path | None, pack: Path, source: str) -> int:
    """Write a folder of images as a source of the pack; returns the number of images."""
    pack.mkdir(parents=True, exist_ok=True)
    images, index = pack / f"{source}.bin", pack / f"{source}.jsonl.gz"
    parts = [p.with_name(p.name + ".part") for p in (images, index)]
    count, problems = 0, []
    with parts[0].open("wb") as blob, gzip.open(parts[1], "wt", encoding="utf-8") as lines:
        for row in folder_rows(folder, captions):
            try:
                with Image.open(folder / row["file"]) as image:
                    data = _encode(shrink(image))
            except (OSError, ValueError) as error:
                problems.append(f"{row['file']}: {error}")
                continue
            known = {k: v for k, v in row.items() if k != "file"}
            place = {"id": f"{source}/{count}", "off": blob.tell(), "len": len(data), "path": row["file"]}
            lines.write(json.dumps(place | known, ensure_ascii=False) + "\n")
            blob.write(data)
            count += 1
    if not count:
        hint = "put images into one sub-folder per name, or describe them with --captions"
        raise UserError(f"{folder}: no image could be read", details=problems, hint=hint)
    for part, final in zip(parts, (images, index), strict=True):
        part.replace(final)
    return count


def _encode(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "WEBP", quality=QUALITY, method=2)
    return out.getvalue()


def read_images(pack: Path, source: str, records: Iterable[Record]) -> Iterator[Image.Image]:
    """Images of the records, in their order."""
    with (pack / f"{source}.bin").open("rb") as blob:
        for record in records:
            blob.seek(record.offset)
            yield Image.open(io.BytesIO(blob.read(record.length))).convert("RGB")
