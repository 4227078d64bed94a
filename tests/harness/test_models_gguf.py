import asyncio
import gc
import json
import os
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from harness.model import ContextOverflow, Message, ModelFault, ModelRefused, Request, ToolCall
from harness.models.connect import connect
from harness.models.embedded import embedded_gguf, fast_gguf
from harness.models.gguf import GGUFModel
from harness.models.grammar import check_choices, schema_grammar, tools_read, tools_schema, tools_told

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
CHAT = (Message(role="user", content="What is the weather in Paris?"),)


def chat(text: str, **more) -> Request:
    return Request(messages=(Message(role="user", content=text),), **more)


# --- without a model


@pytest.mark.parametrize("content", [b"", b"MZ" + b"\0" * 2000, b"GGUF", b"GGUF" + b"\0" * 100])
def test_a_file_that_is_no_gguf_is_refused_by_name_before_it_is_loaded(tmp_path, content):
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelRefused, match=r"bad\.gguf"):
        GGUFModel(file)


def test_a_missing_file_or_a_folder_is_refused_by_name(tmp_path):
    for path in (tmp_path / "nothing.gguf", tmp_path):
        with pytest.raises(ModelRefused, match=path.name):
            GGUFModel(path)


def test_a_missing_extra_is_refused_with_its_cure(tmp_path, monkeypatch):
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 2000)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ModelRefused, match=r"pip install -e '.\[local\]'"):
        GGUFModel(file)


@pytest.mark.parametrize("choices", [(), ("",), (" ",), ("a", "b\0")])
def test_choices_that_cannot_be_asked_for_are_refused(choices):
    with pytest.raises(ModelRefused):
        check_choices(choices)


def test_a_schema_with_an_unknown_type_is_refused_but_data_may_hold_any_word():
    with pytest.raises(ModelRefused, match="frob"):
        schema_grammar({"type": "object", "properties": {"a": {"type": ["string", "frob"]}}})
    schema_grammar({"const": {"type": "frob"}})


def test_tools_are_told_in_words_and_read_from_json():
    call = ToolCall(id="call_0", name="weather", arguments='{"city": "Rome"}')
    request = Request(
        messages=(
            Message(role="system", content="Be kind."),
            *CHAT,
            Message(role="assistant", content="", tool_calls=(call,)),
            Message(role="tool", content="rain", tool_call_id="call_0"),
        ),
        tools=(WEATHER,),
    )
    told = tools_told(request)
    assert [message.role for message in told] == ["system", "user", "assistant", "user"]
    assert "Be kind." in told[0].content
    assert '"weather"' in told[0].content
    assert told[2].content == '{"name": "weather", "arguments": {"city": "Rome"}}'
    assert told[3].content == "Result of weather: rain"
    text, calls = tools_read('{"name": "weather", "arguments": {"city": "Paris"}}', request)
    assert (text, calls[0].id, json.loads(calls[0].arguments)) == ("", "call_1", {"city": "Paris"})
    assert tools_read('{"reply": "Hello."}', request) == ("Hello.", ())
    assert tools_read('{"name": "wea', request) == ('{"name": "wea', ())
    assert {"const": "weather"} in [shape["properties"].get("name") for shape in tools_schema((WEATHER,))["anyOf"]]


# --- with the embedded model


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: pip install -e '.[local]'")
    model = connect("embedded", {"context": 1024, "instances": 2, "logprobs": True})
    yield model
    asyncio.run(model.close())


def ask(model, *requests):
    async def together():
        return await asyncio.gather(*(model.complete(request) for request in requests))

    return asyncio.run(together())


@pytest.mark.model
def test_plain_text_continues_and_its_cost_is_counted(model):
    first, second = (ask(model, Request(prompt="The capital of France is", max_tokens=4))[0] for _ in range(2))
    assert first.text == second.text
    assert "Paris" in first.text
    assert first.finish_reason == "length"
    assert (first.usage.prompt_tokens, first.usage.output_tokens, first.usage.dollars) == (5, 4, 0.0)
    assert second.usage.cached_tokens > 0
    assert first.usage.seconds > 0
    assert len(first.output_ids) == len(first.output_logprobs) == 4
    assert all(logprob <= 0 for logprob in first.output_logprobs)


