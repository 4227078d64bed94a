"""Tools of the folder's own: plain functions run beside the event loop, coroutine functions on it; errors are text."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from worlds import harness

from harness.toolbox import Toolbox, ToolFault


def call(source: str, name: str = "tool", **arguments: Any) -> str:
    box = Toolbox(harness("tools", **{f"tools/{name}.py": source}))
    return asyncio.run(box.call(name, arguments))


def test_a_coroutine_function_is_a_tool_like_any_other() -> None:
    source = 'async def tool(n: int) -> int:\n    """Wait."""\n    return n + 1\n'
    assert call(source, n="2") == "3"
    box = Toolbox(harness("tools", **{"tools/tool.py": source}))
    (schema,) = box.schemas()
    assert (schema["description"], schema["parameters"]["required"]) == ("Wait.", ["n"])


@pytest.mark.parametrize("kind", ["", "async "])
@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        ("return 1 / n", {"n": 0}, "tool: ZeroDivisionError: division by zero"),
        ("raise TimeoutError('late')", {"n": 0}, "tool: TimeoutError: late"),
        ("raise StopIteration", {"n": 0}, "tool: .*StopIteration"),
        ("return n", {"n": "x"}, "tool: n: Input should be a valid integer"),
        ("return n", {}, "tool: n: Missing required argument"),
    ],
)
def test_its_own_errors_and_wrong_arguments_are_faults_told_in_one_line(
    kind: str, body: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolFault, match=message):
        call(f"{kind}def tool(n: int):\n    {body}\n", **arguments)


def test_a_plain_function_that_ends_the_program_ends_only_itself() -> None:
    with pytest.raises(ToolFault, match="tool: SystemExit: 3"):
        call("import sys\ndef tool():\n    sys.exit(3)\n")


def test_a_plain_function_that_waits_keeps_the_event_loop_free() -> None:
    source = "import threading\ngate = threading.Event()\ndef tool() -> bool:\n    return gate.wait(10)\n"
    box = Toolbox(harness("tools", **{"tools/tool.py": source}))
    gate: Callable[..., Any] = box._functions["tool"].__globals__["gate"]  # type: ignore[attr-defined]

    async def both() -> str:
        waiting = asyncio.ensure_future(box.call("tool", {}))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        gate.set()  # type: ignore[attr-defined]
        return await waiting

    assert asyncio.run(both()) == "True"
