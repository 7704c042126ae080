"""How well the heat maps of `dca explain` agree with occlusion, the slow reference.

    python study/measurements/explain_agreement.py photos.dca more_photos/ --images 20

For evenly spread images it prints the mean and the least rank correlation (Spearman) between the relevance of the
patches and what blurring the window around each patch takes from the log-odds of the answer, and the time of both.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import click
import numpy as np
import torch

from dca import Classifier
from dca.images.decode import open_image
from dca.model.explain import measure_relevance
from dca.model.inputs import as_images

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from oracles.explain import occlusion, rank_correlation


def main() -> None:
    """Print the agreement for one model and a folder of images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images_of")
    parser.add_argument("--images", type=int, default=20)
    given = parser.parse_args()
    method = Classifier.from_pretrained(given.model, device="cpu").method_
    paths = as_images(given.images_of)
    paths = paths[:: max(len(paths) // given.images, 1)][: given.images]
    found, seconds = [], np.zeros(2)
    for path in paths:
        pixels = method.clip.preprocess([open_image(path)])
        with torch.no_grad():
            target = int(method.classify(method.encode(pixels)).argmax())
        times = [time.perf_counter()]
        fast = measure_relevance(method, pixels, target)
        times.append(time.perf_counter())
        slow = occlusion(method, pixels, target)
        times.append(time.perf_counter())
        found.append(rank_correlation(fast, slow))
        seconds += np.diff(times)
    each = 1000 * seconds / len(found)
    click.echo(f"{len(found)} images: rank correlation {np.mean(found):.2f} (least {min(found):.2f})")
    click.echo(f"relevance {each[0]:.0f} ms, occlusion {each[1]:.0f} ms per image")


if __name__ == "__main__":
    main()
