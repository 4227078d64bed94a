"""Which versions a run went through, rebuilt from its journal: their files, their tree, and who brought each line.

The root's files are in the plan and every proposal holds its patch, so nothing else has to be there, and a live run can
be asked as well as a finished one.
"""

import os
from dataclasses import dataclass

from evolve.lineage import Instar, Lineage
from evolve.patch import diff
from evolve.report import ReportData, read_report


@dataclass(frozen=True)
class Descent:
    """The judged versions of a run and their files (version -> path -> text); `chosen` is the best known until now."""

    lineage: Lineage
    files: dict[str, dict[str, str]]
    root: str
    chosen: str
    finished: bool
    pending: tuple[int, ...]  # proposals that are not judged yet
    unusable: tuple[tuple[int, str], ...]  # proposals that were no change, and why

    def log(self) -> str:
        """The tree as text, what is still open, and which version was chosen."""
        lines = [self.lineage.log(), "(* the last one kept, o kept before, x not kept)"]
        lines += [f"proposal {step}: unusable: {why}" for step, why in self.unusable]
        lines += [f"proposal {step}: not judged yet" for step in self.pending]
        lines.append(f"{'chosen' if self.finished else 'unfinished; the last one kept is'} {self.chosen[:10]}")
        return "\n".join(lines)

    def blame(self, path: str) -> str:
        """Each line of the chosen version's file with the version that brought it, then what these versions were."""
        there = self.files[self.chosen]
        if path not in there:
            raise ValueError(f"{self.chosen[:10]} has no file {path}. There are: {', '.join(sorted(there))}")
        owners = self.lineage.blame(self.chosen, path, self.files.__getitem__)
        rows = [f"{owner[:10]}  {self._name(owner):<10}  {line}" for line, owner in owners]
        brought = {owner for _, owner in owners}
        return "\n".join([*rows, "", *(self._about(node) for node in self.lineage.nodes() if node.id in brought)])

    def diff(self, a: str | None = None, b: str | None = None) -> str:
        """Unified diff from version `a` (None: the root) to `b` (None: the chosen one)."""
        return diff(self.files[self.version(a or self.root)], self.files[self.version(b or self.chosen)])

    def version(self, start: str) -> str:
        """The one version that begins with `start`; ValueError if there is none, or more than one."""
        found = [version for version in self.files if version.startswith(start)]
        if len(found) != 1:
            what = "more than one version begins" if found else "no version begins"
            raise ValueError(f"{what} with {start}. There are: {', '.join(version[:10] for version in self.files)}")
        return found[0]

    def _name(self, version: str) -> str:
        return "root" if version == self.root else f"change {self.lineage[version].step}"

    def _about(self, node: Instar) -> str:
        hypothesis = " ".join(node.patch.hypothesis.split()) if node.patch else "the harness as it was given"
        why = f" [{node.verdict.decision}: {node.verdict.reason}]" if node.verdict else ""
        return f"{node.id[:10]}  {self._name(node.id)}: {hypothesis or 'no hypothesis was given'}{why}"


def read_descent(folder: str | os.PathLike[str]) -> Descent:
    """The descent of the run in `folder`. Raises JournalError; ValueError for a run that changes no files."""
    data = read_report(folder)
    if data.changes is None:
        raise ValueError(f"{data.folder}: {_without(data)}")
    root, changes = str(data.plan["harness"]), data.changes
    lineage = Lineage()
    lineage.add(Instar(id=root))
    for change in changes.changes:
        if change.patch is not None and change.verdict is not None and change.child not in lineage:
            node = Instar(
                id=change.child, parents=(change.parent,), step=change.step, patch=change.patch, verdict=change.verdict
            )
            lineage.add(node)
    kept = [node.id for node in lineage.nodes() if node.accepted]
    return Descent(
        lineage=lineage,
        files=changes.files,
        root=root,
        chosen=data.outcome.chosen if data.outcome else kept[-1],
        finished=data.finished,
        pending=tuple(change.step for change in changes.changes if change.state == "pending"),
        unusable=tuple((change.step, change.fault) for change in changes.changes if change.state == "unusable"),
    )


def _without(data: ReportData) -> str:
    if not data.evolving:
        return "a benchmark run changes no files, so there is no lineage. Cure: name a run of instar evolve"
    return (
        f"{data.plan.get('recipe')} evolves a memory and leaves the files as they are, so there is no lineage. "
        f"Cure: instar memory list --in {data.folder}"
    )
