"""Every change that was proposed is shown, kept or not, with what it was made from and what decided on it.

All of it is rebuilt from the journal: the root's files are in the plan, each proposal holds its patch, so the diffs
shown are of the very texts that were tried.
"""

from dataclasses import dataclass

from evolve.gate import Verdict
from evolve.patch import Patch, PatchError, apply, diff
from harness.journal import Journal


@dataclass(frozen=True)
class Change:
    """One proposal. `fault`: why it was unusable, or why its diff cannot be shown; `verdict` None: not judged yet."""

    step: int
    parent: str
    child: str
    proposer: str
    patch: Patch | None
    diff: str
    fault: str
    verdict: Verdict | None

    @property
    def state(self) -> str:
        """In one word: kept, rejected, undecided, unusable or pending."""
        if self.patch is None:
            return "unusable"
        if self.verdict is None:
            return "pending"
        return {"accept": "kept", "reject": "rejected"}.get(self.verdict.decision, "undecided")


@dataclass(frozen=True)
class Node:
    """One version in the tree: how deep, and what became of it."""

    version: str
    depth: int
    state: str
    step: int | None
    hypothesis: str
    chosen: bool


@dataclass(frozen=True)
class Changes:
    """All proposals in order, the tree of versions, and the files of each (version -> path -> text)."""

    changes: tuple[Change, ...]
    tree: tuple[Node, ...]
    files: dict[str, dict[str, str]]

    def count(self, state: str) -> int:
        """How many proposals ended in `state`."""
        return sum(change.state == state for change in self.changes)


def read_changes(journal: Journal, root: str, files: dict[str, str], chosen: str | None) -> Changes:
    """The proposals of a run that began with version `root` of `files`. Raises JournalError."""
    verdicts = {event.key: Verdict.model_validate(event.body) for event in journal.events("verdict")}
    texts: dict[str, dict[str, str]] = {root: files}
    changes: list[Change] = []
    for event in journal.events("proposal"):
        body = event.body
        parent, child = str(body["parent"]), str(body.get("child", ""))
        patch = Patch.model_validate(body["patch"]) if "patch" in body else None
        shown, fault = "", str(body.get("unusable", ""))
        if patch is not None:
            try:
                texts[child] = apply(texts[parent], patch)
                shown = diff(texts[parent], texts[child])
            except (KeyError, PatchError) as error:
                fault = f"the diff cannot be shown: {error}"
        changes.append(
            Change(
                int(body["step"]),
                parent,
                child,
                str(body.get("proposer", "")),
                patch,
                shown,
                fault,
                verdicts.get(event.key),
            )
        )
    return Changes(tuple(changes), _tree(root, changes, chosen), texts)


def _tree(root: str, changes: list[Change], chosen: str | None) -> tuple[Node, ...]:
    by_parent: dict[str, list[Change]] = {}
    for change in changes:
        if change.child:
            by_parent.setdefault(change.parent, []).append(change)
    nodes = [Node(root, 0, "root", None, "the harness as it was given", root == chosen)]
    stack = [(change, 1) for change in reversed(by_parent.pop(root, []))]
    while stack:
        change, depth = stack.pop()
        hypothesis = change.patch.hypothesis if change.patch else ""
        nodes.append(Node(change.child, depth, change.state, change.step, hypothesis, change.child == chosen))
        stack += [(child, depth + 1) for child in reversed(by_parent.pop(change.child, []))]
    return tuple(nodes)
