"""The screen at the end of `dca fit`."""

from __future__ import annotations

import shlex
from typing import Any

from dca.cli.common import percent, pictures_line
from dca.core.choices import DEFAULT_METHOD
from dca.core.wording import bytes_text, counted, seconds_text

Result = dict[str, Any]
MOST_LABELS = 5
# Below this size a backbone sees too little for real photos.
REAL_WORK = 200


def summary(result: Result, model: str, data: str = "DATA") -> list[str]:
    """The result of a run as lines of text. model: folder of the model. data: where the images are, as it was given."""
    found = f"{result['classes']} classes, {counted(result['images'], 'training image')} ({_taken(result)})"
    corrected = result.get("corrections", 0)  # absent in runs of earlier versions
    public = f"recognised as {result['public']} ({result['split']}): settings published for it apply"
    trained = result["trained_parameters"]
    did = f"trained {counted(trained, 'parameter')}" if trained else "fitted"
    seconds, size = seconds_text(result["seconds"]), bytes_text(result["checkpoint_bytes"])
    return [
        _backbone(result),
        f"{result['dataset']}: {found}{f', {corrected:,} of them corrected in dca serve' if corrected else ''}",
        *([public] if result["public"] else []),
        *_accuracies(result),
        *_findings(result["findings"], data),
        f"{did} with {result['method']} in {seconds}; model {model} ({size})",
        *([pictures_line([f"{model}/{name}" for name in drawn])] if (drawn := result.get("pictures")) else []),
        f"next  dca predict {shlex.quote(model)} IMAGE...",
        f"      dca eval {shlex.quote(model)} FOLDER",
    ]


def _backbone(result: Result) -> str:
    """The backbone and its size, and a better one if it is small."""
    line = f"{result['backbone']}, {result['image_size']} px"
    if result["image_size"] >= REAL_WORK:
        return line
    return f"{line}: for trying things out; for real work: --backbone vit-b-16"


def _taken(result: Result) -> str:
    """Which of the training images were taken."""
    if result["shots"]:
        return f"{result['shots']} per class"
    if result["protocol"] == "base-to-new":
        return "those of the base classes"
    if result["draw"]:
        return f"those of {result['draw']}"
    return f"all but the {result['test_images']:,} held out" if result["held_out"] else "all of them"


def _accuracies(result: Result) -> list[str]:
    """The estimated accuracy, and the accuracy on each target; zero-shot CLIP beside both."""
    if "comparison" in result:
        return _compared(result["comparison"])
    lines = _estimated(result)
    if not result["targets"] and not lines:
        ways = "put some into DATA/test/<class>/, or use --estimate or --hold-out 0.2"
        return [f"accuracy not measured: no test images ({ways})"]
    for row in result["targets"]:
        where = f" of {row['name']}" if result["protocol"] != "few-shot" else ""
        gain = 100 * (row["accuracy"] - row["zero_shot_accuracy"])
        lines += [
            f"accuracy on {counted(row['test_images'], 'test image')}{where}",
            f"  zero-shot CLIP  {percent(row['zero_shot_accuracy']):>7}",
            f"  {result['method']:<14}  {percent(row['accuracy']):>7}   ({gain:+.1f} points)",
        ]
        if gain < 0:
            lines.append("  zero-shot CLIP was better here: try more photos per class, or another --backbone")
    if "harmonic_mean" in result:
        lines.append(f"harmonic mean of base and new  {percent(result['harmonic_mean'])}")
    return lines


def _compared(rows: list[Result]) -> list[str]:
    """Zero-shot CLIP and the methods of a comparison on the same test images, with the time of each fit."""
    lines = [f"accuracy on {counted(rows[0]['test_images'], 'test image')}"]
    for row in rows:
        name = {"zero_shot": "zero-shot CLIP", DEFAULT_METHOD: f"{DEFAULT_METHOD} (default)"}.get(row["method"])
        line = f"  {name or row['method']:<21}  {percent(row['accuracy']):>7}"
        if row is not rows[0]:
            gain = f"({100 * (row['accuracy'] - rows[0]['accuracy']):+.1f} points)"
            line += f"   {gain:<14}   {seconds_text(row['seconds'])}"
        lines.append(line)
    return lines


def _estimated(result: Result) -> list[str]:
    """The accuracy that was estimated on the training images, if it was."""
    found = result.get("estimate")
    if not found:
        return []
    ends = f"{100 * found['low']:.1f} to {100 * found['high']:.1f}"
    known = found["zero_shot_accuracy"]
    how = f"{found['how']} on {counted(found['n'], 'training image')}"
    lines = [f"estimated accuracy on new images, mean over classes ({how})"]
    if known is not None:
        lines.append(f"  zero-shot CLIP  {percent(known):>7}")
    return [*lines, f"  {result['method']:<14}  {percent(found['accuracy']):>7}   (95 % interval: {ends})"]


def _findings(found: Result, data: str) -> list[str]:
    """What the fit found out about the photos at `data`."""
    lines = [f"note: {note}" for note in found["notes"]]
    more = found["more_images"]
    if more and 100 * more["gain"] >= 0.5:
        lines.append(f"more photos: {more['shots']} per class would bring about {_points(more['gain'])}")
    if found["confused"]:
        pairs = [f"{' and '.join(row['labels'])} ({counted(row['images'], 'image')})" for row in found["confused"]]
        lines.append(f"often confused: {', '.join(pairs)}")
    doubtful = found["doubtful_labels"]
    if doubtful:
        command = f"dca check-labels {shlex.quote(data)}"
        lines.append(f"labels to check: {counted(len(doubtful), 'image')}; all of them: {command}")
        lines += [
            f"  {row['image']}: is it {row['suggested']}? (probability {row['probability']:.2f}; "
            f"{row['label']} {row['own']:.2f})"
            for row in doubtful[:MOST_LABELS]
        ]
    return lines


def _points(fraction: float) -> str:
    """A change of the accuracy in whole points.

    >>> _points(0.013), _points(0.04)
    ('+1 point', '+4 points')
    """
    whole = round(100 * fraction)
    return f"{whole:+d} point{'' if abs(whole) == 1 else 's'}"
