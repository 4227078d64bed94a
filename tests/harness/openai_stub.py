"""A small real server that speaks the OpenAI API and fails on demand, so that backends meet a network and not a mock.

As a script: `python tests/harness/openai_stub.py --port 8000`. In a test: `with Stub() as stub: ... stub.url ...`.
"""

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What `Stub.faults` may hold; each entry is used up by one request.
FAULTS = (
    "429", "quota", "500", "401", "404", "400", "format", "hang", "drop", "garbage", "not_json", "overflow", "echo",
    "echo_json", "echo_400",
)  # fmt: skip


@dataclass
class Stub:
    """The server and its behaviour. `reply` makes the text of an answer from the request's body."""

    port: int = 0
    key: str | None = None
    context: int = 4096
    completions: bool = True
    response_format: bool = True
    only_max_completion_tokens: bool = False
    retry_after: str = "7"
    reply: Callable[[dict[str, Any]], str] | None = None
    tool_arguments: str | None = None
    faults: list[str] = field(default_factory=list)
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.stub = self
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> "Stub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    stub: Stub
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        stub = self.server.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub.seen.append((self.path, body))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        stub.keys.append(key)
        if stub.faults:
            self._fail(stub.faults.pop(0), stub)
        elif stub.key is not None and key != stub.key:
            self._error(401, f"Incorrect API key provided: {key}", "invalid_api_key")
        elif "max_tokens" in body and stub.only_max_completion_tokens:
            self._error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "unsupported")
        elif "response_format" in body and not stub.response_format:
            self._error(400, "Unrecognized request argument supplied: response_format", "invalid_request_error")
        elif _tokens(body) > stub.context:
            self._overflow(_tokens(body), stub.context)
        elif self.path == "/v1/chat/completions":
            self._send(200, _chat(body, stub))
        elif self.path == "/v1/completions" and stub.completions:
            self._send(200, _text(body, stub))
        else:
            self._error(404, f"there is no {self.path} here", "not_found")

    def _fail(self, fault: str, stub: Stub) -> None:
        if fault == "429":
            self._error(429, "Rate limit reached", "rate_limit_exceeded", {"Retry-After": stub.retry_after})
        elif fault == "quota":
            self._error(429, "You exceeded your current quota", "insufficient_quota")
        elif fault == "overflow":
            self._overflow(9000, stub.context)
        elif fault in ("500", "401", "404", "400"):
            self._error(int(fault), f"told to fail with {fault}", "told")
        elif fault == "format":
            self._error(400, "upstream worker: cannot parse response_format", "bad_gateway")
        elif fault == "echo":
            self._bytes(200, f"<p>{'x' * 190}{self.headers['Authorization']}</p>".encode(), "text/html")
        elif fault == "echo_json":
            self._send(200, {"headers": "x" * 150 + self.headers["Authorization"]})
        elif fault == "echo_400":
            self._error(400, "x" * 380 + self.headers["Authorization"], "told")
        elif fault == "hang":
            stub.released.wait(30)
            self.close_connection = True
        elif fault == "drop":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            self.close_connection = True
        elif fault == "garbage":
            self._send(200, {"surprise": [1, 2, 3]})
        elif fault == "not_json":
            self._bytes(200, b"<html>welcome to the hotel network</html>", "text/html")
        else:
            raise ValueError(f"no such fault: {fault}; one of {FAULTS}")

    def _overflow(self, tokens: int, limit: int) -> None:
        message = f"This model's maximum context length is {limit} tokens. However, your messages are {tokens} tokens."
        self._error(400, message, "context_length_exceeded")

    def _error(self, status: int, message: str, code: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error", "code": code}}, headers)

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self._bytes(status, json.dumps(body).encode(), "application/json", headers)

    def _bytes(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def _prompt(body: dict[str, Any]) -> str:
    if "prompt" in body:
        return str(body["prompt"])
    return "\n".join(str(message.get("content") or "") for message in body["messages"])


def _tokens(body: dict[str, Any]) -> int:
    return len(_prompt(body).split())


def _answer(body: dict[str, Any], stub: Stub) -> str:
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if stub.reply is not None:
        said = stub.reply(body)
        enum = schema and schema["properties"].get("action", {}).get("enum")
        return json.dumps({"action": said}) if enum and said in enum else said
    return json.dumps(_instance(schema)) if schema else f"you said {_tokens(body)} words"


def _instance(schema: dict[str, Any]) -> Any:
    """The smallest value that fits a schema, its first choice wherever it may choose."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: _instance(properties[name]) for name in schema.get("required", properties)}
    return {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": []}.get(schema.get("type", ""))


def _usage(body: dict[str, Any], text: str) -> dict[str, Any]:
    prompt, output = _tokens(body), max(1, len(text.split()))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }


def _chat(body: dict[str, Any], stub: Stub) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    finish, text = "stop", ""
    if body.get("tools") and not any(said["role"] == "tool" for said in body["messages"]):
        function = body["tools"][0]["function"]
        arguments = stub.tool_arguments
        if arguments is None:
            arguments = json.dumps(_instance(function.get("parameters", {"type": "object"})))
        call = {"name": function["name"], "arguments": arguments}
        message["tool_calls"] = [{"id": "call_a", "type": "function", "function": call}]
        finish = "tool_calls"
    else:
        text = message["content"] = _answer(body, stub)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    if body.get("logprobs"):
        choice["logprobs"] = {
            "content": [{"token": w, "logprob": -0.5, "bytes": None, "top_logprobs": []} for w in text.split()]
        }
    if body.get("return_token_ids"):
        choice["token_ids"] = list(range(len(text.split())))
    return _envelope(body, "chat.completion", choice, text)


def _text(body: dict[str, Any], stub: Stub) -> dict[str, Any]:
    text = _answer(body, stub)
    return _envelope(body, "text_completion", {"index": 0, "text": text, "finish_reason": "stop"}, text)


def _envelope(body: dict[str, Any], kind: str, choice: dict[str, Any], text: str) -> dict[str, Any]:
    usage = _usage(body, text)
    head = {"id": "stub-1", "object": kind, "created": int(time.time()), "model": body["model"]}
    return head | {"choices": [choice], "usage": usage}


def main() -> None:
    parser = argparse.ArgumentParser(description="an OpenAI-compatible server for tests")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", help="refuse every other key")
    parser.add_argument("--fault", action="append", default=[], choices=FAULTS, help="for the next request; repeatable")
    chosen = parser.parse_args()
    with Stub(port=chosen.port, key=chosen.key, faults=chosen.fault) as stub:
        print(stub.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
