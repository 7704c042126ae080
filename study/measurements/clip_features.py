"""Methods over frozen features, on precomputed features of a real CLIP.

    python study/measurements/clip_features.py [--data FOLDER] [--shots 1,2,4,8,16] [--json FILE]
    python study/measurements/clip_features.py --show study/clip_features.json --page docs/methods-research.md

FOLDER holds safetensors files of unit features of OpenAI's ViT-B/32 for Caltech101, Flowers102 and
Oxford-IIIT Pets: test, val, and training sets of 1 to 16 shots, whose rows are means over augmented
views; and text features of "a NAME" for the names of LVIS. Every head is fitted on the training rows
and selects on min(shots, 4) validation rows per class. Without text features the methods run without
their text part. DCA's head is measured at the given texts: one sentence "a NAME" per class stands in for the trained
prompts, which need the towers. Prints test accuracy in percent, as Markdown; --json also writes the figures to a file,
--show prints those of such a file, and --page puts the tables between their marks on a page.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from paired import add_page_options, print_tables
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Ability
from dca.core.files import read_json, write_json
from dca.datasets.draws import draw_positions
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.methods.shared import gaussian
from dca.methods.shared.center import Center, choose_center
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.heads import MahalanobisHead
from dca.training.loop import Trainer

SCRIPT = "study/measurements/clip_features.py"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "clip_features"
DATASETS = {"caltech101": "Caltech101", "oxford_flowers": "Flowers102", "oxford_pets": "OxfordPets"}
SHOTS = (1, 2, 4, 8, 16)
# One view: the given rows are means over views already.
METHODS: dict[str, dict[str, Any]] = {
    "closed_form": {},
    "linear_probe": {},
    "tip_adapter": {"views": 0},
    "tip_adapter_f": {"views": 0, "train_views": 1},
    "gda": {"views": 0},
    "proker": {"views": 0},
    "lp_plus_plus": {"views": 0},
}
# γ1 and γ2 that were chosen on validation images with the embedded model: those of the models of study/.
MINI_GAMMAS = 100.0, 50.0
WITH_TEXT: dict[str, dict[str, Any]] = {"zero_shot": {}, **METHODS, "clap": {"views": 1}}


class Given:
    """Stands in for a backbone: images are given as features, and so are the texts."""

    abilities = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    label_names = ()

    def __init__(self, text: Tensor) -> None:
        self.text, self.feature_dim = text, text.shape[1]
        self.tau, self.device = 100.0, torch.device("cpu")

    @property
    def members(self) -> tuple[Given]:
        """Itself."""
        return (self,)

    def encode_image(self, features: Tensor) -> Tensor:
        """The features themselves."""
        return features

    def encode_text(self, sentences: list[str]) -> Tensor:
        """One given vector per class."""
        assert len(sentences) == len(self.text)
        return self.text


@dataclass
class Rows:
    """Features and labels as a method's support; augmented views are the same rows again."""

    features: Tensor
    labels: Tensor
    validation: Rows | None = None

    @property
    def groups(self) -> Tensor:
        """Every row for itself: near-copies are not known."""
        return torch.arange(len(self.labels))

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0, crop_low: float = 0.08) -> Tensor:
        """`encode` of all rows, once for each view."""
        with torch.no_grad():
            return encode(self.features).repeat(max(views, 1), 1)

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = 0.08) -> Tensor:
        """The rows: a stored feature has no mirror image."""
        assert not mirrored
        return self.features.repeat(max(views, 1), 1)

    def only(self, classes: list[int]) -> Rows:
        """The rows of some classes, numbered anew."""
        place = {old: new for new, old in enumerate(classes)}
        keep = torch.tensor([int(y) in place for y in self.labels])
        labels = torch.tensor([place[int(y)] for y in self.labels[keep]])
        return Rows(self.features[keep], labels)


def split_rows(tensors: dict[str, Tensor], shots: int, classes: list[int] | None = None) -> tuple[Rows, Rows]:
    """Training rows with their few validation rows, and test rows."""

    def rows(name: str) -> Rows:
        every = Rows(F.normalize(tensors[f"{name}_features"].float(), dim=-1), tensors[f"{name}_labels"].long())
        return every if classes is None else every.only(classes)

    train, val = rows(f"train{shots}"), rows("val")
    few = torch.tensor(draw_positions(val.labels.tolist(), min(shots, 4), random.Random(1)))
    train.validation = Rows(val.features[few], val.labels[few])
    return train, rows("test")


def fit_method(name: str, settings: dict[str, Any], text: Tensor, problem: Problem, train: Rows, test: Rows) -> float:
    """Test accuracy of one method, fitted as `dca fit` fits it."""
    kind = get_method(name)
    method = kind.build(Given(text), problem, kind.Options(**settings))  # type: ignore[arg-type]
    if method.trains_on == "features":
        Trainer(method, train, method.options, seed=1).run()  # type: ignore[arg-type]
    method.finish(train)  # type: ignore[arg-type]
    method.build_head()
    with torch.no_grad():
        return measure_accuracy(method.classify(method.encode(test.features)), test)


def measure_accuracy(scores: Tensor, test: Rows) -> float:
    """Percent of rows whose highest score is at their label."""
    return 100 * float((scores.argmax(dim=1) == test.labels).double().mean())


