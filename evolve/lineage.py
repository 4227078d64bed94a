"""Every instar knows where it came from: its parents, the patch, the verdict, and so who brought each line.

Parents must be known before children, so the graph cannot have a cycle. The best instar is the one with the best
validation score, never the last one. The file is rewritten whole and atomically: a crash leaves the old one.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field

from evolve.gate import Verdict
from evolve.patch import Patch, lines, opened
from evolve.stats import Mean

if TYPE_CHECKING:
    import networkx

#: Version of the JSON form; a newer one is refused.
FORMAT = 1
#: Gives the files (path -> text) of a harness version.
FilesOf = Callable[[str], Mapping[str, str]]


class Instar(BaseModel):
    """One harness version: `id` is its content hash, `scores` its mean by split; a root has no parent and no patch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    parents: tuple[str, ...] = ()
    step: int = 0
    patch: Patch | None = None
    verdict: Verdict | None = None
    scores: dict[str, Mean] = Field(default_factory=dict)

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

    def record(self, version: str, split: str, score: Mean) -> Instar:
        """Put a (new) score of `version` on `split` on record."""
        node = self[version]
        self._nodes[version] = node.model_copy(update={"scores": {**node.scores, split: score}})
        return self._nodes[version]

    def best(self, split: str = "validation") -> Instar:
        """The accepted instar with the highest mean on `split`, the oldest of equals; ValueError if none has one."""
        scored = [
            (score.mean, node)
            for node in self._nodes.values()
            if node.accepted and (score := node.scores.get(split)) is not None and score.mean is not None
        ]
        if not scored:
            raise ValueError(f"no accepted instar has a score on split '{split}'; record one first")
        return max(scored, key=lambda pair: pair[0])[1]

    def path_to_root(self, version: str) -> tuple[Instar, ...]:
        """`version`, its first parent, and so on to a root."""
        path = [self[version]]
        while path[-1].parents:
            path.append(self[path[-1].parents[0]])
        return tuple(path)

    def graph(self) -> "networkx.DiGraph[str]":
        """The DAG with edges parent -> child and each Instar as node attribute `instar`."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for node in self._nodes.values():
            graph.add_node(node.id, instar=node)
            graph.add_edges_from((parent, node.id) for parent in node.parents)
        return graph

    def blame(self, version: str, path: str, files_of: FilesOf) -> list[tuple[str, str]]:
        """(line, id of the instar that introduced it) for each line of a file of `version`.

        A line of a merge belongs to the first parent that has it. ValueError if the version has no such file.
        """
        import networkx

        if path not in files_of(self[version].id):
            raise ValueError(f"instar '{version}' has no file '{path}'")
        graph = self.graph()
        family = graph.subgraph(networkx.ancestors(graph, version) | {version})
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

    def log(self, split: str = "validation") -> str:
        """The tree as text, children under their first parent; * marks the best on `split`, x what was not kept."""
        try:
            best = self.best(split).id
        except ValueError:
            best = ""
        children: dict[str, list[Instar]] = {}
        for node in self._nodes.values():
            children.setdefault(node.parents[0] if node.parents else "", []).append(node)
        rows: list[str] = []
        stack = [(node, 0) for node in reversed(children.get("", []))]
        while stack:
            node, depth = stack.pop()
            rows.append("  " * depth + _row(node, split, best))
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


def _row(node: Instar, split: str, best: str) -> str:
    mark = "*" if node.id == best else "o" if node.accepted else "x"
    score = node.scores.get(split)
    shown = "" if score is None or score.mean is None else f" {score.mean:.3f}"
    hypothesis = " ".join(node.patch.hypothesis.split()) if node.patch else ""
    what = f" {hypothesis}" if hypothesis else " root" if not node.parents else ""
    merged = f" (merges {', '.join(parent[:10] for parent in node.parents[1:])})" if len(node.parents) > 1 else ""
    why = f" [{node.verdict.decision}: {node.verdict.reason}]" if node.verdict else ""
    return f"{mark} {node.id[:10]} step {node.step}{shown}{what}{merged}{why}"
