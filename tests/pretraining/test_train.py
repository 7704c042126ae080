import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dca.backbones.clip.model import CLIP
from dca.core.errors import UserError
from pretrain import schedule
from pretrain.corpus import load_corpus
from pretrain.state import new_state
from pretrain.texts import lookup, token_ids
from pretrain.train import train


def test_resumed_run_equals_a_straight_one(at):
    straight = train(at("straight"))
    train(at("resumed"), stop_after=2)
    (Path(at("resumed").train.out) / "stop").touch()
    train(at("resumed"))  # stops again at the next log line
    resumed = train(at("resumed"))
    assert resumed.step == straight.step == 6
    for name, parameter in straight.parameters().items():
        assert torch.equal(parameter, resumed.parameters()[name]), name
    for name, average in straight.average.items():
        assert torch.equal(average, resumed.average[name]), name


def test_log_has_every_term_and_the_validation(at):
    lines = []
    config = at("logged")
    train(config, report=lines.append)
    written = [json.loads(line) for line in (Path(config.train.out) / "log.jsonl").read_text().splitlines()]
    assert written == lines
    assert {"step", "seconds", "progress", "contrastive", "instance"} <= set(lines[0])
    assert 0 <= lines[-1]["validation"] <= 100


def test_loss_falls(at):
    lines = []
    config = at("longer", steps=60, lr=5e-3)
    train(replace(config, augment=replace(config.augment, cutmix=0.0, scale=0.8)), report=lines.append)
    losses = [line["contrastive"] for line in lines if "contrastive" in line]
    assert sum(losses[-3:]) < sum(losses[:3])


def test_model_of_the_run_opens_in_transformers_and_agrees(at):
    transformers = pytest.importorskip("transformers")
    config = at("exported", steps=2)
    state = train(config)
    folder = Path(config.train.out) / "model"
    clip, other = CLIP.from_pretrained(folder), transformers.CLIPModel.from_pretrained(folder, dtype=torch.float32)
    assert load_file(folder / "model.safetensors")["logit_scale"].dtype == torch.float16
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor(clip.tokenizer(["a red circle"] * 2))
    with torch.inference_mode():
        theirs = other(input_ids=ids, pixel_values=pixels)
        images = torch.nn.functional.normalize(clip.encode_image(pixels), dim=-1)
        texts = torch.nn.functional.normalize(clip.encode_text(ids), dim=-1)
    assert torch.allclose(images, theirs.image_embeds, atol=1e-5)
    assert torch.allclose(texts, theirs.text_embeds, atol=1e-5)
    assert torch.allclose(clip.visual.positions, state.average["visual.positions"], atol=1e-3)


def test_state_of_another_model_is_refused(at):
    config = at("other", steps=1)
    train(config)
    with pytest.raises(UserError, match="not a state of this model"):
        train(replace(config, model=replace(config.model, width=32)))


def test_validation_images_are_never_drawn(small_config):
    corpus = load_corpus(small_config, torch.device("cpu"))
    assert len(corpus.validation_images) == 6
    assert int(corpus.counts[corpus.names.index("shapes")]) == 18
    assert len(corpus.images) == 18 + 16
    places = corpus.draw_images(500, torch.Generator().manual_seed(0))
    assert 0 <= int(places.min()) <= int(places.max()) < len(corpus.images)


def test_texts_drawn_belong_to_their_image(small_config):
    corpus = load_corpus(small_config, torch.device("cpu"))
    groups = corpus.groups[:5]
    u = torch.rand(2, 5, generator=torch.Generator().manual_seed(1))
    meanings, texts = lookup(corpus.tables, groups, torch.zeros(5, dtype=torch.long), u)
    for g, m, t in zip(groups.tolist(), meanings.tolist(), texts.tolist(), strict=True):
        start, count = int(corpus.tables["group_start"][g]), int(corpus.tables["group_count"][g])
        assert m in corpus.tables["members"][start : start + count].tolist()
        first, number = corpus.tables["ranges"][m, 0].tolist()
        assert t in corpus.tables["wordings"][first : first + number].tolist()


def test_long_texts_are_cut_so_that_eot_ends_them(small_config):
    corpus = load_corpus(small_config, torch.device("cpu"))
    longest = corpus.tables["lengths"].argmax()[None]
    ids, eot = token_ids(corpus.tables, longest, 4, 599)
    assert ids.shape == (1, 4)
    assert int(eot) == 3
    assert int(ids[0, 3]) == 599


def test_schedule_rises_falls_and_shows_more_patches(small_config):
    settings = small_config.train
    rates = [schedule.learning_rate(settings, p) for p in (0.0, 0.03, 0.5, 1.0)]
    assert rates[0] < rates[1] == pytest.approx(settings.lr)
    assert rates[1] > rates[2] > rates[3] == pytest.approx(0)
    assert [schedule.patches_seen(settings, p) for p in (0.2, 0.7, 1.0)] == [0.5, 0.75, 1.0]
    assert schedule.augmentation(small_config.augment, 0.9).cutmix == 0


def test_a_run_may_begin_with_the_weights_of_another(at):
    first = train(at("first", steps=2))
    folder = str(Path(at("first").train.out) / "model")
    second = new_state(at("second", start=folder), torch.device("cpu"))
    for name, parameter in second.clip.named_parameters():
        assert torch.equal(parameter, first.average[name].half().float()), name
        assert torch.equal(parameter, second.average[name]), name
    wider = replace(at("third", start=folder), model=replace(at("third").model, width=32))
    with pytest.raises(UserError, match="its sizes differ"):
        new_state(wider, torch.device("cpu"))
