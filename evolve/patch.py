"""An edit is applied exactly as written or not at all.

A patch names what it replaces, so that it cannot land on text it was not made for; nothing is searched fuzzily and
nothing is skipped. Paths stay inside the harness folder. Whoever can produce this plain data, a person or a model, can
propose; the hypothesis and the ids of the evidence travel with it.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: Characters of a reason that goes into every later prompt.
MAX_LINE = 300


class PatchError(ValueError):
    """The patch does not fit these files; `path` is the file and `reason` what is wrong with it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot patch '{path}': {reason}")
        self.path, self.reason = path, reason


class _Edit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str


class ReplaceFile(_Edit):
    """The whole text of an existing file; `before` is the sha256 of the text it was made for (None: any)."""

    kind: Literal["replace_file"] = "replace_file"
    new: str
    before: str | None = None


class ReplaceText(_Edit):
    """A snippet that occurs exactly once, and what takes its place."""

    kind: Literal["replace_text"] = "replace_text"
    old: str
    new: str


class AddFile(_Edit):
    """A file that does not exist yet."""

    kind: Literal["add_file"] = "add_file"
    new: str


class DeleteFile(_Edit):
    """Takes a file away; `before` as in ReplaceFile."""

    kind: Literal["delete_file"] = "delete_file"
    before: str | None = None


Edit = Annotated[ReplaceFile | ReplaceText | AddFile | DeleteFile, Field(discriminator="kind")]


class Patch(BaseModel):
    """Edits in order, why they should help (one line), and the ids of the trajectories that suggested them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    edits: tuple[Edit, ...] = Field(min_length=1)
    hypothesis: str = ""
    evidence: tuple[str, ...] = ()

    @field_validator("hypothesis")
    @classmethod
    def _in_one_line(cls, hypothesis: str) -> str:
        return one_line(hypothesis)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches, sorted."""
        return tuple(sorted({edit.path for edit in self.edits}))

    def digest(self) -> str:
        """Hash of the edits alone: the same change for another reason is still the same change."""
        edits = [edit.model_dump(mode="json") for edit in self.edits]
        return hashlib.sha256(json.dumps(edits, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def apply(files: Mapping[str, str], patch: Patch, *, max_growth: int | None = None) -> dict[str, str]:
    """The files (path -> text) after `patch`, edit by edit; PatchError if one does not fit.

    `max_growth` caps how many characters the patch may add on balance, over all files.
    """
    after = dict(files)
    for edit in patch.edits:
        check_path(edit.path)
        if isinstance(edit, AddFile):
            _check_new(edit.path, after)
            after[edit.path] = edit.new
            continue
        if edit.path not in after:
            raise PatchError(edit.path, f"there is no such file; there are: {', '.join(sorted(after)) or 'none'}")
        text = after[edit.path]
        if isinstance(edit, ReplaceText):
            after[edit.path] = _replace_once(edit, text)
            continue
        if edit.before is not None and edit.before != text_hash(text):
            raise PatchError(edit.path, "its text is not the one the patch was made for; propose again from it")
        if isinstance(edit, DeleteFile):
            del after[edit.path]
        elif edit.new == text:
            raise PatchError(edit.path, "the new text equals the old one")
        else:
            after[edit.path] = edit.new
    growth = sum(map(len, after.values())) - sum(map(len, files.values()))
    if max_growth is not None and growth > max_growth:
        raise PatchError(", ".join(patch.paths), f"it adds {growth} characters, at most {max_growth} are allowed")
    return after


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Unified diff of two folders, as git shows it; '' when equal."""
    out: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        names = (f"a/{path}" if a is not None else "/dev/null", f"b/{path}" if b is not None else "/dev/null")
        for line in difflib.unified_diff(lines(a or ""), lines(b or ""), *names, n=3):
            out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def lines(text: str) -> list[str]:
    """Split after each newline only, and keep it: other line breaks are part of a line."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def one_line(text: str, most: int = MAX_LINE) -> str:
    """`text` on one line of at most `most` characters: no line break, nothing invisible, no control character."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def text_hash(text: str) -> str:
    """sha256 of a file's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


#: Longest path and part of it that every file system takes.
MAX_PATH, MAX_PART = 200, 100


def check_path(path: str) -> None:
    """PatchError unless `path` is a plain relative path with forward slashes inside the folder, with nothing hidden."""
    reason = ""
    if not path or path.startswith("/") or path[1:2] == ":":
        reason = "a path is relative to the harness folder"
    elif "\\" in path or any(ord(c) < 32 or ord(c) == 127 for c in path):
        reason = "a path has no backslash and no control character"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        reason = "a path has no empty part, '.' or '..'"
    elif any(part.startswith(".") for part in path.split("/")):
        reason = "hidden files are not part of a harness"
    elif len(path.encode("utf-8", "replace")) > MAX_PATH or any(len(p.encode()) > MAX_PART for p in path.split("/")):
        reason = f"a path has at most {MAX_PATH} bytes, and {MAX_PART} between two slashes"
    if reason:
        raise PatchError(path, reason)


def opened(text: str, name: str, newest: int) -> dict[str, object]:
    """The fields of a JSON text that says it is `name`; ValueError if it is not, or newer than `newest`."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop("format", None) != name:
        raise ValueError(f"this is not a file of format '{name}'")
    version = data.pop("version", None)
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise ValueError(f"'{name}' has version {version}, this Instar reads up to {newest}: upgrade Instar")
    return data


def _check_new(path: str, files: Mapping[str, str]) -> None:
    parents = {path[:i] for i, c in enumerate(path) if c == "/"}
    for other in files:
        if other == path:
            raise PatchError(path, "it exists already")
        if other in parents or other.startswith(path + "/"):
            raise PatchError(path, f"'{other}' is in its way: a name is a file or a folder")
        if other.casefold() == path.casefold():
            raise PatchError(path, f"it differs from '{other}' only in case, which some file systems cannot hold")


def _replace_once(edit: ReplaceText, text: str) -> str:
    if not edit.old:
        raise PatchError(edit.path, "the snippet to replace is empty; replace the whole file instead")
    if edit.old == edit.new:
        raise PatchError(edit.path, "the new snippet equals the old one")
    at = text.find(edit.old)
    if at < 0:
        loose = " ".join(edit.old.split())
        hint = " (only its white space differs)" if loose and loose in " ".join(text.split()) else ""
        raise PatchError(edit.path, f"the snippet is missing{hint}: {_shown(edit.old)}")
    if text.find(edit.old, at + 1) >= 0:
        raise PatchError(edit.path, f"the snippet occurs more than once, quote more around it: {_shown(edit.old)}")
    return text[:at] + edit.new + text[at + len(edit.old) :]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
