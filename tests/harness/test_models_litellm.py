import asyncio
import sys
import traceback

import openai_stub
import pytest
from openai_stub import Stub

from harness.model import Completion, ContextOverflow, Message, ModelFault, ModelRefused, Request
from harness.models.litellm_api import LiteLLMModel

CHAT = Request(messages=(Message(role="user", content="hello there"),))
CHOICE = Request(messages=(Message(role="user", content="where to?"),), choices=("go left", "go right"))


def ask(stub: Stub, *requests: Request, **options) -> list[Completion]:
    async def all_of_them():
        model = LiteLLMModel("hosted_vllm/tiny", api_base=stub.url, **options)
        try:
            return [await model.complete(request) for request in requests]
        finally:
            await model.close()

    return asyncio.run(all_of_them())


def test_a_missing_extra_is_refused_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ModelRefused, match=r"make litellm, or pip install -e '.\[litellm\]'"):
        LiteLLMModel("anthropic/claude")


class TestWithLiteLLM:
    """Real litellm against a real local server."""

    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch):
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        pytest.importorskip("litellm", reason="litellm is not installed: make litellm")

    def test_a_chat_comes_back_with_its_text_and_usage(self):
        with Stub() as stub:
            (answer,) = ask(stub, CHAT)
        assert answer.text == "you said 2 words"
        assert (answer.usage.prompt_tokens, answer.usage.cached_tokens, answer.usage.output_tokens) == (2, 1, 4)
        assert answer.usage.dollars is None

    def test_prices_that_are_given_are_used(self):
        with Stub() as stub:
            (answer,) = ask(stub, CHAT, price_in=1, price_out=2)
        assert answer.usage.dollars == pytest.approx(10e-6)

    def test_a_known_model_costs_what_the_price_list_says(self):
        async def once(stub):
            model = LiteLLMModel("openai/gpt-4o-mini", api_base=stub.url, api_key_env="A_KEY")
            return await model.complete(CHAT)

        with Stub() as stub, pytest.MonkeyPatch.context() as patch:
            patch.setenv("A_KEY", "some-key-123")
            answer = asyncio.run(once(stub))
        assert answer.usage.dollars is not None
        assert 0 < answer.usage.dollars < 1e-4
        assert stub.keys == ["some-key-123"]

    def test_choices_come_back_bare_with_or_without_a_format(self):
        with Stub(reply=lambda body: "go right") as stub:
            assert ask(stub, CHOICE)[0].text == "go right"
            assert "response_format" in stub.seen[0][1]
        with Stub(reply=lambda body: "Go right!", response_format=False) as stub:
            assert ask(stub, CHOICE)[0].text == "go right"

    def test_a_prompt_is_sent_as_one_user_message(self):
        with Stub() as stub:
            ask(stub, Request(prompt="once upon a time"))
        assert stub.seen[0][1]["messages"] == [{"role": "user", "content": "once upon a time"}]

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            ("429", ModelFault),
            ("quota", ModelRefused),
            ("500", ModelFault),
            ("drop", ModelFault),
            ("not_json", ModelFault),
            ("401", ModelRefused),
            ("404", ModelRefused),
            ("overflow", ContextOverflow),
        ],
    )
    def test_each_failure_has_its_kind_and_is_tried_once(self, fault, kind):
        with Stub(faults=[fault]) as stub, pytest.raises(kind) as caught:
            ask(stub, CHAT)
        assert len(stub.seen) == 1
        if fault == "429":
            assert (caught.value.retry_after, caught.value.kind) == (7.0, "429")

    def test_a_refused_request_is_asked_once_more(self):
        with Stub(faults=["400", "400"]) as stub, pytest.raises(ModelRefused):
            ask(stub, CHAT)
        assert len(stub.seen) == 2

    def test_a_key_that_the_server_sends_back_is_masked(self, monkeypatch):
        monkeypatch.setenv("MY_KEY", "sk-very-secret-123")
        with Stub(faults=["echo_400", "echo_400"]) as stub, pytest.raises(ModelRefused) as caught:
            ask(stub, CHAT, api_key_env="MY_KEY")
        assert stub.keys == ["sk-very-secret-123"] * 2
        assert "secret" not in "".join(traceback.format_exception(caught.value))

    def test_a_key_that_litellm_finds_by_itself_is_in_no_answer(self, monkeypatch):
        monkeypatch.setenv("HOSTED_VLLM_API_KEY", "sk-very-secret-123")
        with Stub(reply=lambda body: "it is sk-very-secret-123") as stub:
            (answer,) = ask(stub, CHAT)
        assert stub.keys == ["sk-very-secret-123"]
        assert answer.text == "it is ***"

    @pytest.mark.parametrize("tokens", [-5, 10**400])
    def test_a_number_of_tokens_that_cannot_be_true_is_no_completion(self, monkeypatch, tokens):
        monkeypatch.setattr(openai_stub, "_usage", lambda body, text: {"prompt_tokens": tokens, "total_tokens": 1})
        for prices in ({}, {"price_in": 1, "price_out": 1}):
            with Stub() as stub, pytest.raises(ModelFault, match="no completion") as caught:
                ask(stub, CHAT, **prices)
            assert caught.value.kind == "answer"

    @pytest.mark.parametrize("dollars", [-1.0, float("nan"), float("inf"), True, "1"])
    def test_a_price_that_cannot_be_true_is_no_completion(self, monkeypatch, dollars):
        whole = LiteLLMModel._ask

        async def lying(self, endpoint, arguments):
            return await whole(self, endpoint, arguments) | {"_dollars": dollars}

        monkeypatch.setattr(LiteLLMModel, "_ask", lying)
        with Stub() as stub, pytest.raises(ModelFault, match="a price is no number of dollars"):
            ask(stub, CHAT)

    @pytest.mark.parametrize("fault", ["not_json", "garbage"])
    def test_a_wrong_address_is_refused_after_three_answers(self, fault):
        async def thrice(stub):
            model = LiteLLMModel("hosted_vllm/tiny", api_base=stub.url)
            for _ in range(2):
                with pytest.raises(ModelFault):
                    await model.complete(CHAT)
            with pytest.raises(ModelRefused, match="none of 3 answers"):
                await model.complete(CHAT)

        with Stub(faults=[fault] * 3) as stub:
            asyncio.run(thrice(stub))

    def test_a_server_that_hangs_is_a_fault(self):
        with Stub(faults=["hang"]) as stub, pytest.raises(ModelFault) as caught:
            ask(stub, CHAT, timeout=0.3)
        assert caught.value.kind == "time-out"

    def test_a_server_that_is_not_there_is_a_fault(self):
        with Stub() as stub:
            pass
        with pytest.raises(ModelFault, match=stub.url):  # litellm calls it an answer of 500
            ask(stub, CHAT)

    def test_extra_fields_reach_the_server_and_never_litellms_own_settings(self):
        extra = {
            "top_p": 0.5, "chat_template_kwargs": {"enable_thinking": False}, "api_base": "http://127.0.0.1:9/v1",
            "base_url": "http://127.0.0.1:9/v1", "api_key": "k", "mock_response": "mocked", "num_retries": 3,
            "extra_headers": {"X": "y"}, "custom_llm_provider": "anthropic",
        }  # fmt: skip
        with Stub() as stub:
            (answer,) = ask(stub, CHAT.model_copy(update={"extra": extra}))
        assert answer.text == "you said 2 words"
        ((_, sent),) = stub.seen
        assert {name: sent[name] for name in extra} == extra

    def test_extra_fields_that_a_provider_does_not_know_are_refused_by_name(self, monkeypatch):
        monkeypatch.setenv("A_KEY", "some-key-123")
        model = LiteLLMModel("anthropic/claude-sonnet-4-5", api_key_env="A_KEY")
        request = CHAT.model_copy(
            update={"extra": {"api_base": "http://127.0.0.1:9", "mock_response": "x", "top_p": 1}}
        )
        with pytest.raises(ModelRefused, match="takes no api_base, mock_response"):
            asyncio.run(model.complete(request))

    def test_a_provider_that_nobody_knows_is_refused(self):
        with pytest.raises(ModelRefused, match="PROVIDER/NAME"):
            LiteLLMModel("no-such-provider/model")
