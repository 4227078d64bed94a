"""A harness is a folder of text files, and its version is the hash of their content.

Everything that shapes an agent is a file a person can open: `harness.toml`, `prompts/*.md`, `tools/*.py`,
`skills/*/SKILL.md`, `control.py`. A loaded harness is frozen; an edit makes another one.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Self

from harness import prompt
from harness.settings import HarnessError, Settings, parse_settings

SETTINGS_FILE = "harness.toml"
MAX_FILE = 1_000_000
#: The prompt files without which a loop cannot ask anything.
NEEDED = {"choice": ("step",), "react": ("system", "step"), "tools": ("system", "step"), "control": (), "command": ()}
_IGNORED = {"__pycache__", "node_modules"}


@dataclass(frozen=True)
class Harness:
    """A frozen view of a harness folder: `files` maps relative POSIX paths to text."""

    files: Mapping[str, str]
    settings: Settings
    where: str = "harness"

    def __hash__(self) -> int:
        return hash(self.version)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read and validate `folder`; raises HarnessError naming the file and the fault."""
        root = Path(folder)
        if not root.is_dir():
            raise HarnessError(f"{root}: there is no such folder. Cure: instar init {root}")
        if not (root / SETTINGS_FILE).is_file():
            raise HarnessError(
                f"{root / SETTINGS_FILE}: missing, so this is not a harness folder. Cure: instar init {root}"
            )
        return cls.from_files(_read(root), where=str(root))

    @classmethod
    def from_files(cls, files: Mapping[str, str], where: str = "harness") -> Self:
        """Validate files given as text; `where` stands for the folder in errors."""
        if SETTINGS_FILE not in files:
            raise HarnessError(f"{where}/{SETTINGS_FILE}: missing")
        for path, text in files.items():
            try:
                f"{path}{text}".encode()
            except UnicodeEncodeError as error:  # a lone surrogate, which only a name on disk or a model can bring in
                raise HarnessError(f"{where}/{path!a}: its name or text is no valid Unicode: {error.reason}") from error
        settings = parse_settings(files[SETTINGS_FILE], f"{where}/{SETTINGS_FILE}")
        harness = cls(MappingProxyType(dict(sorted(files.items()))), settings, where)
        harness._check_prompts()
        if settings.control.wording == "slots" and settings.control.loop in ("react", "tools"):
            raise HarnessError(
                f"{where}/{SETTINGS_FILE}: [control] wording: only the choice loop can turn slots back into actions. "
                'Cure: wording = "plain" with this loop'
            )
        said = settings.control.form if "form" in settings.control.model_fields_set else "chat"
        if settings.control.loop in ("react", "tools") and said != "chat":
            raise HarnessError(
                f"{where}/{SETTINGS_FILE}: [control] form: the {settings.control.loop} loop is a conversation and has "
                'no other form. Cure: form = "chat", or leave it out'
            )
        if settings.control.loop == "control" and "control.py" not in files:
            raise HarnessError(f'{where}/control.py: missing, but {SETTINGS_FILE} says [control] loop = "control"')
        if (settings.control.loop == "command") != bool(settings.command.argv):
            raise HarnessError(
                f'{where}/{SETTINGS_FILE}: [command] argv and [control] loop = "command" go together. Cure: name the '
                "agent's command in argv, or take another loop"
            )
        return harness

    @cached_property
    def version(self) -> str:
        """Hash of all paths and contents: equal folders have equal versions on every machine."""
        digest = hashlib.sha256()
        for path, text in self.files.items():
            for part in (path, text):
                data = part.encode("utf-8")
                digest.update(len(data).to_bytes(8, "big") + data)
        return digest.hexdigest()[:16]

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """Prompt texts by name: `prompts/step.md` is `step`."""
        return {
            PurePosixPath(path).stem: text
            for path, text in self.files.items()
            if str(PurePosixPath(path).parent) == "prompts" and path.endswith(".md")
        }

    @cached_property
    def _included(self) -> Mapping[str, str]:
        """The prompt files that others include by name, as the text they stand for."""
        named = {hole for name, text in self.prompts.items() if name != "memory" for hole in prompt.placeholders(text)}
        return {name: prompt.fill(self.prompts[name], {}) for name in sorted(named & self.prompts.keys())}

    def render(self, name: str, values: Mapping[str, str]) -> str:
        """Prompt `name` with its placeholders filled from `values` and from the other prompt files."""
        return prompt.fill(self.prompts[name], {**self._included, **values})

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the files into `folder`, which must be absent or empty."""
        root = Path(folder)
        if root.exists() and any(root.iterdir()):
            raise HarnessError(f"{root}: not empty. Cure: name a new folder")
        for path, text in self.files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="")

    def _check_prompts(self) -> None:
        for name in NEEDED[self.settings.control.loop]:
            if name not in self.prompts:
                raise HarnessError(
                    f"{self.where}/prompts/{name}.md: missing, but the {self.settings.control.loop} loop needs it"
                )
        known = {*prompt.BUILT_IN, *self.prompts}
        for name, text in self.prompts.items():
            if name in prompt.BUILT_IN:
                raise HarnessError(
                    f"{self.where}/prompts/{name}.md: {{{name}}} is filled in by the loop. Cure: give it another name"
                )
            if name == "memory":  # how one remembered item is shown
                prompt.check(text, f"{self.where}/prompts/memory.md", ("key", "body"))
            elif name in ("system", "step"):
                prompt.check(text, f"{self.where}/prompts/{name}.md", known - {name})
        for name, text in self.prompts.items():
            for included in prompt.placeholders(text) if name != "memory" else ():
                if hole := next(iter(prompt.placeholders(self.prompts.get(included, ""))), None):
                    raise HarnessError(
                        f"{self.where}/prompts/{included}.md: {{{hole}}} is not filled in, because prompts/{name}.md "
                        f"includes this file as text. Cure: move it to prompts/{name}.md, or write {{{{{hole}}}}} to "
                        "print it literally"
                    )


def _read(root: Path) -> dict[str, str]:
    files: dict[str, str] = {}

    def unreadable(error: OSError) -> None:
        raise HarnessError(f"{error.filename}: cannot be read: {error.strerror}") from error

    for folder, names, leaves in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _IGNORED)
        for name in names:
            if (Path(folder) / name).is_symlink():
                raise HarnessError(f"{Path(folder) / name}: a link to a folder. Cure: copy the folder in")
        for leaf in sorted(leaves):
            path = Path(folder) / leaf
            if leaf.startswith(".") or leaf.endswith((".pyc", "~")):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
                raise HarnessError(f"{path}: a link that leads out of the folder. Cure: copy the file in")
            try:
                found = path.stat()  # before it is opened: it may be huge, or a pipe that never ends
                if not stat.S_ISREG(found.st_mode):
                    raise HarnessError(f"{path}: not a regular file. Cure: a harness holds text files only")
                if found.st_size > MAX_FILE:
                    raise HarnessError(
                        f"{path}: {found.st_size:,} bytes, more than {MAX_FILE:,}. Cure: keep data outside the harness"
                    )
                data = path.read_bytes()
            except OSError as error:
                raise HarnessError(f"{path}: cannot be read: {error.strerror}") from error
            try:
                files[path.relative_to(root).as_posix()] = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise HarnessError(
                    f"{path}: not UTF-8 text (byte {error.start}). Cure: a harness holds text files only"
                ) from error
    return files
