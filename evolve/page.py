"""One self-contained page: no request leaves it, and nothing that a model or a world said can act in it.

Every value is escaped, characters that hide or reorder text are shown by name, and the page's own policy lets only
its one script run, named by its hash.
"""

import base64
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolve import chart, wording
from evolve.report import ReportData, endings, read_report
from evolve.transcripts import PROMPT, choose
from harness.journal import JournalError
from harness.trajectory import Call

if TYPE_CHECKING:
    from jinja2 import Environment

NAME = "report.html"
LISTED = 500  # rows of one table: a browser that must lay out a hundred thousand shows nothing
_HOME = Path(__file__).parent / "templates"
#: Control characters, marks that reorder or hide text, lone surrogates. Tab and newline stay.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def write(
    run: str | os.PathLike[str] | ReportData, out: str | os.PathLike[str] | None = None, *, everything: bool = False
) -> Path:
    """Write the page about `run` to `out` (its report.html if None) and return its path. Raises JournalError.

    `everything` puts all rows and all transcripts into it; they are read one at a time.
    """
    data = run if isinstance(run, ReportData) else read_report(run)
    path = Path(out) if out is not None else data.folder / NAME
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("w", encoding="utf-8") as file:
                file.writelines(_parts(data, everything))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(
            f"{path}: cannot be written: {error.strerror}. Cure: choose another file with --out"
        ) from error
    return path


def page(data: ReportData, *, everything: bool = False) -> str:
    """The page as text; the same run gives the same text."""
    return "".join(_parts(data, everything))


def _parts(data: ReportData, everything: bool) -> Iterator[str]:
    env = _environment()
    transcripts = choose(data, everything=everything)
    shown = {row.id for row in transcripts.chosen}
    known = data.memory.items if data.memory else {}
    recalled = transcripts.recalled() if known else ()
    script = (_HOME / "script.js").read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    yield from env.get_template("page.html.j2").generate(
        data=data, plan=data.plan, words=wording, transcripts=transcripts, shown=shown, rows=data.episodes.rows,
        glossary=[known[id] for id in sorted(recalled) if id in known], everything=everything, curve=_curve(data),
        anchor=anchor, cut=cut, endings=endings, said=_said, result_of=_results(data), script=_markup(script),
        style=_markup((_HOME / "style.css").read_text(encoding="utf-8").strip()), script_hash=digest,
        most=None if everything else LISTED,
    )  # fmt: skip


def anchor(id: str) -> str:
    """A name for a place in the page that any id can have."""
    return "x" + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def visible(value: Any) -> Any:
    """Text with what would hide, reorder or break it spelled out; other values as they are."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value.replace("\r\n", "\n"))


def cut(text: str, most: int) -> str:
    """`text` with its middle left out, and said so, when it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out; see them with --all ...]\n{text[-half:]}"


def _said(call: Call) -> str:
    """What a model answered, tool calls included."""
    return "\n".join([*([call.output] if call.output else []), *(f"{c.name}({c.arguments})" for c in call.tool_calls)])


def _curve(data: ReportData) -> Any:
    points = [(r.number, r.evolved) for r in data.rounds]
    against = [(r.number, r.control) for r in data.rounds if r.control is not None]
    series = [
        chart.Series("evolved", "evolved", points, data.exam.get("evolved")),
        chart.Series("control", "control", against, data.exam.get("control")),
    ]
    chance = data.exam.get("wander")
    series += [chart.Series(wording.arm(a), a, [], data.exam[a]) for a in ("wander", "recalled") if a in data.exam]
    return _markup(chart.learning_curve(series, data.facts.reward_range, None if chance else data.explored))


def _results(data: ReportData) -> dict[str, str]:
    """What became of an exam episode against its partner, by id."""
    return {row.id: pair.result for pair in data.pairs for row in (pair.evolved, pair.control) if row is not None}


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # text of our own


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(_HOME), autoescape=True, undefined=StrictUndefined, finalize=visible, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    env.filters |= {
        "score": wording.number,
        "day": lambda at: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at)),
        "n": lambda value: f"{value:,.0f}",
        "dollars": wording.dollars,
        "span": wording.span,
    }
    env.globals["PROMPT"] = PROMPT
    return env
