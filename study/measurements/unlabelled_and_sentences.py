"""What photos without labels, and more sentences per class, bring to the default method.

    python study/measurements/unlabelled_and_sentences.py EUROSAT CALTECH FLOWERS --out results.jsonl
    python study/measurements/unlabelled_and_sentences.py --summary results.jsonl

Arguments are folders with an image dataset in the layout of CoOp. Every cell (dataset, shots, seed) is one fit of
`closed_form` on the published draw. Test images are halved: one half are photos without labels, the other half is
measured on. Nothing is chosen by the measured half.

Photos without labels: Gaussians over training images and photos without labels (`shared/transduction.py`) as one more
expert, g_c(x) = log p(x | c) / s. `fixed` is the product that the authors of transduction use; `chosen` finds the
scales of the closed form and of g by the least log-loss on training images, whose labels the Gaussians have not seen:
there they stand among the photos without labels, with their held-out predictions. `together` is the accuracy on the
half without labels itself, classified together.

Sentences: with the seven templates that CLIP's authors chose instead of one, and for EuroSAT with three sentences per
class; `chosen` takes the texts of the least zero-shot log-loss on the training images, which texts have not seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dca import Classifier, Session
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset
from dca.datasets.draws import draw_training_part
from dca.methods.closed_form import ClosedForm
from dca.methods.shared.frozen_features import SEVEN_TEMPLATES, unit_mean
from dca.methods.shared.product_of_experts import class_weights, fit_scales, log_loss
from dca.methods.shared.transduction import Labelled, Transduction, log_gaussians, transduce

MOST_TEST = 1400
EUROSAT = {
    "annual crop": ["fields of annual crops from above", "a patchwork of brown and green farm fields"],
    "forest": ["a dense dark green forest from above", "tree crowns without gaps"],
    "herbaceous vegetation": ["grassland with scattered shrubs from above", "natural low plants on a slope"],
    "highway": ["a highway through fields from above", "a wide road with several lanes"],
    "industrial": ["large factory roofs from above", "warehouses and parking lots"],
    "pasture": ["bright green pasture from above", "meadows with hedges for cattle"],
    "permanent crop": ["rows of vines or fruit trees from above", "an orchard"],
    "residential": ["houses and gardens of a suburb from above", "a dense pattern of small roofs and streets"],
    "river": ["a winding river from above", "a band of water through land"],
    "sea": ["open blue water from above", "a lake or the sea"],
}


def accuracy(logits: Tensor, truth: Tensor) -> float:
    """Share of rows (N, C) whose largest value is that of the truth (N,)."""
    return 100 * float((logits.argmax(dim=-1) == truth).double().mean())


def choose_scales(method: ClosedForm, features: Tensor, z: Tensor) -> tuple[Transduction, Tensor]:
    """Gaussians that have not seen the labels, and the scales of the closed form's logits and of g, (2,)."""
    held = method.experts.held_out_logits(method.selected).float()
    known = method.experts.source.peers
    y = method.image_labels[known]
    both = torch.cat([features, method.image_features[known]])
    found = transduce(both, torch.cat([z, held[known].softmax(dim=-1)]))
    gaussians = log_gaussians(method.image_features[known], found.means, found.variances) / found.scale
    scores = torch.stack([held[known], gaussians]).double()
    return found, fit_scales(scores, y, class_weights(y), smoothing=1 / (len(y) + 2)).values


def measure_unlabelled(
    method: ClosedForm, free: Tensor, rest: Tensor, truth: Tensor, free_truth: Tensor
) -> dict[str, float]:
    """Accuracies on features `rest` (N, D) with photos without labels `free` (U, D)."""
    z, base = method.classify(free).float(), method.classify(rest).float()
    labelled = Labelled(method.image_features, method.image_labels)
    fixed = transduce(free, z, labelled)
    row = {"closed_form": accuracy(base, truth), "fixed": accuracy(fixed.classify(rest, base), truth)}
    row |= {"alone": accuracy(z, free_truth), "together": accuracy(fixed.predictions, free_truth)}
    row["chosen"], row["weight"] = row["closed_form"], 0.0
    if method.experts.source.can_choose:
        found, scales = choose_scales(method, free, z)
        g = log_gaussians(rest, found.means, found.variances) / found.scale
        row["chosen"] = accuracy(scales[0] * base.log() + scales[1] * g, truth)
        row["weight"] = float(scales[1])
    return row


def _count_shared_words(name: str, other: str) -> int:
    """Words that two names have in common."""
    return len(set(name.split()) & set(other.split()))