@pytest.mark.model
@pytest.mark.parametrize(
    ("part", "value"),
    [("usage", {"prompt_tokens": -5, "completion_tokens": 1}), ("usage", {}), ("timings", {"cache_n": 10**400})]
    + [
        ("choices", [{"text": "x", "finish_reason": "stop", "logprobs": {"content": [token]}}])
        for token in ({"id": -1, "logprob": -0.5}, {"id": 1, "logprob": None}, {"id": 1, "logprob": float("nan")})
    ],
)
def test_an_answer_whose_numbers_cannot_be_true_is_a_fault(model, monkeypatch, part, value):
    answer = {
        "choices": [{"text": "x", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "timings": {"cache_n": 0},
    }  # fmt: skip
    told = Future()
    told.set_result((0.1, answer | {part: value}))
    monkeypatch.setattr(model._pool, "submit", lambda job: told)
    with pytest.raises(ModelFault, match="no completion") as caught:
        ask(model, Request(prompt="x"))
    assert (caught.value.kind, caught.value.transient) == ("answer", False)


@pytest.mark.model
def test_a_choice_is_always_one_of_the_choices_whatever_they_hold(model):
    odd = (
        'say "hi" \\ back\\n',
        "Grüße an 🍎\u2028☃",
        "tab\there",
        "<|im_end|>",
        "go to desk 1",
        "two\nlines",
        " spaced ",
    )
    for choice in odd:
        requests = [Request(prompt="Action:", choices=(choice,), max_tokens=1), chat("Act.", choices=(choice,))]
        assert [answer.text for answer in ask(model, *requests)] == [choice, choice]
    for seed in range(3):
        (answer,) = ask(model, Request(prompt="Action:", choices=odd, temperature=2.0, seed=seed, stop=("d",)))
        assert answer.text in odd


@pytest.mark.model
def test_a_choice_that_begins_another_one_can_win(model):
    pattern = "".join(f"Say: go to desk {n}\nAction: go to desk {n}\n\n" for n in (3, 1, 10, 2, 11, 7))
    for wanted in ("go to desk 1", "go to desk 10"):
        prompt = f"{pattern}Say: {wanted}\nAction:"
        answers = ask(model, Request(prompt=prompt, choices=("go to desk 1", "go to desk 10", "go to desk 100")))
        assert answers[0].text == wanted


@pytest.mark.model
def test_a_choice_is_spelt_in_the_tokens_that_the_model_would_use(model):
    (answer,) = ask(model, Request(prompt="You see a mug.\nAction:", choices=("take mug from desk 2",)))
    assert len(answer.output_ids) == 7  # " take", " m", "ug", " from", " desk", " ", "2"


@pytest.mark.model
def test_a_schema_is_held_in_text_and_chat(model):
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "mood": {"enum": ["glad", "sad"]}},
        "required": ["age", "mood"],
        "additionalProperties": False,
    }
    for answer in ask(model, Request(prompt="A person:", schema=schema), chat("A person?", schema=schema)):
        value = json.loads(answer.text)
        assert isinstance(value["age"], int)
        assert value["mood"] in ("glad", "sad")


@pytest.mark.model
def test_a_schema_that_the_engine_cannot_hold_is_refused_and_not_ignored(model):
    with pytest.raises(ModelRefused, match="cannot hold"):
        ask(model, chat("Say hello.", schema={"$ref": "#/nowhere"}, max_tokens=200))


@pytest.mark.model
def test_a_tool_is_called_with_arguments_that_fit_it(model):
    (answer,) = ask(model, Request(messages=CHAT, tools=(WEATHER,)))
    if answer.tool_calls:  # the model may also reply; either way the form holds
        (call,) = answer.tool_calls
        assert call.name == "weather"
        assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
        assert answer.finish_reason == "tool_calls"
    else:
        assert answer.text


@pytest.mark.model
def test_equal_seeds_give_equal_text_and_other_seeds_other_text(model):
    def told(seed):
        return ask(model, Request(prompt="Once upon a time", temperature=1.5, seed=seed, max_tokens=12))[0].text

    assert told(2**62 + 1) == told(2**62 + 1)
    assert len({told(seed) for seed in range(4)}) > 1


@pytest.mark.model
def test_a_prompt_that_does_not_fit_is_an_overflow_with_its_numbers(model):
    small = GGUFModel(model.path, context=256)
    for request in (Request(prompt="word " * 500), chat("word " * 500)):
        with pytest.raises(ContextOverflow) as caught:
            ask(small, request)
        assert caught.value.limit == 256
        assert caught.value.tokens > 500
    with pytest.raises(ContextOverflow, match="no room for an answer"):
        ask(small, Request(prompt="word" + " word" * 254, choices=("left and right and left again",)))
    asyncio.run(small.close())


@pytest.mark.model
@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(messages=CHAT, prompt="both"),
        Request(prompt="x", tools=(WEATHER,)),
        Request(messages=CHAT, choices=("a",), tools=(WEATHER,)),
        Request(prompt="broken \ud800 text"),
        Request(messages=CHAT, tools=({"type": "function"},)),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(model, request_):
    with pytest.raises(ModelRefused):
        ask(model, request_)


