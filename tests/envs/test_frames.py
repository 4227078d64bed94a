"""Nothing that comes from a worker is believed: messages arrive whole, and of the right shape, or not at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import Observation, Step, Tool, frames
from envs.frames import BadFrame, Unpacker, pack


@given(st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text(max_size=300)), max_size=5), st.data())
def test_messages_come_out_as_they_went_in_however_the_line_cuts_them(sent: list[dict[str, Any]], data: Any) -> None:
    line = b"".join(map(pack, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(line)), max_size=8)))
    unpacker, got = Unpacker(), []
    for start, end in zip([0, *cuts], [*cuts, len(line)], strict=True):
        got += unpacker.feed(line[start:end])
    assert got == sent


@given(st.binary(max_size=40))
def test_any_bytes_are_messages_or_nonsense_and_nothing_else(piece: bytes) -> None:
    try:
        found = Unpacker().feed(piece)
    except BadFrame:
        return
    assert all(isinstance(message, dict) for message in found)


def test_deep_nesting_is_nonsense_on_the_way_in_and_out() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(BadFrame):
        pack(deep)
    body = b'{"x":' * 100_000 + b"1" + b"}" * 100_000
    with pytest.raises(BadFrame):
        Unpacker().feed(len(body).to_bytes(4, "big") + body)
    while deep:  # taken apart by hand: freeing it at once would recurse as deeply
        deep = deep["x"]


def test_observations_steps_and_tools_come_out_as_they_went_in() -> None:
    seen = Observation("text", ("a", "b"), {"x": [1, 2.5, None]})
    assert frames.to_observation(frames.from_observation(seen, "reset")) == seen
    step = Step(seen, 1, True, {"feedback": "good"})
    assert frames.to_step(frames.from_step(step)) == step
    tools = (Tool("name", "what it does", {"type": "object"}), Tool("other", ""))
    assert frames.to_tools(frames.from_tools(tools)) == tools


@pytest.mark.parametrize(
    "plain",
    [None, 5, "text", [], ["text", None], [5, None, None], ["", "abc", None], ["", [1], None], ["", None, []], {}],
)
def test_what_is_no_observation_is_not_taken_for_one(plain: object) -> None:
    with pytest.raises(BadFrame):
        frames.to_observation(plain)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        [["", None, None], 1.0, True],
        [["", None, None], "1", True, {}],
        [["", None, None], True, True, {}],
        [["", None, None], 1.0, 1, {}],
        [["", None, None], 1.0, True, None],
        ["", 1.0, True, {}],
    ],
)
def test_what_is_no_step_is_not_taken_for_one(plain: object) -> None:
    with pytest.raises(BadFrame):
        frames.to_step(plain)


@pytest.mark.parametrize("plain", [None, {}, [["name"]], [["name", 1, {}]], [["name", "", []]], ["abc"]])
def test_what_are_no_tools_are_not_taken_for_some(plain: object) -> None:
    with pytest.raises(BadFrame):
        frames.to_tools(plain)
