"""A model's server that costs its client nothing but HTTP: `python -m bench.players.stub` prints its address.

Just enough of chat/completions for the clients of this bench. The name of the model in a request says what it does:
`say` answers in text, `call` calls the first function that is offered and at the end the one that finishes, `shell`
calls `bash`. The number of the turn is that of the assistant's messages, so the server keeps nothing of an episode.
"""

import asyncio
import json
from typing import Any

from bench.players.game import STEPS, answer

_LAST = ("final_answer", "submit", "final_result")
_encode = json.JSONEncoder(separators=(",", ":")).encode


def completion(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    model = request["model"].rpartition("/")[2]
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": answer(turn)}
    name, arguments = "", {}
    if model == "shell":
        name, arguments = (
            "bash",
            {"command": f"echo {turn}" if turn < STEPS else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"},
        )
    elif model == "call":
        names = [tool["function"]["name"] for tool in request.get("tools") or ()]
        last = next((name for name in names if name in _LAST), "")
        if turn < STEPS:
            name, arguments = next(name for name in names if name not in _LAST), {"action": "inc"}
        elif last:
            name, arguments = last, {"answer": "done"}
    if name:
        called = {"name": name, "arguments": _encode(arguments)}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": called}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 16, "total_tokens": 116}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request["model"],
            "choices": [choice], "usage": usage}  # fmt: skip


class Http(asyncio.Protocol):
    """Answers each whole request of a connection that is kept."""

    def __init__(self) -> None:
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer what has come whole."""
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            whole = end + 4 + size
            if len(self._read) < whole:
                return
            body, self._read = self._read[end + 4 : whole], self._read[whole:]
            said = _encode(completion(json.loads(body))).encode()
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said)
            )


async def serve() -> None:
    """Listen until killed."""
    server = await asyncio.get_running_loop().create_server(Http, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
