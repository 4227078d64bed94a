"""One skill: a folder with a SKILL.md in the Agent Skills format, and nothing that reaches out of that folder.

The check is strict, because a skill may be written by a model or come from a stranger: every fault is told at once,
each naming file and key. What we add (provenance, stats) stands beside the folder, never inside its frontmatter.
"""

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500  # characters, from the standard
MAX_SKILL_BYTES = 128 * 1024  # of SKILL.md; the standard advises a twentieth of it
MAX_FILES = 1000
KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


class SkillFault(Exception):
    """A skill that cannot be used; one line for each fault, naming file, key and cure."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A checked skill. `body` is the text after the frontmatter; `folder` is where its files lie."""

    folder: Path
    name: str
    description: str
    body: str
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The skill in `folder`; raises SkillFault with every fault that it has."""
        folder = Path(folder)
        head, body, faults = _read(folder)
        faults += _faults_of_head(head, folder) + list(_faults_of_files(folder))
        if faults:
            raise SkillFault("\n".join(faults))
        return cls(
            folder=folder,
            name=_plain(head["name"]),
            description=head["description"].strip(),
            body=body,
            license=head.get("license"),
            compatibility=head.get("compatibility"),
            metadata=head.get("metadata", {}),
            allowed_tools=tuple(head.get("allowed-tools", "").split()),
        )


def _read(folder: Path) -> tuple[dict[str, Any], str, list[str]]:
    """Frontmatter, body, and the faults that made either unreadable."""
    path = folder / "SKILL.md"
    if not path.is_file():
        cure = f"rename {folder / 'skill.md'}" if (folder / "skill.md").exists() else "write it"
        return {}, "", [f"{path}: is missing. Cure: {cure}."]
    if not path.resolve().is_relative_to(folder.resolve()):
        return {}, "", []  # reported with the other links
    try:
        text = _text(path).removeprefix("\ufeff")
    except SkillFault as fault:
        return {}, "", [str(fault)]
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, "", [f"{path}: does not begin with '---'. Cure: put the frontmatter (name, description) first."]
    ends = [number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]
    if not ends:
        return {}, "", [f"{path}: the frontmatter has no end. Cure: close it with a line '---'."]
    head, faults = _parsed("\n".join(lines[1 : ends[0]]), path)
    return head, "\n".join(lines[ends[0] + 1 :]).strip(), faults


def _parsed(text: str, path: Path) -> tuple[dict[str, Any], list[str]]:
    """The frontmatter as text, lists and mappings: like the standard's own reader, `1.0` and `yes` stay text."""
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):  # before anything is built: a few bytes could take hours
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > 3:
                problem = "it is nested too deeply" if depth > 3 else "aliases are not allowed"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        head = _value(yaml.compose(text, yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        line = f", line {mark.line + 2}" if mark else ""  # +1 for '---', +1 because YAML counts from zero
        return {}, [f"{path}{line}: the frontmatter is not plain YAML: {problem}. Cure: quote values with ': ' or '#'."]
    if not isinstance(head, dict) or not head:
        return {}, [f"{path}: the frontmatter is not 'key: value' lines. Cure: give at least name and description."]
    return head, []


def _value(node: Any) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=key.start_mark)
            if key.value in mapping:
                raise yaml.MarkedYAMLError(problem=f"key '{key.value}' is given twice", problem_mark=key.start_mark)
            mapping[key.value] = _value(value)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_value(one) for one in node.value]
    return None if node is None else node.value


def _faults_of_head(head: dict[str, Any], folder: Path) -> list[str]:
    if not head:
        return []  # told already
    path = folder / "SKILL.md"
    faults = [
        f"{path}: '{key}' is not a key of the standard. Cure: move it under 'metadata'."
        for key in head
        if key not in KEYS
    ]
    for key, most in (
        ("name", MAX_NAME),
        ("description", MAX_DESCRIPTION),
        ("compatibility", MAX_COMPATIBILITY),
        ("license", None),
        ("allowed-tools", None),
    ):
        value = head.get(key)
        if value is None:
            if key in ("name", "description"):
                faults.append(f"{path}: '{key}' is missing. Cure: add it to the frontmatter.")
        elif not isinstance(value, str):
            faults.append(f"{path}: '{key}' must be text, not a list or mapping.")
        elif most is not None and not 1 <= len(value.strip()) <= most:
            faults.append(f"{path}: '{key}' must have 1 to {most} characters, not {len(value.strip())}.")
    if isinstance(head.get("name"), str):
        faults += _faults_of_name(_plain(head["name"]), folder)
    metadata = head.get("metadata", {})
    if not isinstance(metadata, dict):
        faults.append(f"{path}: 'metadata' must be a list of 'key: value'.")
    else:
        faults += [
            f"{path}: 'metadata.{key}' must be text, not a list or mapping."
            for key, value in metadata.items()
            if not isinstance(value, str)
        ]
    return faults


def _faults_of_name(name: str, folder: Path) -> Iterator[str]:
    path = folder / "SKILL.md"
    if name != name.lower() or not all(letter.isalnum() or letter == "-" for letter in name):
        yield f"{path}: 'name' may hold lowercase letters, digits and '-' only, not '{name}'."
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"{path}: 'name' must not begin or end with '-' or hold '--', but is '{name}'."
    if name != _plain(folder.resolve().name):
        yield f"{path}: 'name' is '{name}', but the folder is '{folder.resolve().name}'. Cure: make them equal."


def _faults_of_files(folder: Path) -> Iterator[str]:
    root = folder.resolve()
    for number, path in enumerate(_walk(folder)):
        if number >= MAX_FILES:
            yield f"{folder}: has more than {MAX_FILES} files. Cure: take out what is not the skill's own."
            return
        if not path.resolve().is_relative_to(root):
            yield f"{path}: is a link out of the skill. Cure: put a copy in its place."


def _walk(folder: Path) -> Iterator[Path]:
    """Files and links below `folder`, in a fixed order; links to folders are named, not followed."""
    for here, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        yield from (Path(here) / name for name in sorted(files + links))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SKILL_BYTES + 1)
    except OSError as error:
        raise SkillFault(f"{path}: cannot be read ({error.strerror}). Cure: check its rights.") from error
    if len(data) > MAX_SKILL_BYTES:
        raise SkillFault(
            f"{path}: is longer than {MAX_SKILL_BYTES} bytes. Cure: split it into files that are read on demand."
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SkillFault(f"{path}: is not UTF-8 text (byte {error.start}). Cure: save it as UTF-8.") from error


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKC", name.strip())
