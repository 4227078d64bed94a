"""A folder of skills: checked as a whole, and told in a catalogue of names and descriptions.

A prompt pays only for what it asks for: bodies and files are read on demand (harness/toolbox.py). The order is that of
the names, so that equal folders give equal prompts, and a catalogue that does not fit says how many skills it leaves
out instead of dropping them unseen.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from skills.skill import Skill, SkillFault


def tokens_of(text: str) -> int:
    """Estimated tokens: a quarter of the UTF-8 bytes, rounded up (holds for English)."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 4)


class Library:
    """The skills in `folder`, one per subfolder; read once. Files and hidden folders beside them are passed over."""

    def __init__(self, folder: str | Path) -> None:
        """Raises SkillFault with every fault of every skill."""
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise SkillFault(f"{folder}: is no folder. Cure: create it, with one folder for each skill.")
        found: list[Skill] = []
        faults: list[str] = []
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith((".", "__")) or not path.is_dir():
                continue
            if not path.resolve().is_relative_to(self.folder.resolve()):
                faults.append(f"{path}: is a link out of the library. Cure: put a copy in its place.")
                continue
            try:
                found.append(Skill.load(path))
            except SkillFault as fault:
                faults.append(str(fault))
        if faults:
            raise SkillFault("\n".join(faults))
        self._skills = sorted(found, key=lambda skill: skill.name)

    def __len__(self) -> int:
        return len(self._skills)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._skills)

    def catalogue(self, budget_tokens: int = 2000) -> str:
        """A line '- name: description' for each skill, at most `budget_tokens` by estimate; '' if none."""
        lines = [f"- {skill.name}: {' '.join(skill.description.split())}" for skill in self]
        for shown in range(len(lines), -1, -1):
            left_out = len(lines) - shown
            note = [f"({left_out} more skills are not listed)"] if left_out else []
            text = "\n".join(lines[:shown] + note)
            if tokens_of(text) <= budget_tokens:
                return text
        raise ValueError(f"a catalogue of {len(lines)} skills needs more than {budget_tokens} tokens even to say so")