def measure_heads(train: Rows, test: Rows, shots: int, classes: int) -> dict[str, float]:
    """Test accuracy of each Gaussian head; DCA's takes its γ by shots."""
    grouped = ClassFeatures.group(train.features.double(), train.labels, classes)
    heads = {name: head for name, head in gaussian.HEADS.items() if not name.startswith("DCA")}
    heads["DCA (γ by shots)"] = gaussian.fecam_gaussian(*gaussian.paper_gammas(shots))
    heads["DCA (γ 100, 50)"] = gaussian.fecam_gaussian(*MINI_GAMMAS)
    found = {}
    for name, head in heads.items():
        found[name] = measure_accuracy(gaussian.log_likelihoods(test.features.double(), grouped, head), test)
    return found


def measure_dca_heads(train: Rows, test: Rows, text: Tensor, shots: int, tau: float = 100.0) -> dict[str, float]:
    """Test accuracy of DCA's head at untrained texts (C, D), by centre and γ; the last row is the default."""
    u, paper = text[None], gaussian.paper_gammas(shots)
    grouped = ClassFeatures.group(train.features, train.labels, len(text))
    chosen = choose_center(u, train.features, train.labels, train.groups, shots=shots, tau=tau)
    heads: dict[str, tuple[Center, tuple[float, float]]] = {
        "DCA's head, about the text, γ 100, 50": ("text", MINI_GAMMAS),
        "DCA's head, about the text, γ by shots": ("text", paper),
        "DCA's head, about the images, γ by shots": ("visual", paper),
        "DCA's head, about what is chosen, γ by shots": (chosen, paper),
    }
    found = {}
    for name, (center, gammas) in heads.items():
        family = gaussian.dca_gaussian(*gammas, shots)
        head = MahalanobisHead.from_text(u, grouped, family, tau=tau, center=center)
        found[name] = measure_accuracy(head(test.features), test)
    return found


def measure_without_text(name: str, tensors: dict[str, Tensor], shots: int) -> dict[str, float]:
    """All heads and methods on one dataset."""
    train, test = split_rows(tensors, shots)
    classes = int(test.labels.max()) + 1
    problem = Problem(names=tuple(map(str, range(classes))), shots=shots, seed=1, dataset=name)
    nothing = torch.zeros(classes, train.features.shape[1])
    found = measure_heads(train, test, shots, classes)
    for method, settings in METHODS.items():
        found[method] = fit_method(method, settings, nothing, problem, train, test)
    return found


def measure_with_text(
    tensors: dict[str, Tensor], names: list[str], text: dict[str, Tensor], classes: list[int], shots: int
) -> dict[str, float]:
    """The methods with their text part, and DCA's head, on some classes of Caltech101."""
    train, test = split_rows(tensors, shots, classes)
    vectors = torch.stack([text[names[c]] for c in classes])
    problem = Problem(names=tuple(names[c] for c in classes), shots=shots, seed=1, dataset="caltech101")
    found = {name: fit_method(name, settings, vectors, problem, train, test) for name, settings in WITH_TEXT.items()}
    return found | measure_dca_heads(train, test, vectors, shots)


def index_by_name(names: list[str], vectors: Tensor) -> dict[str, Tensor]:
    """Vectors by plain names; of "octopus_(animal)" and "octopus_(food)" the animal."""
    found: dict[str, Tensor] = {}
    for name, vector in sorted(zip(names, vectors, strict=True), key=lambda pair: pair[0]):
        found.setdefault(name.split("_(")[0].lower(), vector)
    return found


def measure_all(data: Path, shots: list[int]) -> dict[str, Any]:
    """All tables: the number of test images, and test accuracies in percent by number of shots and head."""
    about = read_json(data / "meta.json")
    tables = {}
    for name, title in DATASETS.items():
        tensors = load_file(data / f"{name}.safetensors")
        rows = {str(k): measure_without_text(name, tensors, k) for k in shots}
        tables[f"{title}, no text"] = {"test_images": len(tensors["test_labels"]), "accuracy": rows}
    lvis = load_file(data / "text_a_cname_detic.safetensors")["lvis"].float()
    text = index_by_name(about["text"]["lvis_names"], F.normalize(lvis, dim=-1))
    tensors, names = load_file(data / "caltech101.safetensors"), about["caltech101"]["classnames"]
    classes = [c for c, name in enumerate(names) if name in text]
    rows = {str(k): measure_with_text(tensors, names, text, classes, k) for k in shots}
    images = len(split_rows(tensors, shots[0], classes)[1].labels)
    tables[f"Caltech101, {len(classes)} classes, with text"] = {"test_images": images, "accuracy": rows}
    return tables


def format_table(title: str, table: dict[str, Any]) -> str:
    """A table: one row per head, one column per number of shots."""
    found = table["accuracy"]
    columns = " | ".join(f"{k} shots" if int(k) > 1 else "1 shot" for k in found)
    lines = [f"| {title}, n = {table['test_images']:,} | {columns} |", "|---|" + "---:|" * len(found)]
    for name in next(iter(found.values())):
        lines.append(f"| {name} | " + " | ".join(f"{found[k][name]:.1f}" for k in found) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--shots", type=lambda text: [int(k) for k in text.split(",")], default=list(SHOTS))
    parser.add_argument("--json", type=Path, help="write the figures here")
    add_page_options(parser)
    chosen = parser.parse_args()
    tables = read_json(chosen.show) if chosen.show else measure_all(chosen.data, chosen.shots)
    if chosen.json:
        write_json(chosen.json, tables)
    print_tables("\n\n".join(format_table(title, table) for title, table in tables.items()), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
