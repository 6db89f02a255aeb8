"""A folder of images is a dataset: a class for each folder in it; what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from planaria.data.images import folder
from planaria.data.reading.sources import DataError

COLOURS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name, colour in COLOURS.items():
        (tmp_path / name / "deep").mkdir(parents=True)
        Image.new("RGB", (40, 30), colour).save(tmp_path / name / "b.png")
        Image.new("RGB", (30, 50), colour).save(tmp_path / name / "deep" / "a.jpg", quality=95)
        Image.new("L", (8, 8), 255).save(tmp_path / name / "c.png")
    (tmp_path / "red" / "notes.txt").write_text("not an image")
    return tmp_path


def test_classes_are_folders_and_pixels_are_normalised(images: Path) -> None:
    found = folder(str(images), size=16)
    assert (len(found), found.classes) == (6, ["blue", "red"])
    assert [int(found[number]["labels"]) for number in range(6)] == [0, 1, 0, 1, 0, 1]
    blue, red, white = (-1.0, -1.0, 1.0), (1.0, -1.0, -1.0), (1.0, 1.0, 1.0)
    for number, colour in ((0, blue), (4, blue), (1, red), (2, white)):
        values = found[number]["pixel_values"]
        assert (values.shape, values.dtype) == ((3, 16, 16), torch.float32)
        assert torch.allclose(values.mean((1, 2)), torch.tensor(colour), atol=0.02)
    shifted = folder(str(images), size=16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 0.5))
    assert torch.allclose(shifted[0]["pixel_values"].mean((1, 2)), torch.tensor([0.0, 0.0, 2.0]), atol=0.02)


def test_an_image_is_scaled_and_cut_to_its_middle(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    wide = Image.new("RGB", (90, 30), (0, 0, 0))
    wide.paste((255, 255, 255), (30, 0, 60, 30))
    wide.save(tmp_path / "one" / "wide.png")
    values = folder(str(tmp_path), size=10)[0]["pixel_values"]
    assert values[:, :, 1:-1].min() == 1.0


def test_images_are_mirrored_by_the_chance_of_their_item(images: Path) -> None:
    half = Image.new("RGB", (16, 16), (0, 0, 0))
    half.paste((255, 255, 255), (0, 0, 8, 16))
    half.save(images / "blue" / "a.png")
    found = folder(str(images), size=16, flip=True)
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        seen.add(float(found[0]["pixel_values"][0, 0, 0]))
    assert seen == {-1.0, 1.0}


def test_an_image_that_cannot_be_read_is_refused_or_counted(images: Path) -> None:
    (images / "red" / "a.png").write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"red/a\.png cannot be read .*on_bad_row = \"skip\""):
        folder(str(images), size=16)
    found = folder(str(images), size=16, on_bad_row="skip")
    assert len(found) == 6
    assert found.bad_rows[0] == 1
    assert "red/a.png" in found.bad_rows[1]
    Image.effect_noise((99, 99), 50).save(images / "blue" / "deep" / "a.jpg")
    whole = (images / "blue" / "deep" / "a.jpg").read_bytes()
    (images / "blue" / "deep" / "a.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.jpg cannot be read \(image file is truncated"):
        folder(str(images), size=16, on_bad_row="skip")[3]
    (images / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no folders of images"):
        folder(str(images / "empty"))
