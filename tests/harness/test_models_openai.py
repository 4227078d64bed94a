import asyncio
import logging
import traceback

import pytest
from openai_stub import Stub

from harness.model import Completion, ContextOverflow, Message, ModelFault, ModelRefused, Request, ToolCall
from harness.models.openai_api import OpenAIModel
from harness.models.wire import match_choice
from harness.secrecy import mask

CHAT = Request(messages=(Message(role="user", content="hello there"),))
CHOICE = Request(messages=(Message(role="user", content="where to?"),), choices=("go left", "go right"))
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def ask(stub: Stub, *requests: Request, **options) -> list[Completion]:
    async def all_of_them():
        model = OpenAIModel("tiny", api_base=stub.url, **options)
        try:
            return [await model.complete(request) for request in requests]
        finally:
            await model.close()

    return asyncio.run(all_of_them())


def failure(stub: Stub, request: Request = CHAT, **options) -> Exception:
    with pytest.raises((ModelRefused, ModelFault, ContextOverflow)) as caught:
        ask(stub, request, **options)
    return caught.value


def test_a_chat_comes_back_with_its_text_and_cost():
    with Stub() as stub:
        (answer,) = ask(stub, CHAT, price_in=10, price_out=100)
    assert answer.text == "you said 2 words"
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens, answer.usage.output_tokens) == (2, 1, 4)
    assert answer.usage.dollars == pytest.approx(2 * 10e-6 + 4 * 100e-6)
    assert answer.usage.seconds > 0


def test_without_prices_the_dollars_are_unknown_and_not_zero():
    with Stub() as stub:
        assert ask(stub, CHAT)[0].usage.dollars is None
    with pytest.raises(ModelRefused, match="both price_in and price_out"):
        OpenAIModel("tiny", api_base="http://127.0.0.1:1/v1", price_in=1)


def test_sampling_settings_reach_the_server():
    request = CHAT.model_copy(update={"temperature": 0.7, "max_tokens": 9, "stop": ("\n",), "seed": 2**40 + 5})
    with Stub() as stub:
        ask(stub, request)
    sent = stub.seen[0][1]
    assert (sent["temperature"], sent["max_tokens"], sent["stop"], sent["seed"]) == (0.7, 9, ["\n"], 5)


