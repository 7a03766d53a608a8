"""The pictures of the cookbook are what its programs declare."""

from __future__ import annotations

from tests.cookbook_pictures import FOLDER, PAGE, drawn


def test_each_recipe_has_the_picture_of_its_topology() -> None:
    pictures, page = dict(drawn()), PAGE.read_text(encoding="utf-8")
    assert len(pictures) == page.count("\n## ") == 10
    assert {path.name for path in FOLDER.iterdir()} == set(pictures)
    for name, picture in pictures.items():
        assert f"(images/cookbook/{name})" in page
        assert (FOLDER / name).read_text(encoding="utf-8") == picture, "python -m tests.cookbook_pictures"
