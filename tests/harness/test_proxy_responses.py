"""The Responses API through OpenAI's own client: the same chat in other words."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from proxying import WEATHER, Scripted, client, said, serving, written

from harness.model import Message, ToolCall
from harness.proxy.refusal import Refusal
from harness.proxy.responses import Threads, read_responses
from harness.proxy.wire_in import Defaults

TOOL: Any = {"type": "function", "strict": None, **WEATHER["function"]}


def forecast(request: Any) -> Any:
    if request.tools and request.messages[-1].role != "tool":
        return said("Let me see.", ("weather", '{"city": "Rome"}'))
    return said(f"{len(request.messages)} messages")


async def test_an_answer_is_a_response_object_with_text_and_usage(tmp_path: Path) -> None:
    async with serving(tmp_path, forecast) as (url, _), client(url) as openai_:
        answer = await openai_.responses.create(model="m", input="Hi", instructions="Be brief.", max_output_tokens=9)
    assert (answer.output_text, answer.status, answer.object) == ("2 messages", "completed", "response")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (7, 3, 10)
    [trajectory] = written(tmp_path)
    assert trajectory.turns[0].observation == "Hi"
    assert trajectory.turns[0].calls[0].messages[0] == Message(role="system", content="Be brief.")


async def test_a_function_call_and_its_output_are_one_message_and_its_answer(tmp_path: Path) -> None:
    model = Scripted(forecast)
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}]
        first = await openai_.responses.create(model="m", input=items, tools=[TOOL], tool_choice="required")
        [call] = [item for item in first.output if item.type == "function_call"]
        items += [item.model_dump() for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        second = await openai_.responses.create(model="m", input=items, tools=[TOOL])
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})
    assert second.output_text == "3 messages"
    assert model.asked[0].tools[0]["function"]["name"] == "weather"
    assert model.asked[0].extra == {"tool_choice": "required"}
    made = ToolCall(id=call.call_id, name="weather", arguments='{"city": "Rome"}')
    assert model.asked[1].messages[1:] == (
        Message(role="assistant", content="Let me see.", tool_calls=(made,)),
        Message(role="tool", content="sunny", tool_call_id=call.call_id),
    )


async def test_a_response_can_be_gone_on_from_by_its_id_unless_it_was_not_to_be_stored(tmp_path: Path) -> None:
    model = Scripted(lambda request: said(f"answer {len(request.messages)}"))
    async with serving(tmp_path, model) as (url, _), client(url) as openai_, client(url, "sk-instar-other") as other:
        first = await openai_.responses.create(model="m", input="One", instructions="Only now.")
        second = await openai_.responses.create(model="m", input="Two", previous_response_id=first.id)
        unkept = await openai_.responses.create(model="m", input="Three", store=False)
        for who, id in ((openai_, unkept.id), (other, first.id)):
            with pytest.raises(openai.BadRequestError) as refused:
                await who.responses.create(model="m", input="Four", previous_response_id=id)
            assert refused.value.code == "previous_response_not_found"
    assert second.previous_response_id == first.id
    assert [message.content for message in model.asked[1].messages] == ["One", "answer 2", "Two"]


async def test_a_stream_of_events_can_be_put_together_by_the_sdk(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, forecast) as (url, _),
        client(url) as openai_,
        openai_.responses.stream(model="m", input="Weather?", tools=[TOOL]) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    assert "response.function_call_arguments.done" in kinds
    assert final.output_text == "Let me see."
    assert final.output[1].arguments == '{"city": "Rome"}'


async def test_an_answer_that_was_cut_is_incomplete(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda r: said("Once upon", finish_reason="length")) as (url, _), client(url) as made:
        answer = await made.responses.create(model="m", input="Tell me", max_output_tokens=2)
        events = [event.type async for event in await made.responses.create(model="m", input="Tell", stream=True)]
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert events[-1] == "response.incomplete"


def test_formats_and_reasoning_are_told_in_the_words_of_chat() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = {
        "input": "x", "text": {"format": form},
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "top_p": 0.5,
        "tool_choice": {"type": "function", "name": "weather"}, "tools": [TOOL], "store": False, "model": "m",
    }  # fmt: skip
    request = read_responses(body, Defaults(), Threads()).request
    assert request.schema_ == {"type": "object"}
    inner = {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert request.extra == {
        "top_p": 0.5, "reasoning_effort": "low", "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {"type": "json_schema", "json_schema": inner},
    }  # fmt: skip


CANNOT: list[tuple[dict[str, Any], str]] = [
    ({}, "input must be"),
    ({"input": []}, "input must be"),
    ({"input": [{"type": "reasoning"}]}, "'reasoning' cannot be held"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' cannot be held"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "only text"),
    ({"input": [{"role": "tool", "content": "x"}]}, "role must be"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]}, "arguments must be"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "'web_search' is not supported"),
    ({"input": "x", "tool_choice": {"type": "web_search"}}, "must name a function"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "conversation": "c"}, "conversations"),
    ({"input": "x", "prompt": {"id": "p"}}, "prompts"),
    ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "needs a schema"),
]


@pytest.mark.parametrize(("body", "words"), CANNOT, ids=[words for _, words in CANNOT])
def test_what_only_openai_can_do_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        read_responses(body, Defaults(), Threads())
