"""What a world or a model says becomes an item, whatever it is."""

from pathlib import Path

import pytest

from memory import HashEmbedder, Item, Store

ODD = ["caf\udce9", "\ud800", "\ud83d\ude00", "a\udc00b"]


@pytest.mark.parametrize("text", ODD)
def test_half_a_character_is_replaced_and_the_item_can_be_kept(tmp_path: Path, text: str) -> None:
    made = Item.make("step", "kitchen", text, text)
    assert made.key == made.body
    made.key.encode()
    assert made.id == Item.make("step", "kitchen", made.key, made.body).id  # the id is of what is kept
    with Store(tmp_path / "m.db", HashEmbedder(8)) as store:
        assert store.put([made]) == [True]
        assert store.get(made.id) == made


def test_a_whole_character_in_two_halves_is_put_together() -> None:
    assert Item.make("step", "kitchen", "\ud83d\ude00", "").key == "\U0001f600"


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_key_has_a_name(blank: str) -> None:
    assert Item.make("experience", "kitchen", blank, "did it").key == "(nothing)"


def test_ordinary_text_is_kept_as_it_is() -> None:
    made = Item.make("step", "kitchen", " go \n", " \0 \u00e4 ")
    assert (made.key, made.body) == (" go \n", " \0 \u00e4 ")