def test_choices_are_asked_for_as_a_schema_and_come_back_bare():
    with Stub(reply=lambda body: "go right") as stub:
        assert ask(stub, CHOICE)[0].text == "go right"
    schema = stub.seen[0][1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["enum"] == ["go left", "go right"]


def test_a_server_without_response_format_is_asked_in_plain_text_and_that_is_said_once(caplog):
    with (
        Stub(response_format=False, reply=lambda body: "I think I'd Go Right.") as stub,
        caplog.at_level(logging.WARNING),
    ):
        answers = ask(stub, CHOICE, CHOICE)
    assert [answer.text for answer in answers] == ["go right", "go right"]
    assert ["response_format" in body for _, body in stub.seen] == [True, True, False, False]
    assert [answer.mode for answer in answers] == ["plain", "plain"]
    assert [record.message for record in caplog.records if "response_format" in record.message] != []
    assert len(caplog.records) == 1


def test_a_bad_request_that_has_nothing_to_do_with_the_format_teaches_nothing():
    with Stub(faults=["400", "400"], reply=lambda body: "go left") as stub:
        assert isinstance(failure(stub, CHOICE), ModelRefused)

        async def twice():
            model = OpenAIModel("tiny", api_base=stub.url)
            stub.faults += ["400", "400"]
            with pytest.raises(ModelRefused):
                await model.complete(CHOICE)
            answer = await model.complete(CHOICE)
            await model.close()
            return model.lacks, answer.text

        assert asyncio.run(twice()) == (set(), "go left")
    assert all("response_format" in body for _, body in stub.seen)


@pytest.mark.parametrize("fault", ["400", "format"])
@pytest.mark.parametrize("at", [0, 1])
def test_one_stray_refusal_changes_nothing_in_how_choices_are_asked_for(fault, at):
    with Stub(reply=lambda body: "go left") as stub:

        async def several():
            model = OpenAIModel("tiny", api_base=stub.url)
            answers = []
            for number in range(4):
                stub.faults += [fault] * (number == at)
                answers.append(await model.complete(CHOICE))
            await model.close()
            return answers, model.lacks

        answers, lacks = asyncio.run(several())
    assert [answer.mode for answer in answers] == ["constrained"] * 4
    assert lacks == set()
    assert ["response_format" in body for _, body in stub.seen] == [True] * 5


@pytest.mark.parametrize("fault", ["400", "format"])
def test_a_prompt_that_alone_is_refused_again_and_again_is_a_fault_of_its_own_and_not_of_the_run(fault):
    with Stub(reply=lambda body: "go left") as stub:

        async def several():
            model = OpenAIModel("tiny", api_base=stub.url)
            await model.complete(CHOICE)
            stub.faults += [fault, fault]
            with pytest.raises(ModelFault, match=r"the provider refused this prompt \(400, openai/tiny\): ") as caught:
                await model.complete(CHOICE)
            again = await model.complete(CHOICE)
            await model.close()
            return caught.value.transient, again.mode

        assert asyncio.run(several()) == (False, "constrained")


def test_an_answer_says_how_it_was_held_to_its_choices():
    schema = CHAT.model_copy(update={"schema_": {"type": "object", "properties": {}}})
    with Stub() as stub:
        assert [answer.mode for answer in ask(stub, CHAT, CHOICE, schema)] == [None, "constrained", "constrained"]


def test_one_stray_404_does_not_turn_prompts_into_chats():
    with Stub() as stub:

        async def several():
            model = OpenAIModel("tiny", api_base=stub.url)
            await model.complete(Request(prompt="once"))
            stub.faults.append("404")
            with pytest.raises(ModelRefused):
                await model.complete(Request(prompt="upon"))
            await model.complete(Request(prompt="a time"))
            await model.close()

        asyncio.run(several())
    assert {path for path, _ in stub.seen} == {"/v1/completions"}


def test_a_schema_that_the_server_refuses_is_refused_and_not_ignored():
    request = CHAT.model_copy(update={"schema_": {"type": "object", "properties": {}}})
    with Stub(response_format=False) as stub:
        assert isinstance(failure(stub, request), ModelRefused)
    assert all("response_format" in body for _, body in stub.seen)


def test_a_server_that_wants_the_newer_length_name_gets_it():
    with Stub(only_max_completion_tokens=True) as stub:
        assert [answer.text for answer in ask(stub, CHAT, CHAT)] == ["you said 2 words"] * 2
    assert ["max_tokens" in body for _, body in stub.seen] == [True, True, False, False]


def test_a_plain_prompt_goes_to_completions_or_else_becomes_one_user_message():
    with Stub() as stub:
        ask(stub, Request(prompt="once upon a time"))
        assert stub.seen[0][0] == "/v1/completions"
    with Stub(completions=False) as stub:
        answers = ask(stub, Request(prompt="once upon a time"), Request(prompt="and then"))
    assert [answer.text for answer in answers] == ["you said 4 words", "you said 2 words"]
    assert [path for path, _ in stub.seen] == ["/v1/completions", "/v1/chat/completions", "/v1/chat/completions"]


def test_tool_calls_keep_their_raw_arguments_even_when_malformed():
    request = CHAT.model_copy(update={"tools": (TOOL,)})
    with Stub() as stub:
        (good,) = ask(stub, request)
        stub.tool_arguments = '{"at": "the '
        (bad,) = ask(stub, request)
    assert good.tool_calls == (ToolCall(id="call_a", name="look", arguments='{"at": "text"}'),)
    assert good.finish_reason == "tool_calls"
    assert bad.tool_calls[0].arguments == '{"at": "the '


def test_a_tool_result_is_sent_back_with_the_call_that_asked_for_it():
    call = ToolCall(id="call_a", name="look", arguments="{}")
    chat = (
        Message(role="user", content="look"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="a cat", tool_call_id="call_a"),
    )
    with Stub() as stub:
        ask(stub, Request(messages=chat, tools=(TOOL,)))
    sent = stub.seen[0][1]["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert sent[2]["tool_call_id"] == "call_a"


def test_token_ids_and_logprobs_are_kept_when_the_server_gives_them():
    with Stub() as stub:
        (answer,) = ask(stub, CHAT, token_ids=True)
        (without,) = ask(stub, CHAT)
    assert (answer.output_ids, answer.output_logprobs) == ((0, 1, 2, 3), (-0.5,) * 4)
    assert (without.output_ids, without.output_logprobs) == (None, None)


def test_a_rate_limit_is_a_fault_with_the_time_to_wait():
    with Stub(faults=["429"]) as stub:
        fault = failure(stub)
    assert isinstance(fault, ModelFault)
    assert fault.retry_after == 7.0
    assert len(stub.seen) == 1  # the retry is the runner's


def test_a_rate_limit_may_name_a_date():
    with Stub(faults=["429"], retry_after="Wed, 21 Oct 2015 07:28:00 GMT") as stub:
        assert failure(stub).retry_after == 0.0


def test_an_empty_account_is_refused_because_waiting_does_not_help():
    with Stub(faults=["quota"]) as stub:
        assert isinstance(failure(stub), ModelRefused)


@pytest.mark.parametrize("fault", ["500", "drop", "garbage", "not_json"])
def test_a_broken_server_is_a_fault(fault):
    with Stub(faults=[fault]) as stub:
        assert isinstance(failure(stub), ModelFault)
        assert len(stub.seen) == 1


def test_a_server_that_hangs_is_a_fault_that_names_its_address():
    with Stub(faults=["hang"]) as stub:
        fault = failure(stub, timeout=0.2)
    assert isinstance(fault, ModelFault)
    assert stub.url in str(fault)


def test_a_server_that_is_not_there_is_a_fault_that_names_its_address():
    with Stub() as stub:
        pass
    fault = failure(stub)
    assert isinstance(fault, ModelFault)
    assert stub.url in str(fault)


@pytest.mark.parametrize("fault", ["401", "404"])
def test_a_wrong_key_or_model_is_refused(fault):
    with Stub(faults=[fault]) as stub:
        assert isinstance(failure(stub), ModelRefused)


def test_a_key_is_sent_to_the_server_and_never_shown(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-123")
    with Stub(key="another") as stub:
        refusal = failure(stub, api_key_env="MY_KEY")
    assert stub.keys == ["sk-very-secret-123"]
    assert isinstance(refusal, ModelRefused)
    assert "MY_KEY" in str(refusal)
    assert "secret" not in str(refusal)


@pytest.mark.parametrize("fault", ["echo", "echo_json", "echo_400"])
def test_a_key_that_the_server_sends_back_is_masked_before_the_text_is_cut(monkeypatch, fault):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-123")
    with Stub(faults=[fault, fault]) as stub:
        said = failure(stub, api_key_env="MY_KEY")
    assert not any(part in str(said) for part in ("sk-", "secret", "very"))
    shown = "".join(traceback.format_exception(said))
    assert "secret" not in shown


def test_a_model_that_repeats_its_key_does_not_put_it_into_the_record(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-123")
    with Stub(reply=lambda body: "your key is sk-very-secret-123") as stub:
        assert ask(stub, CHAT, api_key_env="MY_KEY")[0].text == "your key is ***"


@pytest.mark.parametrize("variable", ["OTHER_API_KEY", "SOME_TOKEN", "client_secret", "THE_KEY"])
def test_other_secrets_of_the_environment_are_masked_too(monkeypatch, variable):
    monkeypatch.setenv(variable, "plain-but-hidden")
    assert mask("it is plain-but-hidden.") == "it is ***."


@pytest.mark.parametrize(
    "name", ["sk-abcdefgh12345678", "sk_live_abc", "hf_abcdefgh", "a b", "", "A" * 65, "MY-KEY", "1KEY", "KEY\n"]
)
def test_a_key_in_the_place_of_a_variables_name_is_refused_and_not_repeated(name):
    with pytest.raises(ModelRefused, match="no name of an environment variable") as caught:
        OpenAIModel("tiny", api_base="http://127.0.0.1:1/v1", api_key_env=name)
    assert not name or name not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://me:hunter22@models.example/v1", "https://hunter22@models.example/v1",
        "https://models.example/v1?api_key=hunter22", "https://models.example/v1?sig=hunter22",
        "models.example/hunter22", "http://[hunter22/v1", "http://x:hunter22/v1",
    ],
)  # fmt: skip
def test_an_address_with_a_password_or_of_nothing_is_refused_and_not_repeated(monkeypatch, address):
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    for told in ({"api_base": address}, {}):
        if not told:
            monkeypatch.setenv("OPENAI_BASE_URL", address)
        with pytest.raises(ModelRefused, match="api_base ") as caught:
            OpenAIModel("tiny", **told)
        assert "hunter22" not in str(caught.value)


def test_a_remote_server_without_a_key_is_refused_before_it_is_asked():
    with pytest.raises(ModelRefused, match="export OPENAI_API_KEY"):
        OpenAIModel("tiny", api_base="https://models.example/v1")


def test_a_prompt_that_does_not_fit_is_an_overflow_with_its_numbers():
    with Stub(context=100) as stub:
        overflow = failure(stub, Request(messages=(Message(role="user", content="word " * 150),)))
    assert isinstance(overflow, ContextOverflow)
    assert (overflow.tokens, overflow.limit) == (150, 100)


def test_one_model_serves_several_event_loops():
    with Stub() as stub:
        model = OpenAIModel("tiny", api_base=stub.url)

        async def once():
            answer = await model.complete(CHAT)
            await model.close()
            return answer.text

        assert asyncio.run(once()) == asyncio.run(once()) == "you said 2 words"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ('{"action": "go to desk 1"}', "go to desk 1"),
        ('```json\n{"action": "go to desk 1"}\n```', "go to desk 1"),
        ('"look"', "look"),
        ("  Go to Desk 10. ", "go to desk 10"),
        ("I will go to desk 10 now", "go to desk 10"),
        ("either look or go to desk 1", "either look or go to desk 1"),
        ("overlook it", "overlook it"),
        ('{"action": "fly"}', '{"action": "fly"}'),
    ],
)
def test_a_choice_is_recognised_in_loose_text_and_never_guessed(said, meant):
    assert match_choice(said, ("go to desk 1", "go to desk 10", "look")) == meant
