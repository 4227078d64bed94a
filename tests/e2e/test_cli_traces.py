"""`instar export` and `instar import` as a person uses them: real runs, pipes and servers; one line on a fault."""

import gzip
import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from shell import IMITATE, INSTAR, SLOWLY, failed, found, furnish, instar, ok

from harness.journal import Journal, JournalError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a finished run in `runs/one`; tests only add to it."""
    home = furnish(tmp_path_factory.mktemp("traces"))
    ok(home, "run", "agent", "--model", IMITATE, "--n", "5", "--out", "runs/one")
    return home


def digest(folder: Path) -> str:
    with Journal(folder, readonly=True) as journal:
        return journal.digest()


def test_a_run_goes_through_a_compressed_file_and_is_a_run_again(place: Path) -> None:
    told = found(place, "export", "runs/one", "--to", "jsonl", "--out", "one.jsonl.gz")
    assert (told["format"], told["to"], told["trajectories"]) == (1, "jsonl", 5)
    assert gzip.decompress((place / "one.jsonl.gz").read_bytes()).count(b"\n") == 1 + 5 + told["events"]
    assert found(place, "import", "one.jsonl.gz", "--out", "runs/two")["trajectories"] == 5
    assert digest(place / "runs/two") == digest(place / "runs/one")
    assert "5 tied" in ok(place, "compare", "runs/one", "runs/two")
    ok(place, "report", "runs/two")
    assert (place / "runs/two/report.html").is_file()


@pytest.mark.parametrize(("to", "count"), [("jsonl", 5), ("rows", None), ("otlp", 5)])
def test_without_a_file_standard_output_holds_the_lines_and_nothing_else(
    place: Path, to: str, count: int | None
) -> None:
    if to == "otlp":
        assert "--endpoint" in failed(place, "export", "runs/one", "--to", to)
        ok(place, "export", "runs/one", "--to", to, "--out", "spans.jsonl")
        lines = (place / "spans.jsonl").read_text().splitlines()
    else:
        done = instar(place, "export", "runs/one", "--to", to)
        assert "5 trajectories" in done.stderr
        lines = done.stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert count is None or len([one for one in told if "trajectory" in one or "resourceSpans" in one]) == count


def test_a_reader_that_goes_away_is_no_traceback(place: Path) -> None:
    command = f"{shlex.quote(str(INSTAR))} export runs/one --to rows | head -c 10"
    done = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr


def test_spans_in_a_file_come_back_as_a_run(place: Path) -> None:
    ok(place, "export", "runs/one", "--to", "otlp", "--content", "--out", "content.jsonl")
    assert "5 trajectories" in ok(place, "import", "content.jsonl", "--out", "runs/spans")
    assert "5 tied" in ok(place, "compare", "runs/one", "runs/spans")


def test_faults_are_one_line_with_their_cure_and_leave_nothing(place: Path) -> None:
    ok(place, "export", "runs/one", "--to", "jsonl", "--out", "good.jsonl")
    first = (place / "good.jsonl").read_text().splitlines()[0]
    (place / "bad.jsonl").write_text(first + '\n{"trajectory": {}}\n')
    (place / "deep.jsonl").write_text("[" * 1_000_000)
    for words, said in (
        (("export", "runs/none", "--to", "jsonl"), "no run here"),
        (("export", "runs/one", "--to", "csv"), "one of jsonl, rows, otlp, mlflow"),
        (("export", "runs/one", "--to", "rows", "--endpoint", "http://127.0.0.1:1"), "--out FILE"),
        (("export", "runs/one", "--to", "jsonl", "--json"), "--out FILE"),
        (("import", "bad.jsonl", "--out", "runs/bad"), "bad.jsonl, line 2: no trajectory"),
        (("import", "deep.jsonl", "--out", "runs/bad"), "deep.jsonl, line 1: not JSON that can be read"),
        (("import", "missing.jsonl", "--out", "runs/bad"), "missing.jsonl"),
        (("import", "bad.jsonl", "--out", "runs/one"), "is there already"),
    ):
        assert said in failed(place, *words)
    assert not (place / "runs/bad").exists()
    assert not [path.name for path in (place / "runs").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["small.jsonl", "small.jsonl.gz", ""])
def test_an_export_that_finds_no_room_says_where_and_what_helps(place: Path, name: str) -> None:
    """The disk that is full is the kernel's own; a file is written beside its name first."""
    before = {path.name for path in place.iterdir()}
    if name:
        (place / f".{name}.part").symlink_to("/dev/full")
    where = f"--out {name}" if name else "> /dev/full"
    command = f"{shlex.quote(str(INSTAR))} export runs/one --to jsonl {where}"
    done = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {name or 'standard output'}: cannot be written to its end (No space left")
    assert done.stderr.count("\n") == 1
    assert "Cure: make room" in done.stderr
    assert {path.name for path in place.iterdir()} == before


def test_wrong_usage_is_status_2(place: Path) -> None:
    assert instar(place, "export", "runs/one").returncode == 2
    assert instar(place, "import", "one.jsonl.gz").returncode == 2


def test_a_live_run_is_followed_until_ctrl_c(place: Path, tmp_path: Path) -> None:
    """The run here is one whose writer never ends it."""
    ok(place, "export", "runs/one", "--to", "jsonl", "--out", str(tmp_path / "one.jsonl"))
    lines = (tmp_path / "one.jsonl").read_text().splitlines()
    (tmp_path / "part.jsonl").write_text("\n".join(line for line in lines if '"event": "evaluation"' not in line))
    ok(place, "import", str(tmp_path / "part.jsonl"), "--out", str(tmp_path / "live"))
    following = subprocess.Popen(
        [str(INSTAR), "export", str(tmp_path / "live"), "--to", "jsonl", "--follow"], cwd=place,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    try:
        assert following.stdout is not None
        first = [following.stdout.readline() for _ in range(6)]  # each is there as soon as it is finished
        following.send_signal(signal.SIGINT)
        rest, err = following.communicate(timeout=60)
    finally:
        following.kill()
        following.wait()
    assert following.returncode == 0, err
    assert (rest, len([line for line in map(json.loads, first) if "trajectory" in line])) == ("", 5)
    assert "5 trajectories" in err


def test_a_run_that_is_being_played_is_followed_to_its_end(place: Path) -> None:
    words = ("run", "agent", "--model", SLOWLY, "--n", "6", "--concurrency", "2", "--out", "runs/slow")
    playing = subprocess.Popen(
        [str(INSTAR), *words], cwd=place, env={**os.environ, "WAIT": "0.02"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while playing.poll() is None and not _begun(place / "runs/slow"):
            pass
        done = instar(place, "export", "runs/slow", "--to", "jsonl", "--follow")
        _, err = playing.communicate(timeout=60)
    finally:
        playing.kill()
        playing.communicate()
    assert (done.returncode, playing.returncode) == (0, 0), done.stderr + err
    assert done.stdout == ok(place, "export", "runs/slow", "--to", "jsonl")
    assert sum("trajectory" in json.loads(line) for line in done.stdout.splitlines()) == 6


def _begun(folder: Path) -> bool:
    """Whether the run has written its plan."""
    try:
        with Journal(folder, readonly=True) as journal:
            return journal.last("plan") is not None
    except JournalError:  # no journal yet, or one that is being made
        return False


# ------------------------------------------------------ a foreign agent, through the proxy, to training rows


def _ids(messages: list[dict[str, Any]], *, asking: bool) -> list[int]:
    """A chat template whose prompts grow: what was said before is the beginning of what is said next."""
    text = "".join(f"<{one['role']}>{one['content']}</s>" for one in messages) + ("<assistant>" if asking else "")
    return list(text.encode())


@contextmanager
def token_server() -> Iterator[str]:
    """A server that gives token ids and log-probabilities as vLLM does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = f"answer {len(body['messages'])}"
            output = list(f"{said}</s>".encode())
            choice: dict[str, Any] = {
                "index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop",
                "logprobs": {"content": [{"token": chr(t), "logprob": -t / 100, "top_logprobs": []} for t in output]},
            }  # fmt: skip
            answer: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": "tiny"}
            if body.get("return_token_ids"):
                choice["token_ids"] = output
                answer["prompt_token_ids"] = _ids(body["messages"], asking=True)
            usage = {"prompt_tokens": 9, "completion_tokens": len(output), "total_tokens": 9 + len(output)}
            data = json.dumps(answer | {"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_what_a_foreign_agent_said_through_the_proxy_is_one_row_of_the_very_tokens(tmp_path: Path) -> None:
    with token_server() as address:
        proxy = subprocess.Popen(
            [str(INSTAR), "proxy", "--out", "run", "--json", "--model", "openai/tiny", "--api-base", address,
             "--option", "token_ids=true"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
        )  # fmt: skip
        try:
            assert proxy.stdout is not None
            line = proxy.stdout.readline()
            assert line, proxy.communicate()[1]
            talk: list[Any] = [{"role": "user", "content": "Hi ✓"}]
            with openai.OpenAI(base_url=json.loads(line)["url"], api_key="sk-instar-seven", max_retries=0) as client:
                for word in ("and then?", "bye"):
                    said = client.chat.completions.create(model="m", messages=talk, temperature=0)
                    talk += [{"role": "assistant", "content": said.choices[0].message.content}]
                    talk += [{"role": "user", "content": word}]
            proxy.send_signal(signal.SIGINT)
            proxy.communicate(timeout=60)
        finally:
            proxy.kill()
            proxy.communicate()
    told = found(tmp_path, "export", "run", "--to", "rows", "--out", "rows.jsonl")
    assert (told["token_rows"], told["text_rows"], told["trajectories"]) == (1, 0, 1)
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["token_ids"] == _ids(talk[:-1], asking=False)
    sampled = bytes(id for id, masked in zip(row["token_ids"], row["loss_mask"], strict=True) if masked)
    assert sampled == b"answer 1</s>answer 3</s>"
    wanted = [-id / 100 if masked else None for id, masked in zip(row["token_ids"], row["loss_mask"], strict=True)]
    assert row["old_logprobs"] == pytest.approx(wanted)
    assert (row["task"], row["group"], row["rl"]) == ("seven", "run/agent/seven", True)
