"""dca explain: why a model says what it says about an image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import backbone_of_model, columns, emit, json_flag, padded, running
from dca.core.errors import UserError
from dca.core.text import percent, pluralize, to_printable

if TYPE_CHECKING:
    from dca.model.classifier import Classifier
    from dca.model.explain import Explanation
    from dca.model.prompt_words import PromptReport

TOP, NEAREST = 5, 5


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("image", type=click.Path(path_type=Path), required=False)
@click.option("--prompts", is_flag=True, help="Print the learned prompts in words instead; no image is needed.")
@click.option("--class", "target", default=None, metavar="NAME", help="Explain this class.  [the most probable one]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Where the picture goes, .png or .svg.  [IMAGE.explain.png in the working folder]",
)
@backbone_of_model
@running
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
    """Explain what MODEL says about IMAGE: probabilities, nearest training images, and a heat map.

    The heat map says what blurring a part of the image takes from the odds of the class: orange parts speak
    for it, blue ones against it. It explains the model, not the world: a model that knows ships by the
    water lights up the water.

    \b
    dca explain photos.dca new.jpg
    dca explain photos.dca new.jpg --class cat -o cat.png
    dca explain photos.dca --prompts
    """
    from dca.model.classifier import Classifier

    if prompts == (image is not None):
        raise UserError("give either an image or --prompts", hint="dca explain MODEL IMAGE")
    if image is not None:
        output = output or Path(f"{image.stem}.explain.png")
        require_picture(output)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    if image is None:
        show_prompts(classifier, as_json=as_json)
        return
    assert output is not None
    show_image(classifier, image, target, output, as_json=as_json)


def require_picture(path: Path) -> None:
    """Raise before any work if the picture cannot be drawn."""
    from dca.plots.style import require_drawable

    require_drawable(path)


def show_image(classifier: Classifier, image: Path, target: str | None, output: Path, *, as_json: bool) -> None:
    """Explain one image on the screen and in a picture."""
    from dca.model.explain import explain

    found = explain(classifier, image, target=target, neighbours=NEAREST)
    draw(found, classifier, output)
    if as_json:
        emit(described(found, output))
        return
    click.echo("\n".join(lines(found)))
    click.echo(f"wrote {output}")


def draw(found: Explanation, classifier: Classifier, output: Path) -> None:
    """Write the picture."""
    from PIL import Image

    from dca.plots.explanation import explanation

    gallery = classifier.gallery()
    nearest: list[tuple[Any, str, float]] = []
    if gallery is not None:
        nearest = [
            (Image.open(io.BytesIO(gallery.jpegs[one.index])), str(one.label), one.similarity) for one in found.nearest
        ]
    top = [(str(label), probability) for label, probability in found.top(TOP)]
    explanation(found.crop, found.heat_map(), top, nearest, output, target=str(found.labels[found.target]))


def described(found: Explanation, output: Path) -> dict[str, Any]:
    """The value that `--json` prints."""
    return {
        "top": [{"label": str(label), "probability": p} for label, p in found.top(TOP)],
        "explained": str(found.labels[found.target]),
        "nearest": [{"name": n.name, "label": str(n.label), "similarity": n.similarity} for n in found.nearest],
        "relevance": found.relevance.tolist(),
        "picture": str(output),
    }


def lines(found: Explanation) -> list[str]:
    """The explanation as text."""
    top = [(str(label), probability) for label, probability in found.top(TOP)]
    width = columns(label for label, _ in top)
    text = [f"{padded(label, width)}  {percent(probability):>7}" for label, probability in top]
    if not found.nearest:
        return [*text, "nearest training images: the model has no gallery (it was fitted with --no-gallery)"]
    wide = columns(to_printable(one.name) for one in found.nearest)
    text.append("nearest training images")
    return text + [
        f"  {padded(to_printable(n.name), wide)}  {n.label}, cosine {n.similarity:.2f}" for n in found.nearest
    ]


def show_prompts(classifier: Classifier, *, as_json: bool) -> None:
    """Print the learned prompts in words."""
    from dca.model.prompt_words import prompt_words

    found = prompt_words(classifier.method_, classifier.classes_.tolist())
    if found is None:
        raise UserError(
            f"a {classifier.method_.name} model learns no prompts",
            hint="fit with a prompt method, such as --method dca",
        )
    if as_json:
        emit(found.to_dict())
    else:
        click.echo("\n".join(prompt_lines(found)))


def prompt_lines(found: PromptReport) -> list[str]:
    """The prompts as text: the nearest token of every vector with its distance, and the angles."""
    text = [f"nearest tokens by distance of their embeddings; usual distance between neighbours {found.usual:.2f}"]
    for prompt in found.prompts:
        words = "  ".join(f"{near[0].text} ({near[0].distance:.2f})" for near in prompt.tokens)
        text.append(f"{prompt.name}:  {words}")
    if found.left_out:
        text.append(f"and {pluralize(found.left_out, 'prompt')} more")
    if found.angles:
        text.append("angles between prompts in degrees, mean over classes")
        text += ["  " + " ".join(f"{angle:5.1f}" for angle in row) for row in found.angles]
    return text
