"""dca explain: why a model predicts a class for an image, and its learned prompts in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import backbone_of_model, device_flags, emit, json_flag, print_lines
from dca.cli.tables import format_table
from dca.core.errors import UserError
from dca.core.text import percent, pluralize

if TYPE_CHECKING:
    from dca.model.classifier import Classifier
    from dca.model.explain import Explanation
    from dca.model.prompt_words import PromptReport

# Most probable classes and nearest training images that are shown.
TOP, NEAREST = 5, 5


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("image", type=click.Path(path_type=Path), required=False)
@click.option("--prompts", is_flag=True, help="Print the learned prompts in words instead; takes no image.")
@click.option(
    "--class", "target", default=None, metavar="NAME", help="Explain this class.  [default: the most probable one]"
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Write the heat map to this .png or .svg file.  [default: IMAGE.explain.png in the working folder]",
)
@backbone_of_model
@device_flags
@json_flag
def command(
    model: Path,
    image: Path | None,
    prompts: bool,
    target: str | None,
    output: Path | None,
    backbone: str | None,
    device: str,
    precision: str,
    as_json: bool,
) -> None:
    """Explain what MODEL predicts for IMAGE: probabilities, nearest training images, and a heat map.

    The heat map shows how much the odds of the class fall when a part of the image is blurred: orange parts
    speak for the class, blue ones against it. It explains the model, not the world: a model that recognises
    ships by the water highlights the water.

    \b
    dca explain photos.dca new.jpg
    dca explain photos.dca new.jpg --class cat -o cat.png
    dca explain photos.dca --prompts
    """
    from dca.model.classifier import Classifier
    from dca.plots.style import require_drawable

    if prompts == (image is not None):
        raise UserError("give either an image or --prompts", hint="dca explain MODEL IMAGE")
    if image is not None:
        output = output or Path(f"{image.stem}.explain.png")
        require_drawable(output)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    if image is None:
        print_learned_prompts(classifier, as_json=as_json)
        return
    assert output is not None
    explain_image(classifier, image, target, output, as_json=as_json)


def explain_image(classifier: Classifier, image: Path, target: str | None, output: Path, *, as_json: bool) -> None:
    """Explain one image on the screen and in a heat map."""
    from dca.model.explain import explain

    explanation = explain(classifier, image, target=target, neighbours=NEAREST)
    draw(explanation, classifier, output)
    if as_json:
        emit(to_json(explanation, output))
        return
    print_lines(*format_explanation(explanation))
    print_lines(f"wrote {output}")


def draw(explanation: Explanation, classifier: Classifier, output: Path) -> None:
    """Draw the heat map beside the probabilities and the nearest training images."""
    from dca.images.decode import open_bytes
    from dca.plots.explanation import plot_explanation

    gallery = classifier.gallery()
    nearest: list[tuple[Any, str, float]] = []
    if gallery is not None:
        nearest = [
            (open_bytes(gallery.jpegs[near.index]), str(near.label), near.similarity) for near in explanation.nearest
        ]
    top = [(str(label), probability) for label, probability in explanation.top(TOP)]
    target = str(explanation.labels[explanation.target])
    plot_explanation(explanation.crop, explanation.heat_map(), top, nearest, output, target=target)


def to_json(explanation: Explanation, output: Path) -> dict[str, Any]:
    """The explanation as one JSON value."""
    return {
        "top": [{"label": str(label), "probability": p} for label, p in explanation.top(TOP)],
        "explained": str(explanation.labels[explanation.target]),
        "nearest": [
            {"name": near.name, "label": str(near.label), "similarity": near.similarity} for near in explanation.nearest
        ],
        "relevance": explanation.relevance.tolist(),
        "plot": str(output),
    }


def format_explanation(explanation: Explanation) -> list[str]:
    """The explanation as lines of text."""
    top = [[str(label), f"{percent(probability):>7}"] for label, probability in explanation.top(TOP)]
    if not explanation.nearest:
        return [
            *format_table(top),
            "nearest training images: the model has no gallery (it was fitted with --no-gallery)",
        ]
    nearest = [[near.name, f"{near.label}, cosine {near.similarity:.2f}"] for near in explanation.nearest]
    return [*format_table(top), "nearest training images", *format_table(nearest, indent=2)]


def print_learned_prompts(classifier: Classifier, *, as_json: bool) -> None:
    """Print the learned prompts in words."""
    from dca.model.prompt_words import describe_prompts

    prompts = describe_prompts(classifier.method_, classifier.classes_.tolist())
    if prompts is None:
        raise UserError(
            f"a {classifier.method_.name} model learns no prompts",
            hint="fit with a prompt method, such as --method dca",
        )
    if as_json:
        emit(prompts.to_dict())
    else:
        print_lines(*format_prompts(prompts))


def format_prompts(report: PromptReport) -> list[str]:
    """The prompts as lines of text: the nearest token of every vector with its distance, and the angles."""
    typical = f"{report.typical_distance:.2f}"
    lines = [f"nearest tokens by distance of their embeddings; usual distance between neighbours {typical}"]
    for prompt in report.prompts:
        words = "  ".join(f"{near[0].text} ({near[0].distance:.2f})" for near in prompt.tokens)
        lines.append(f"{prompt.name}:  {words}")
    if report.left_out:
        lines.append(f"and {pluralize(report.left_out, 'prompt')} more")
    if report.angles:
        lines.append("angles between prompts in degrees, mean over classes")
        lines += ["  " + " ".join(f"{angle:5.1f}" for angle in row) for row in report.angles]
    return lines
