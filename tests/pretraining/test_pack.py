import pytest
from PIL import Image

from dca.core.errors import UserError
from pretrain import pack


def test_folder_of_named_images_becomes_a_source(tmp_path):
    for name, colour in (("red_ball", "red"), ("sky", "blue")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (300, 100), colour).save(tmp_path / "photos" / name / "1.png")
    assert pack.pack_folder(tmp_path / "photos", None, tmp_path / "pack", "mine") == 2
    assert pack.sources(tmp_path / "pack") == ["mine"]
    records = pack.read_index(tmp_path / "pack", "mine")
    assert [r.names for r in records] == [("red ball",), ("sky",)]
    images = list(pack.read_images(tmp_path / "pack", "mine", reversed(records)))
    assert images[0].size == (96, 72)
    blue, red = (image.getpixel((40, 40)) for image in images)
    assert blue[2] > 200 > 60 > blue[0]
    assert red[0] > 200 > 60 > red[2]


def test_left_out_ids_are_not_read(shapes_pack):
    every = pack.read_index(shapes_pack, "shapes")
    rest = pack.read_index(shapes_pack, "shapes", frozenset({every[3].id}))
    assert [r.id for r in rest] == [r.id for r in every if r is not every[3]]


def test_folder_without_readable_images_says_so(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.jpg").write_text("no image")
    with pytest.raises(UserError, match="no image could be read"):
        pack.pack_folder(tmp_path, None, tmp_path / "pack", "x")
    assert not (tmp_path / "pack" / "x.bin").exists()


def test_small_images_keep_their_size():
    assert pack.shrink(Image.new("RGB", (32, 32))).size == (32, 32)
    assert pack.shrink(Image.new("RGBA", (64, 300))).size == (64, 85)