@pytest.mark.model
def test_the_event_loop_runs_on_while_the_model_works(model):
    async def both():
        work = asyncio.create_task(model.complete(Request(prompt="Once", max_tokens=60)))
        ticks = 0
        while not work.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks, await work

    ticks, _ = asyncio.run(both())
    assert ticks > 5


@pytest.mark.model
def test_a_cancelled_caller_leaves_the_model_whole(model):
    long = Request(prompt="Tell me everything:", max_tokens=80)
    short = Request(prompt="The capital of France is", max_tokens=2)

    async def cancel_some():
        tasks = [asyncio.create_task(model.complete(long)) for _ in range(6)]  # two run, four wait
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(end, asyncio.CancelledError) for end in asyncio.run(cancel_some()))
    assert [answer.text for answer in ask(model, short, short, short)] == [" Paris."] * 3


@pytest.mark.model
def test_a_request_goes_to_the_copy_that_knows_its_beginning(model):
    stories = ["A fox walked over the hill. " * 12, "My uncle keeps bees at home. " * 12]
    ask(model, *(Request(prompt=story, max_tokens=1) for story in stories))
    for story in reversed(stories):
        (answer,) = ask(model, Request(prompt=story + "Then", max_tokens=1))
        assert answer.usage.cached_tokens > 0.9 * answer.usage.prompt_tokens


@pytest.mark.model
def test_without_reuse_an_answer_does_not_depend_on_what_was_asked_before(model):
    own = GGUFModel(model.path, context=512, logprobs=True, reuse=False)
    request = Request(prompt="The fox walked over the hill. " * 8 + "Then", max_tokens=3)
    first, _, again = [ask(own, one)[0] for one in (request, Request(prompt=request.prompt[:90]), request)]
    asyncio.run(own.close())
    assert again.usage.cached_tokens == 0
    assert again.output_logprobs == first.output_logprobs


@pytest.mark.model
def test_closing_frees_every_thread_refuses_what_waits_and_may_be_done_twice(model):
    before = threading.active_count()
    own = GGUFModel(model.path, instances=1, context=256)

    async def close_early():
        tasks = [asyncio.create_task(own.complete(Request(prompt="Once", max_tokens=20))) for _ in range(3)]
        await asyncio.sleep(0.05)
        await own.close()
        await own.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(close_early())
    assert ends[0].usage.output_tokens > 0
    assert all(isinstance(end, ModelFault) for end in ends[1:])
    assert threading.active_count() == before
    with pytest.raises(ModelRefused, match="closed"):
        ask(own, Request(prompt="x"))


@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts native threads in /proc")
def test_models_that_come_and_go_leave_no_native_threads(model):
    def once():
        own = GGUFModel(model.path, context=256)
        ask(own, Request(prompt="x", max_tokens=1))
        asyncio.run(own.close())
        gc.collect()
        deadline = time.monotonic() + 5
        while len(os.listdir("/proc/self/task")) > settled and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(os.listdir("/proc/self/task"))

    settled = 10**6
    settled = once()
    assert [once() for _ in range(3)] == [settled] * 3


@pytest.mark.model
def test_a_file_cut_short_is_refused_by_name_and_the_process_lives(model, tmp_path):
    file = tmp_path / "short.gguf"
    with model.path.open("rb") as whole:
        file.write_bytes(whole.read(3_000_000))
    cut = GGUFModel(file)
    for _ in range(2):
        with pytest.raises(ModelRefused, match=r"short\.gguf"):
            ask(cut, Request(prompt="x"))
    asyncio.run(cut.close())


@pytest.mark.model
def test_nobody_else_may_use_the_port_that_llama_listens_on(model):
    import urllib.error
    import urllib.request

    ask(model, Request(prompt="x", max_tokens=1))
    address = next(one._server.listening_address for one in model._pool._instances if one._server)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    question = urllib.request.Request(f"{address}/completion", data=b'{"prompt": "x", "n_predict": 1}')
    with pytest.raises(urllib.error.HTTPError, match="401") as caught:
        opener.open(question, timeout=5)
    caught.value.close()


@pytest.mark.model
def test_the_fast_copy_of_the_embedded_model_is_made_once_and_again_when_damaged(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / embedded_gguf().name).symlink_to(embedded_gguf())
    monkeypatch.setenv("INSTAR_CACHE", str(tmp_path))
    made = fast_gguf().stat()
    assert fast_gguf().stat().st_mtime_ns == made.st_mtime_ns
    fast_gguf().write_bytes(b"GGUF, but cut short")
    assert fast_gguf().stat().st_size == made.st_size
