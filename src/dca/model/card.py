"""README.md of a saved model: what it is, how it was made, how to use it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import dca
from dca.backbones.sources import hub_id
from dca.core.text import normalize_name, percent
from dca.model.records import LIBRARY, ModelRecord

# Where a model is, in the card of a model that is not on the hub.
PLACEHOLDER = "path/to/this/folder"


def model_card(record: ModelRecord) -> str:
    """Render the card as Markdown with the hub's header."""
    members = record.backbone.members()
    bases = [base for base in (hub_id(member["source"]) for member in members) if base]
    names = [member["source"] for member in members]
    title = record.results.get("dataset") or "Image classifier"
    lines = [
        "---",
        f"library_name: {LIBRARY}",
        "pipeline_tag: image-classification",
        *([f"base_model: {bases[0] if len(bases) == 1 else json.dumps(bases)}"] if bases else []),
        f"tags: [clip, few-shot, {record.method}]",
        *_model_index(record, f"{title} ({record.method})"),
        "---",
        "",
        f"# {title}: {len(record.labels)} classes, {record.method} on {' and '.join(names)}",
        "",
        f"A few-shot image classifier: {_describe_shots(record)}, seed {record.problem.seed}. The folder holds "
        f"only what was learned; {'its encoder is' if len(members) == 1 else 'its encoders are'} found by name and "
        "checked by hash.",
        *_accuracy_table(record),
        *_describe_estimate(record),
        *_list_changes(record),
        "",
        "```python",
        "from dca import Classifier",
        f'model = Classifier.from_pretrained("{PLACEHOLDER}")',
        'model.predict("photo.jpg")',
        "```",
        "",
        f"Classes: {', '.join(map(str, record.labels))}.",
        "",
        *(f"- {line}" for line in record.backbone.describe_members()),
        "",
        f"Backbone sha256 {record.backbone.digest}; dca {dca.__version__}; options in config.json.",
        "",
    ]
    return "\n".join(lines)


def _model_index(record: ModelRecord, title: str) -> list[str]:
    """The figures in the hub's format, `model-index`; empty if there are none. JSON values are YAML."""
    results = []
    if (accuracy := record.results.get("accuracy")) is not None:
        name = str(record.results.get("dataset") or "test images")
        results.append(_index_result(name, "test", "Accuracy", accuracy))
    if record.estimate:
        metric = f"Accuracy, estimated by {record.estimate.how}"
        results.append(_index_result("training images", "train", metric, record.estimate.accuracy))
    index = [{"name": title, "results": results}]
    return [f"model-index: {json.dumps(index, ensure_ascii=False)}"] if results else []


def _index_result(dataset: str, split: str, metric: str, value: float) -> dict[str, Any]:
    """One figure of a `model-index`; the value is a fraction."""
    slug = normalize_name(dataset).replace(" ", "-") or "images"
    return {
        "task": {"type": "image-classification", "name": "Image Classification"},
        "dataset": {"type": slug, "name": dataset, "split": split},
        "metrics": [{"type": "accuracy", "name": metric, "value": value}],
    }


def _describe_shots(record: ModelRecord) -> str:
    """How many training images the classes have."""
    counts = sorted(set(Counter(image.label for image in record.training_images).values())) or [record.problem.shots]
    numbers = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{numbers} training image{'' if counts == [1] else 's'} per class"


def _accuracy_table(record: ModelRecord) -> list[str]:
    """A table of accuracies; empty if there were no test images."""
    results = record.results
    figures = [
        f"| {label} | {percent(results[key])} |"
        for key, label in (("zero_shot_accuracy", "zero-shot CLIP"), ("accuracy", f"this model ({record.method})"))
        if results.get(key) is not None
    ]
    n = results.get("test_images")
    return ["", f"| on {n or 'the'} test images | accuracy |", "|---|---|", *figures] if figures else []


def _describe_estimate(record: ModelRecord) -> list[str]:
    """The estimated accuracy, and what it cannot tell; empty without it."""
    found = record.estimate
    if found is None:
        return []
    return ["", " ".join([f"Estimated accuracy on new images, mean over classes: {found}.", *found.caveats()])]


def _list_changes(record: ModelRecord) -> list[str]:
    """What was done to classes and head since the fit; empty if nothing was."""
    if not record.lineage:
        return []
    unmeasured = "" if record.results.get("accuracy") is not None else "; the accuracy has not been measured since"
    return ["", f"Changed after the fit{unmeasured}:", "", *(f"- {change}" for change in record.lineage)]
