"""The skills of a harness folder, disclosed as far as its `[skills]` says: names and descriptions, or whole bodies.

A skill is checked by the skills room, whose Library reads folders; a harness is files in memory (it may be a proposal
that never was on disk), so its skills are laid out for the check and taken away again, once for each harness.
"""

import tempfile
from functools import lru_cache
from pathlib import Path

from harness.folder import Harness
from harness.settings import HarnessError


@lru_cache(maxsize=32)
def disclose(harness: Harness) -> str:
    """Text for the {skills} placeholder, within the token budget; raises HarnessError for a faulty skill."""
    files = {path: text for path, text in harness.files.items() if path.startswith("skills/")}
    how = harness.settings.skills
    if not files or how.disclose == "none":
        return ""
    from skills import Library, SkillFault

    with tempfile.TemporaryDirectory(prefix="instar-skills-") as folder:
        for path, text in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="")
        try:
            library = Library(Path(folder) / "skills")
        except SkillFault as fault:
            raise HarnessError(str(fault).replace(folder, harness.where)) from fault
        if how.disclose == "catalogue":
            return library.catalogue(how.tokens)
        text, room = "", how.tokens * 4
        for skill in library:
            part = f"## {skill.name}\n{skill.body.strip()}\n\n"
            if len(text) + len(part) > room:
                return f"{text}(more skills did not fit in {how.tokens} tokens)\n"
            text += part
        return text
