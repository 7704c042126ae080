"""Several encoders used as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from conftest import make_clip
from dca import CLIP, Session, UserError
from dca.backbones.encoder import Ability
from dca.backbones.loading import VARIABLE, default_backbone, load_encoder, split_names
from dca.backbones.pool import Pool
from dca.datasets.dataset import Dataset
from dca.features.store import MemoryStore
from dca.methods.base import Problem
from dca.methods.registry import all_methods, choose_encoder, get_method, methods_for
from dca.methods.zero_shot import ZeroShot
from helpers.colour_encoder import ColourEncoder


@pytest.fixture
def pool(clip: CLIP) -> Pool:
    return Pool([clip, ColourEncoder()])


def draw_images(count: int = 5) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    sizes = [(20 + 7 * n, 61 - 5 * n) for n in range(count)]
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def test_a_feature_is_the_unit_features_of_the_members(pool: Pool) -> None:
    images = draw_images()
    expected = [F.normalize(member.encode_image(images), dim=-1) for member in pool.members]
    assert pool.feature_dim == sum(part.shape[1] for part in expected)
    assert torch.allclose(pool.encode_image(images), torch.cat(expected, dim=-1), atol=1e-6)
    for found, part in zip(pool.split(pool.encode_image(images)), expected, strict=True):
        assert torch.allclose(found, part, atol=1e-6)


def test_pixels_are_those_of_the_members_in_one_row(pool: Pool) -> None:
    image = draw_images(1)[0]
    row = torch.from_numpy(pool.preprocess.crop(image))[None]
    assert row.shape == (1, pool.preprocess.values)
    for member, crop in zip(pool.members, pool.preprocess.split(row), strict=True):
        assert np.array_equal(crop[0].numpy(), member.preprocess.crop(image))
        pixels = pool.take_pixels(member, pool.preprocess.normalize(row))
        assert torch.equal(pixels, member.preprocess([image]))


def test_zero_shot_is_that_of_the_member_that_knows_texts(pool: Pool, clip: CLIP) -> None:
    problem, images = Problem(names=("cat", "dog", "zebra"), shots=1), draw_images()
    alone, both = (ZeroShot.for_problem(encoder, problem) for encoder in (clip, pool))
    expected = alone.classify(alone.encode(clip.preprocess(images)))
    assert torch.allclose(both.classify(both.encode(pool.preprocess(images))), expected, atol=1e-5)


def test_zero_shot_of_several_that_know_texts_is_their_mean(clip: CLIP) -> None:
    tiny = make_clip(seed=1)
    pool = Pool([clip, ColourEncoder(), tiny])
    problem, images = Problem(names=("cat", "dog", "zebra"), shots=1), draw_images()
    found = ZeroShot.for_problem(pool, problem)
    logits = found.classify(found.encode(pool.preprocess(images))).log()
    expected = torch.zeros(len(images), 3)
    for member in (clip, tiny):
        texts = F.normalize(member.encode_text([f"a photo of a {name}." for name in problem.names]), dim=-1)
        expected += pool.tau / (3 / 2) ** 0.5 / 2 * F.normalize(member.encode_image(images), dim=-1) @ texts.T
    assert pool.tau == pytest.approx((clip.tau + tiny.tau) / 2 * 1.5**0.5)
    assert torch.allclose(logits, expected.log_softmax(dim=-1), atol=1e-4)


def test_members_are_stored_each_for_itself(pool: Pool, sample: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    session, images = Session(device="cpu", store=MemoryStore()), [item.image for item in sample.train[:6]]
    found = session.frozen_features(pool, images)
    for member in pool.members:
        monkeypatch.setattr(type(member), "encode_image", lambda *_: pytest.fail("encoded again"))
    expected = torch.cat([F.normalize(session.frozen_features(m, images), dim=-1) for m in pool.members], dim=-1)
    assert torch.equal(found, expected)


def test_an_identity_is_that_of_the_members_in_their_order(clip: CLIP) -> None:
    colours = ColourEncoder()
    first, again, other = Pool([clip, colours]), Pool([clip, colours]), Pool([colours, clip])
    assert first.digest == again.digest != other.digest
    assert [member["source"] for member in first.describe()["members"]] == [clip.source, "colours"]


def test_only_image_features_are_common_to_all() -> None:
    pool = Pool([ColourEncoder(), ColourEncoder("others", 16)])
    assert pool.abilities == {Ability.IMAGE_FEATURES}
    with pytest.raises(UserError, match="none of these knows texts"):
        pool.encode_text(["a cat"])


def test_a_method_takes_the_member_that_has_what_it_needs(pool: Pool, clip: CLIP) -> None:
    assert choose_encoder(get_method("closed_form"), pool) is pool
    assert choose_encoder(get_method("zero_shot"), pool) is pool
    assert choose_encoder(get_method("coop"), pool) is clip
    assert choose_encoder(get_method("coop"), clip) is clip
    assert set(methods_for(pool)) == {name for name, kind in all_methods().items() if not kind.fits_others}
    with pytest.raises(UserError, match="coop needs a text tower that takes learned prompts, which colours") as caught:
        choose_encoder(get_method("coop"), ColourEncoder())
    assert "closed_form" in str(caught.value.hint)
    assert "zero_shot" not in str(caught.value.hint)


def test_names_of_a_pool_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_names("mini, efficientnet-lite0") == ("mini", "efficientnet-lite0")
    monkeypatch.setenv(VARIABLE, "mini,vit-b-16")
    assert split_names("auto") == ("mini", "vit-b-16")
    for wrong in ("mini,", "mini,mini"):
        with pytest.raises(UserError, match="names of different encoders"):
            split_names(wrong)
    monkeypatch.setenv(VARIABLE, "auto")
    with pytest.raises(UserError, match="DCA_BACKBONE is auto"):
        split_names("auto")


def test_the_default_is_both_embedded_encoders_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("dca.backbones.efficientnet_lite.is_installed", lambda name: True)
    assert default_backbone() == "mini,efficientnet-lite0"
    monkeypatch.setattr("dca.backbones.efficientnet_lite.is_installed", lambda name: False)
    assert default_backbone() == "mini"
    assert load_encoder("mini").source == "mini"