def text_candidates(method: ClosedForm, dataset: Dataset) -> dict[str, Tensor]:
    """Unit texts (C, D) by what they are made of."""
    names = [name.replace("_", " ") for name in method.problem.names]

    def encode(sentences: list[list[str]]) -> Tensor:
        with torch.no_grad():
            return unit_mean(
                torch.stack([method.encoder.encode_text(list(each)) for each in zip(*sentences, strict=True)])
            )

    one = method.problem.template
    found = {
        "one": encode([[one.replace("{}", name)] for name in names]),
        "seven": encode([[t.replace("{}", name) for t in (one, *SEVEN_TEMPLATES)] for name in names]),
    }
    if len(names) == len(EUROSAT) and "sea" in " ".join(names).lower():
        keys = list(EUROSAT)
        own = [max(keys, key=partial(_count_shared_words, name.lower())) for name in names]
        found["described"] = encode(
            [[one.replace("{}", name), *EUROSAT[k]] for name, k in zip(names, own, strict=True)]
        )
    return found


def measure_sentences(method: ClosedForm, dataset: Dataset, rest: Tensor, truth: Tensor) -> dict[str, float]:
    """Accuracies with other texts, zero-shot (z_) and of the whole method."""
    row, best, lowest = dict[str, float](), "one", float("inf")
    weights = class_weights(method.image_labels)
    for name, text in text_candidates(method, dataset).items():
        other = type(method)(method.encoder, method.problem, method.options)
        for result in method.results:
            setattr(other, result, getattr(method, result))
        other.text_features = text
        selected = [dataclasses.astuple(own) for own in other.experts.select()]
        other.hyperparameters = torch.tensor(selected, dtype=torch.float64)
        other.build_head()
        logits = method.encoder.tau * method.image_features @ text.T
        scale = fit_scales(logits[None].double(), method.image_labels, weights, smoothing=0.1).values[0]
        loss = log_loss(scale * logits.double(), method.image_labels, weights)
        if loss < lowest:
            best, lowest = name, loss
        row[f"z_{name}"], row[name] = accuracy(rest @ text.T, truth), accuracy(other.classify(rest), truth)
    return {**row, "chosen": row[best]}


def run(folder: str, shots: int, seed: int, session: Session) -> dict[str, Any]:
    """One cell."""
    dataset = load_dataset(folder)
    drawn, _ = draw_training_part(dataset, shots, seed, validation="none")
    model = Classifier(calibrate=False).fit(dataclasses.replace(drawn, val=()), session=session)
    method = model.method_
    assert isinstance(method, ClosedForm)
    order = np.random.default_rng(0).permutation(len(dataset.test))[:MOST_TEST]
    tested = [dataset.test[i] for i in order]
    raw = session.frozen_features(method.encoder, [item.image for item in tested])
    features, y = F.normalize(method.adapt_features(raw), dim=-1), torch.tensor([item.label for item in tested])
    half = len(tested) // 2
    with torch.no_grad():
        return {
            "dataset": Path(folder).name, "shots": shots, "seed": seed,
            "unlabelled": measure_unlabelled(method, features[:half], features[half:], y[half:], y[:half]),
            "sentences": measure_sentences(method, dataset, features[half:], y[half:]),
        }  # fmt: skip


def summarize(file: Path) -> None:
    """Means of paired differences with 95 % intervals over cells."""
    cells = [json.loads(line) for line in file.read_text().splitlines()]
    pairs = {"unlabelled": [("fixed", "closed_form"), ("chosen", "closed_form"), ("together", "alone")]}
    pairs["sentences"] = [
        ("seven", "one"),
        ("described", "one"),
        ("chosen", "one"),
        ("z_seven", "z_one"),
        ("z_described", "z_one"),
    ]
    for topic, wanted in pairs.items():
        for new, old in wanted:
            groups: dict[str, list[float]] = defaultdict(list)
            for cell in cells:
                if new in cell[topic]:
                    difference = cell[topic][new] - cell[topic][old]
                    for key in (cell["dataset"], f"{cell['shots']} shots", "all"):
                        groups[key].append(difference)
            for key, values in sorted(groups.items()):
                d = np.array(values)
                error = 1.96 * d.std(ddof=1) / len(d) ** 0.5 if len(d) > 1 else float("nan")
                wins = f"{(d > 0).sum()} better, {(d < 0).sum()} worse of {len(d)}"
                names, mean = f"{topic:11} {new:11} - {old:11} {key:15}", f"{d.mean():+5.2f} ± {error:4.2f}"
                print(f"{names} {mean}   worst {d.min():+5.2f}   {wins}")


def main() -> None:
    """Measure, or summarize."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("unlabelled.jsonl"))
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--summary", type=Path)
    args = parser.parse_args()
    if args.summary is not None:
        summarize(args.summary)
        return
    session = Session(device="cpu")
    for seed in args.seeds:
        for shots in args.shots:
            for folder in args.datasets:
                cell = run(folder, shots, seed, session)
                with args.out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(cell, flush=True)


if __name__ == "__main__":
    main()
