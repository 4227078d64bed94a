"""The page in a real browser: its script runs, nobody else's does, and it can be seen in light and in dark."""

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from evolve import run
from evolve.page import page, write
from evolve.report import read_report
from harness.starter import starter

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the page is not looked at in a browser")

WORLD = """
from envs import Benchmark, Env, Observation, Step, Task

class World(Env):
    async def reset(self, task, seed):
        return Observation("You see </div><script>document.title='owned'</script>.")
    async def step(self, action):
        return Step(Observation("done"), 1.0, True)

def tasks(n):
    return [Task(id=f"t{i}", split="valid", goal=f"goal <b>{i}</b>") for i in range(n or 4)]

benchmark = Benchmark(name="world", make_env=World, splits={"valid": tasks})

def answer(request):
    return "Action: <img src=x onerror=\\"document.title='owned'\\">"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("browser")
    (home / "world.py").write_text(WORLD)
    out = home / "run"
    run(starter("react"), f"{home}/world.py", model=f"scripted:{home}/world.py:answer", n=4, out=str(out))
    return out


def browse(tmp_path: Path, *options: str) -> str:
    """What the browser prints; its profile is thrown away with `tmp_path`."""
    assert CHROMIUM is not None
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", *quiet]
    command += [f"--user-data-dir={tmp_path / 'profile'}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_script_runs_under_the_pages_own_policy(folder: Path, tmp_path: Path) -> None:
    path = write(folder, tmp_path / "page.html")
    found = browse(tmp_path, "--dump-dom", path.as_uri())
    assert re.search(r"<html[^>]* class=\"js\"", found)
    assert "4 of 4 shown" in found
    assert "<title>Mean score 1.000" in found


def test_a_link_to_a_transcript_opens_it(folder: Path, tmp_path: Path) -> None:
    path = write(folder, tmp_path / "page.html")
    anchor = re.findall(r'<details class="episode" id="(\w+)"', path.read_text(encoding="utf-8"))[2]
    found = browse(tmp_path, "--dump-dom", f"{path.as_uri()}#{anchor}")
    assert re.findall(r'<details class="episode" id="(\w+)"[^>]* open=""', found) == [anchor]


def test_even_markup_that_slipped_in_could_not_run(folder: Path, tmp_path: Path) -> None:
    slipped = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    text = page(read_report(folder)).replace("</main>", f"{slipped}</main>")
    assert slipped in text
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    found = browse(tmp_path, "--dump-dom", (tmp_path / "page.html").as_uri())
    assert "<title>Mean score 1.000" in found


@pytest.mark.parametrize(("scheme", "light"), [(1, True), (0, False)])
@pytest.mark.parametrize("width", [1200, 500])
def test_it_is_drawn_in_light_and_in_dark(folder: Path, tmp_path: Path, scheme: int, light: bool, width: int) -> None:
    path, shot = write(folder, tmp_path / "page.html"), tmp_path / "page.png"
    options = (f"--screenshot={shot}", f"--window-size={width},900", f"--blink-settings=preferredColorScheme={scheme}")
    browse(tmp_path, *options, path.as_uri())
    seen, rows = pixels(shot)
    assert seen == (width, 900)
    corner = rows[-1][-3:]
    assert (min(corner) > 200) is light
    assert len({bytes(row) for row in rows}) > 100  # text was drawn, not an empty sheet


def pixels(path: Path) -> tuple[tuple[int, int], list[bytearray]]:
    """Size and rows of an 8-bit RGB or RGBA PNG, three bytes a pixel."""
    data, at, packed = path.read_bytes(), 8, b""
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert (depth, colour) in ((8, 2), (8, 6))
    size = 3 if colour == 2 else 4
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    raw, stride, rows = zlib.decompress(packed), width * size, []
    before = bytearray(stride)
    for top in range(0, len(raw), stride + 1):
        row = bytearray(raw[top + 1 : top + 1 + stride])
        _unfilter(raw[top], row, before, size)
        rows.append(row)
        before = row
    return (width, height), [
        bytearray(row) if size == 3 else bytearray(b for i, b in enumerate(row) if i % 4 < 3) for row in rows
    ]


def _unfilter(kind: int, row: bytearray, above: bytearray, size: int) -> None:
    for i in range(len(row)) if kind else ():
        left, up, corner = (row[i - size] if i >= size else 0), above[i], (above[i - size] if i >= size else 0)
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            near = left + up - corner
            guess = min((left, up, corner), key=lambda value: abs(near - value))
        row[i] = (row[i] + guess) % 256
