import asyncio
import re
import subprocess
import sys
import textwrap

import pytest
from openai_stub import Stub

from harness.model import Completion, Message, ModelRefused, Request
from harness.models.connect import connect
from harness.models.scripted import ScriptedModel

CHAT = Request(messages=(Message(role="user", content="hello there"),))
CHOICE = Request(prompt="where to?", choices=("left", "right"))


def ask(model, request):
    return asyncio.run(model.complete(request))


def test_a_scripted_model_answers_by_its_function_sync_or_async():
    async def slowly(request):
        await asyncio.sleep(0)
        return Completion(text="done", finish_reason="length")

    answer = ask(ScriptedModel(lambda request: request.messages[0].content.upper()), CHAT)
    assert (answer.text, answer.usage.dollars) == ("HELLO THERE", 0.0)
    assert ask(ScriptedModel(slowly, name="slow"), CHAT).finish_reason == "length"


def test_a_script_that_breaks_its_contract_is_refused():
    with pytest.raises(ModelRefused, match="none of the choices"):
        ask(ScriptedModel(lambda request: "up"), CHOICE)
    with pytest.raises(ModelRefused, match="return a str"):
        ask(ScriptedModel(lambda request: 3), CHAT)


def test_a_script_is_found_in_a_file_and_in_a_module(tmp_path, monkeypatch):
    file = tmp_path / "my_script_model.py"
    file.write_text(
        textwrap.dedent("""
        from harness.models.scripted import ScriptedModel
        def answer(request): return "left"
        ready = ScriptedModel(answer, name="ready")
        number = 3
        """)
    )
    spec = f"scripted:{file}:answer"
    assert ask(connect(spec), CHOICE).text == "left"
    assert connect(spec).name == spec
    assert connect(f"scripted:{file}:ready").name == "ready"
    monkeypatch.syspath_prepend(tmp_path)
    assert ask(connect("scripted:my_script_model:answer"), CHOICE).text == "left"
    with pytest.raises(ModelRefused, match="neither a function nor a model"):
        connect(f"scripted:{file}:number")


@pytest.mark.parametrize(
    "spec", ["scripted:nothing", "scripted:no_such_module:x", "scripted:/no/such/file.py:x", "scripted:json:x"]
)
def test_a_script_that_is_not_there_is_refused_by_name(spec):
    with pytest.raises(ModelRefused, match=spec.split(":")[1]):
        connect(spec)


@pytest.mark.parametrize("spec", ["", "gpt", "gguf:", "openai/", "/x", "frob:x", "two words/x"])
def test_an_unknown_text_is_answered_with_all_that_is_possible(spec):
    with pytest.raises(ModelRefused) as caught:
        connect(spec)
    for possible in ("embedded", "gguf:FILE", "openai/NAME", "litellm/PROVIDER/NAME", "scripted:"):
        assert possible in str(caught.value)


def test_an_openai_model_is_reached_with_its_options():
    with Stub() as stub:
        model = connect("openai/org/tiny", {"api_base": stub.url, "api_key_env": "NO_SUCH_VARIABLE"})

        async def once():
            answer = await model.complete(CHAT)
            await model.close()
            return answer

        assert asyncio.run(once()).text == "you said 2 words"
        assert model.name == "openai/org/tiny"
        assert stub.seen[0][1]["model"] == "org/tiny"


def test_an_option_that_means_nothing_is_an_error():
    with pytest.raises(ModelRefused, match=r"no option thread; it knows .*api_base"):
        connect("openai/tiny", {"thread": 2})


@pytest.mark.parametrize(
    ("spec", "option", "value", "said"),
    [
        ("openai/tiny", "timeout", "abc", "the option timeout is a str. Cure: give it as float"),
        ("openai/tiny", "timeout", True, "the option timeout is a bool"),
        ("openai/tiny", "api_base", 5, "the option api_base is a int. Cure: give it as str"),
        ("openai/tiny", "price_in", "sk-secret", "the option price_in is a str"),
        ("openai/tiny", "logprobs", 1, "the option logprobs is a int. Cure: give it as bool"),
        ("gguf:x.gguf", "threads", 1.5, "the option threads is a float. Cure: give it as int"),
        ("openai/tiny", "timeout", 0, "timeout = 0: give a number of seconds above 0"),
        ("openai/tiny", "timeout", float("nan"), "timeout = nan"),
    ],
)
def test_an_option_of_the_wrong_kind_is_one_clear_line(spec, option, value, said):
    with pytest.raises(ModelRefused, match=re.escape(said)) as caught:
        connect(spec, ({"api_base": "http://127.0.0.1:1/v1"} if spec[0] == "o" else {}) | {option: value})
    assert "secret" not in str(caught.value)


def test_the_stub_serves_as_a_script_until_it_is_stopped():
    script = f"{__file__.rpartition('/')[0]}/openai_stub.py"
    with subprocess.Popen([sys.executable, script, "--fault", "500"], stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        model = connect("openai/tiny", {"api_base": url, "api_key_env": "NO_SUCH_VARIABLE"})

        async def twice():
            with pytest.raises(Exception, match="told to fail"):
                await model.complete(CHAT)
            answer = await model.complete(CHAT)
            await model.close()
            return answer.text

        try:
            assert asyncio.run(twice()) == "you said 2 words"
        finally:
            process.terminate()


def test_importing_the_backends_costs_no_heavy_library():
    backends = ["connect", "openai_api", "litellm_api", "gguf", "embedded", "scripted"]
    code = f"""
import importlib, sys
for backend in {backends}:
    importlib.import_module("harness.models." + backend)
print({{"aiohttp", "openai", "litellm", "xllamacpp", "httpx", "numpy"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_request_without_extra_fields_keeps_the_digest_of_the_first_journals() -> None:
    from harness.model import Request

    plain = Request(prompt="p", temperature=0.5)
    assert plain.digest() == "498b69bd33b545caf2d0c52fd8d41524988463aef256c27d44c81073554bab1d"
    assert plain.model_copy(update={"extra": {"top_p": 0.5}}).digest() != plain.digest()
