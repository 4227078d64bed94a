"""What is made quickly, for it is made at each step, is what the plain way makes: records of old runs depend on it."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.journal import Journal
from harness.model import Digests, Message, Request, ToolCall, Usage
from harness.trajectory import Call, Turn

ANY = st.characters(codec=None, exclude_categories=())  # halves of surrogate pairs, too: models send them
TEXT = st.text(ANY, max_size=8) | st.text(ANY, min_size=201, max_size=210)
NAME = st.text(max_size=5)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(NAME | st.sampled_from(["messages", "tools", "$text", "$chain", "$plain"]), DATA, max_size=3)
CALLED = st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT)
MESSAGE = st.builds(
    Message, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=TEXT,
    tool_calls=st.lists(CALLED, max_size=2).map(tuple), tool_call_id=st.none() | TEXT,
)  # fmt: skip
MESSAGES = st.lists(MESSAGE, max_size=5).map(tuple)
TOOLS = st.lists(OBJECT, max_size=2).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return Request(
        messages=draw(MESSAGES), prompt=draw(st.none() | TEXT), schema=draw(st.none() | OBJECT), tools=draw(TOOLS),
        choices=draw(st.none() | st.lists(TEXT, max_size=3).map(tuple)), temperature=draw(st.floats()),
        max_tokens=draw(st.integers()), stop=draw(st.lists(TEXT, max_size=2).map(tuple)),
        seed=draw(st.none() | st.integers()), extra=draw(OBJECT),
    )  # fmt: skip


def plain_digest(request: Request) -> str:
    content = request.model_dump(mode="json", by_alias=True)
    if not request.extra:
        del content["extra"]
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@given(requests())
def test_the_digest_of_a_request_is_the_hash_of_its_sorted_json(request_: Request) -> None:
    assert request_.digest() == plain_digest(request_)


@given(st.lists(requests(), max_size=4), MESSAGES, st.data())
def test_digests_of_a_conversation_do_not_depend_on_what_was_asked_before(
    asked: list[Request], talk: tuple[Message, ...], data: st.DataObject
) -> None:
    digests, rest = Digests(), data.draw(requests())
    cuts = data.draw(st.lists(st.integers(0, len(talk)), max_size=6))
    asked += [rest.model_copy(update={"messages": talk[:cut]}) for cut in cuts]
    assert list(map(digests.of, asked)) == list(map(plain_digest, asked))


USAGE = st.builds(
    Usage, prompt_tokens=st.integers(0, 9), dollars=st.none() | st.floats(0, 1), seconds=st.floats(0, 1)
)  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> Call:
    sent: dict[str, Any] = draw(st.fixed_dictionaries({"messages": MESSAGES}) | st.fixed_dictionaries({"prompt": TEXT}))
    numbers = st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple)
    return Call(
        **sent, tools=draw(TOOLS), output=draw(TEXT), digest=draw(NAME), usage=draw(USAGE), cached=draw(st.booleans()),
        tool_calls=draw(st.lists(CALLED, max_size=2).map(tuple)), mode=draw(st.sampled_from([None, "plain"])),
        faults=draw(st.lists(NAME, max_size=2).map(tuple)), prompt_ids=draw(numbers), output_ids=draw(numbers),
        output_logprobs=draw(st.none() | st.lists(st.floats(-9, 0), max_size=3).map(tuple)),
    )  # fmt: skip


TURN = st.builds(
    Turn, observation=TEXT, action=TEXT, situation=TEXT, move=NAME, retrieved=st.lists(NAME, max_size=2).map(tuple),
    calls=st.lists(calls(), max_size=2).map(tuple), reward=st.none() | st.floats(-1, 1), feedback=TEXT,
    invalid=st.booleans(),
)  # fmt: skip


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Journal(tmp_path_factory.mktemp("run")) as journal:
        yield journal


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(turn=TURN)
def test_a_turn_is_kept_as_its_dump_would_be(journal: Journal, turn: Turn) -> None:
    seq = journal.step("k", 0, turn)
    journal.append("step", {"attempt": 0, "turn": turn.model_dump(mode="json", exclude_defaults=True)}, "k")
    quick, plain = (event.body for event in journal.events("step", "k", after=seq - 1))
    assert json.dumps(quick, sort_keys=True) == json.dumps(plain, sort_keys=True)
