"""Every instar knows where it came from: its parents, the patch, the verdict, and so who brought each line.

Parents must be known before children, so the graph cannot have a cycle. Each accepted instar beat its parent by a gate,
so the last accepted one is what a run has found. The file is rewritten whole and atomically, so that a crash leaves the
old one.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from evolve.gate import Verdict
from evolve.patch import Patch, lines, opened

#: Version of the JSON form; a newer one is refused.
FORMAT = 1
#: Gives the files (path -> text) of a harness version.
FilesOf = Callable[[str], Mapping[str, str]]


class Instar(BaseModel):
    """One harness version: `id` is its content hash; a root has no parent and no patch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    parents: tuple[str, ...] = ()
    step: int = 0
    patch: Patch | None = None
    verdict: Verdict | None = None

    @property
    def accepted(self) -> bool:
        """Roots are; others if their verdict says so."""
        return not self.parents or (self.verdict is not None and self.verdict.decision == "accept")


class Lineage:
    """Instars in the order they appeared."""

    def __init__(self) -> None:
        self._nodes: dict[str, Instar] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, version: str) -> bool:
        return version in self._nodes

    def __getitem__(self, version: str) -> Instar:
        if version not in self._nodes:
            raise KeyError(f"the lineage has no instar '{version}'; it has {len(self)}, see log()")
        return self._nodes[version]

    def nodes(self) -> tuple[Instar, ...]:
        """All instars, oldest first."""
        return tuple(self._nodes.values())

    def add(self, node: Instar) -> None:
        """Add a version after its parents; ValueError if it is known (an edit led back to it) or a parent is not."""
        if node.id in self._nodes:
            raise ValueError(f"instar '{node.id}' is in the lineage already: the edit led back to a known version")
        unknown = [parent for parent in node.parents if parent not in self._nodes]
        if unknown:
            raise ValueError(f"instar '{node.id}' has parents that are not in the lineage: {', '.join(unknown)}")
        self._nodes[node.id] = node

    def blame(self, version: str, path: str, files_of: FilesOf) -> list[tuple[str, str]]:
        """(line, id of the instar that introduced it) for each line of a file of `version`.

        A line of a merge belongs to the first parent that has it. ValueError if the version has no such file.
        """
        if path not in files_of(self[version].id):
            raise ValueError(f"instar '{version}' has no file '{path}'")
        family = {version}
        for one in reversed(self._nodes):  # children come before their parents
            family.update(self._nodes[one].parents if one in family else ())
        origin: dict[str, list[str]] = {}
        text: dict[str, list[str]] = {}
        for one in self._nodes:  # insertion order is topological
            if one not in family:
                continue
            text[one] = lines(files_of(one).get(path, ""))
            owners: list[str | None] = [None] * len(text[one])
            for parent in self._nodes[one].parents:
                matcher = difflib.SequenceMatcher(a=text[parent], b=text[one], autojunk=False)
                for a, b, size in matcher.get_matching_blocks():
                    for k in range(size):
                        if owners[b + k] is None:
                            owners[b + k] = origin[parent][a + k]
            origin[one] = [owner or one for owner in owners]
        return [(line.removesuffix("\n"), owner) for line, owner in zip(text[version], origin[version], strict=True)]

    def log(self) -> str:
        """The tree as text, children under their first parent; * marks the last accepted, x what was not kept."""
        head = next((node.id for node in reversed(self._nodes.values()) if node.accepted), "")
        children: dict[str, list[Instar]] = {}
        for node in self._nodes.values():
            children.setdefault(node.parents[0] if node.parents else "", []).append(node)
        rows: list[str] = []
        stack = [(node, 0) for node in reversed(children.get("", []))]
        while stack:
            node, depth = stack.pop()
            rows.append("  " * depth + _row(node, head))
            stack += [(child, depth + 1) for child in reversed(children.get(node.id, []))]
        return "\n".join(rows)

    def to_json(self) -> str:
        """Text for disk, with the format's version."""
        nodes = [node.model_dump(mode="json") for node in self._nodes.values()]
        return json.dumps({"format": "instar-lineage", "version": FORMAT, "nodes": nodes}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; ValueError for anything else."""
        lineage, nodes = cls(), opened(text, "instar-lineage", FORMAT).get("nodes")
        if not isinstance(nodes, list):
            raise ValueError("the lineage has no list of nodes; it was not written by Instar")
        for node in nodes:
            lineage.add(Instar.model_validate(node))
        return lineage

    def save(self, path: Path) -> None:
        """Write the file so that a reader, or a crash, sees the old or the new one whole."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `save`'s file; ValueError naming the file if it cannot be read as a lineage."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"cannot read the lineage in {path}: {error}") from error


def _row(node: Instar, head: str) -> str:
    mark = "*" if node.id == head else "o" if node.accepted else "x"
    hypothesis = node.patch.hypothesis if node.patch else ""
    what = f" {hypothesis}" if hypothesis else " root" if not node.parents else ""
    merged = f" (merges {', '.join(parent[:10] for parent in node.parents[1:])})" if len(node.parents) > 1 else ""
    why = f" [{node.verdict.decision}: {node.verdict.reason}]" if node.verdict else ""
    return f"{mark} {node.id[:10]} step {node.step}{what}{merged}{why}"
