"""The training loop: draw, augment, two towers, loss, step; saved and continued at any time."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.device import resolve_device
from dca.core.seeds import derive_seed
from pretrain import augment, loss, schedule
from pretrain.config import ATTENTION, AugmentConfig, PretrainConfig, TrainConfig
from pretrain.corpus import Corpus, TextBatch, load_corpus
from pretrain.export import export
from pretrain.state import State, load_state, new_state, save_state
from pretrain.towers import encode_padded, encode_patches
from pretrain.validate import validate

log = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]
LARGEST_SCALE = math.log(100.0)
LONG_EVERY = 8


def train(config: PretrainConfig, report: Report | None = None, stop_after: int | None = None) -> State:
    """Train to the end of the schedule, continuing a run in `out`; writes log, state and model.

    report: called with each log line. stop_after: stop (and save) after this many further steps; a
    file named `stop` in `out` does the same at the next log line.
    """
    settings, device = config.train, resolve_device(config.train.device)
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config.to_dict(), indent=1), encoding="utf-8")
    corpus, state = load_corpus(config, device), new_state(config, device)
    if (out / "state.safetensors").exists():
        load_state(state, out / "state.safetensors")
        log.info("continuing at step %d", state.step)
    if device.type == "cuda":
        _tune(state, settings)
    logger = _Logger(out / "log.jsonl", report)
    stop = out / "stop"
    begun, before = time.monotonic(), state.seconds
    saved, last = begun, state.step + (stop_after or 2**62)
    while (at := schedule.progress(settings, state.step, state.seconds)) < 1 and state.step < last:
        terms = train_step(config, corpus, state, at)
        state.step += 1
        state.seconds = before + time.monotonic() - begun
        if state.step % settings.log_every == 0 or state.step == 1:
            logger.write(_line(config, state, at, terms))
        if settings.save_every and time.monotonic() - saved > settings.save_every:
            _save(config, corpus, state, logger)
            saved = time.monotonic()
        if state.step % settings.log_every == 0 and stop.exists():
            stop.unlink()
            break
    _save(config, corpus, state, logger)
    return state


def train_step(config: PretrainConfig, corpus: Corpus, state: State, at: float) -> dict[str, Tensor]:
    """One step at progress `at`; returns the loss terms. It depends only on the seed and the step."""
    device = state.clip.device
    rng = torch.Generator(device).manual_seed(derive_seed(config.train.seed, "step", state.step))
    for group in state.optimizer.param_groups:
        group["lr"] = schedule.learning_rate(config.train, at)
    settings = schedule.augmentation(config.augment, at)
    with torch.no_grad():
        pixels, mix, texts = draw_batch(config, corpus, state, settings, rng)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        keep = schedule.patches_seen(config.train, at)
        image = encode_patches(state.clip.vit, pixels, keep, rng)
        text = encode_padded(state.clip.text, texts.ids, texts.eot)
    terms = loss_terms(config, state, image, text, texts, mix)
    sum(terms.values(), torch.zeros((), device=device)).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(state.parameters().values(), 1.0)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        state.clip.logit_scale.clamp_(max=LARGEST_SCALE)
        state.extras.relation_scale.clamp_(max=LARGEST_SCALE)
    state.update_average(config.train.average)
    return {name: term.detach() for name, term in terms.items()}


def draw_batch(
    config: PretrainConfig, corpus: Corpus, state: State, settings: AugmentConfig, rng: torch.Generator
) -> tuple[Tensor, augment.Mix | None, TextBatch]:
    """Pixels (B, 3, S, S), how they were mixed, and B texts followed by those of the lexicon.

    With the instance term, positions i and i + B / 2 are the same image with another crop and another text.
    """
    views = 2 if config.loss.instance else 1
    places = corpus.draw_images(config.train.batch // views, rng).repeat(views)
    styles = augment.pick_styles(len(places), settings, places.device)
    size = config.model.image_size
    pixels = augment.crop(
        corpus.images[places], corpus.aspects[places], corpus.turns[places], size, settings.scale, settings.ratio, rng
    )
    pixels = augment.blur(augment.recolour(pixels, styles, settings, rng), settings)
    mix = None
    if settings.cutmix:
        pixels, mix = augment.cutmix(pixels, settings.cutmix, rng)
    # Most texts are short; a few full-length steps keep the later positions trained.
    full = config.model.context
    length = full if state.step % LONG_EVERY == 0 else min(config.train.text_length, full)
    eot = state.clip.config.text.eot_id
    texts = corpus.draw_texts(corpus.groups[places], styles, length, eot, rng)
    if config.loss.lexicon_batch and config.loss.relation and len(corpus.lexicon):
        texts = _join(texts, corpus.draw_lexicon(config.loss.lexicon_batch, length, eot, rng))
    return state.clip.preprocess.normalize(pixels), mix, texts


def _join(a: TextBatch, b: TextBatch) -> TextBatch:
    vectors = None if a.vectors is None or b.vectors is None else torch.cat([a.vectors, b.vectors])
    return TextBatch(torch.cat([a.ids, b.ids]), torch.cat([a.eot, b.eot]), torch.cat([a.keys, b.keys]), vectors)


def loss_terms(
    config: PretrainConfig, state: State, image: Tensor, text: Tensor, texts: TextBatch, mix: augment.Mix | None
) -> dict[str, Tensor]:
    """Weighted terms. image: (B, D) features. text: (B + lexicon, D) unit vectors."""
    settings, batch = config.loss, len(image)
    own = None if texts.vectors is None else texts.vectors[:batch]
    with torch.no_grad():
        target = loss.soft_targets(texts.keys[:batch], own, settings.soft, settings.soft_temperature)
        target = loss.mix_targets(target, mix)
    unit = F.normalize(image, dim=-1)
    terms = {"contrastive": loss.contrastive_loss(unit, text[:batch], state.clip.logit_scale.exp(), target)}
    if settings.instance:
        views = F.normalize(state.extras.head(image), dim=-1)
        same = loss.same_image_targets(batch // 2, mix, image.device)
        terms["instance"] = settings.instance * loss.instance_loss(views, same, settings.instance_temperature)
    if texts.vectors is not None and len(text) > batch:
        scale = state.extras.relation_scale.exp()
        divergence = loss.relation_loss(text, scale, texts.vectors, settings.relation_temperature, len(text) - batch)
        terms["relation"] = settings.relation * divergence
    return terms


def _tune(state: State, settings: TrainConfig) -> None:
    """Choose the attention kernel and compile each block: all share one graph per shape."""
    for name in ATTENTION:
        if settings.attention != "auto":
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == settings.attention)
    if not settings.compile:
        return
    torch._dynamo.config.cache_size_limit = 64
    for tower in (state.clip.vit, state.clip.text):
        for block in tower.blocks:
            block.compile(dynamic=False)


def _line(config: PretrainConfig, state: State, at: float, terms: dict[str, Tensor]) -> dict[str, Any]:
    values = {name: round(float(term), 4) for name, term in terms.items()}
    rate = round(state.step * config.train.batch / max(state.seconds, 1e-9))
    about = {"step": state.step, "seconds": round(state.seconds, 1), "progress": round(at, 4)}
    return about | values | {"scale": round(float(state.clip.logit_scale.detach().exp()), 2), "images_per_second": rate}


def _save(config: PretrainConfig, corpus: Corpus, state: State, logger: _Logger) -> None:
    """Write state and model, and log the accuracy on the validation images."""
    out = Path(config.train.out)
    save_state(state, out / "state.safetensors")
    export(state, out / "model")
    if len(corpus.validation_images):
        accuracy = validate(corpus, state)
        logger.write({"step": state.step, "seconds": round(state.seconds, 1), "validation": round(accuracy, 2)})


class _Logger:
    """One JSON object per line."""

    def __init__(self, path: Path, report: Report | None) -> None:
        self.path, self.report = path, report

    def write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self.report:
            self.report(line)
