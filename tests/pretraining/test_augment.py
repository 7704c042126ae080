import pytest
import torch

from pretrain import augment
from pretrain.config import AugmentConfig

CALM = AugmentConfig(colour=0.0, balance=0.0, grey=0.0, blurry=0.0)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(3)


@pytest.fixture
def pixels(rng):
    return torch.rand(8, 3, 16, 16, generator=rng)


def test_whole_image_is_kept_when_nothing_is_cut(rng):
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(1, 3, 8, 8)
    seen = augment.crop(image, torch.ones(1), torch.zeros(1, dtype=torch.bool), 8, 1.0, 1.0, rng)
    same = torch.allclose(seen * 255, image.float(), atol=1e-2)
    flipped = torch.allclose(seen * 255, image.float().flip(-1), atol=1e-2)
    assert same or flipped


def test_only_pictures_from_above_are_turned(rng):
    column = torch.zeros(64, 3, 8, 8, dtype=torch.uint8)
    column[..., :4] = 255
    seen = augment.crop(column, torch.ones(64), torch.arange(64) < 32, 8, 1.0, 1.0, rng).round().long()
    sideways = (seen[:, 0, 0] == seen[:, 0, 7]).all(-1)
    assert sideways[32:].all()
    assert not sideways[:32].all()


def test_recolour_without_strength_changes_nothing(pixels, rng):
    assert torch.allclose(augment.recolour(pixels, torch.zeros(8, dtype=torch.long), CALM, rng), pixels, atol=1e-6)


def test_recolour_is_gain_then_contrast_then_saturation(pixels):
    config = AugmentConfig(colour=0.4, balance=0.2)
    seen = augment.recolour(pixels, torch.zeros(8, dtype=torch.long), config, torch.Generator().manual_seed(1))
    u = 2 * torch.rand(6, 8, generator=torch.Generator().manual_seed(1)) - 1
    for n in range(8):
        image = pixels[n] * (1 + 0.2 * u[3:, n]).view(3, 1, 1) * (1 + 0.4 * u[0, n])
        image = image.mean() + (image - image.mean()) * (1 + 0.4 * u[1, n])
        grey = (image * torch.tensor(augment.LUMA).view(3, 1, 1)).sum(0, keepdim=True)
        image = grey + (image - grey) * (1 + 0.4 * u[2, n])
        assert torch.allclose(seen[n], image.clamp(0, 1), atol=1e-5)


def test_styles_are_done_where_they_are_said(pixels, rng):
    config = AugmentConfig(colour=0.0, balance=0.0, grey=0.25, blurry=0.25)
    styles = augment.pick_styles(8, config, torch.device("cpu"))
    assert styles.tolist() == [1, 1, 2, 2, 0, 0, 0, 0]
    seen = augment.blur(augment.recolour(pixels, styles, config, rng), config)
    assert torch.allclose(seen[:2, 0], seen[:2, 2], atol=1e-6)
    assert (seen[2:4].diff(dim=-1).abs().mean() < 0.3 * pixels[2:4].diff(dim=-1).abs().mean()).item()
    assert torch.allclose(seen[4:], pixels[4:], atol=1e-6)


def test_cutmix_states_the_share_that_is_left(pixels, rng):
    seen, mix = augment.cutmix(pixels, 1.0, rng)
    for n in range(8):
        own = (seen[n] == pixels[n]).all(0).float().mean().item()
        if mix.partner[n] != n:
            assert own == pytest.approx(float(mix.share[n]))
        assert float(mix.share[n]) >= 0.45


def test_cutmix_with_no_chance_leaves_all(pixels, rng):
    seen, mix = augment.cutmix(pixels, 0.0, rng)
    assert torch.equal(seen, pixels)
    assert (mix.share == 1).all()
