"""An OpenAI-compatible server with faults to order, as a process of its own: `python fault_stub.py --error 0.3 ...`.

Its model plays the counting world: what it says is a hash of what it was asked, so that it is deterministic, given the
request's seed. Prints its address on the first line; GET /stats tells what it was asked and how it answered.
"""

import argparse
import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from typing import Any


class Stub:
    """The model, and what goes wrong with it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rng = random.Random(args.seed)
        self.began = 0.0
        self.counts: Counter[str] = Counter()
        self.window = (0.0, 0)

    def meet(self) -> str:
        """What befalls this request: "", "drop", "hang", "503" or "429"."""
        self.began = self.began or time.monotonic()
        args, now = self.args, time.monotonic() - self.began
        if args.storm and now % args.storm[0] < args.storm[1]:
            return "429"
        if args.rate:
            start, count = self.window
            start, count = (start, count + 1) if now - start < 1.0 else (now, 1)
            self.window = start, count
            if count > args.rate:
                return "429"
        for name, share in (("drop", args.drop), ("hang", args.hang), ("503", args.error)):
            if share and self.rng.random() < share:
                return name
        return ""

    def answer(self, asked: dict[str, Any], size: int) -> tuple[int, dict[str, Any]]:
        """Status and body for a request that arrived whole."""
        if self.args.overflow and size > self.args.overflow:
            self.counts["overflow"] += 1
            text = "This model's maximum context length is 2000 tokens"
            return 400, {"error": {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}}
        said = [(message["role"], message.get("content"), message.get("tool_calls")) for message in asked["messages"]]
        chance = hashlib.sha256(json.dumps([said, asked.get("seed")], sort_keys=True).encode()).digest()
        action = "inc" if chance[0] < 200 else "skip"
        message: dict[str, Any] = {"role": "assistant", "content": f"I choose {chance.hex()[:8]}.\nAction: {action}"}
        if asked.get("tools"):
            arguments = json.dumps({"action": action})
            if chance[1] < 256 * self.args.malformed:
                self.counts["malformed"] += 1
                arguments = arguments[: len(arguments) // 2]
            call = {"id": f"c{len(said)}", "type": "function", "function": {"name": "act", "arguments": arguments}}
            message = {"role": "assistant", "content": chance.hex()[:8], "tool_calls": [call]}
        self.counts["answered"] += 1
        return 200, {
            "id": "x", "object": "chat.completion", "created": 0, "model": "stub",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": size // 4, "completion_tokens": 8, "total_tokens": size // 4 + 8},
        }  # fmt: skip

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                if head.startswith(b"GET"):
                    self.write(writer, 200, dict(self.counts))
                    continue
                self.counts["asked"] += 1
                fault = self.meet()
                if fault:
                    self.counts[fault] += 1
                if fault == "drop":
                    writer.transport.abort()
                    return
                if fault == "hang":
                    await reader.read()  # until the other one has had enough
                    return
                if self.args.latency:
                    await asyncio.sleep(self.args.latency)
                if fault:
                    self.write(writer, int(fault), {"error": {"message": "not now", "type": "x", "code": "x"}})
                else:
                    self.write(writer, *self.answer(json.loads(body), len(body)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def write(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        """One answer."""
        data = json.dumps(body).encode()
        more = f"retry-after: {self.args.after:g}\r\n" if status == 429 and self.args.after else ""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


async def main(args: argparse.Namespace) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(Stub(args).serve, "127.0.0.1", args.port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("error", "drop", "hang", "malformed", "latency", "after"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--storm", type=float, nargs=2, help="every so many seconds, limits for so many")
    parser.add_argument("--rate", type=int, default=0, help="requests a second")
    parser.add_argument("--overflow", type=int, default=0, help="characters of a request's body that are too many")
    asyncio.run(main(parser.parse_args()))
