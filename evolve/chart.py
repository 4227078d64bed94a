"""Charts as inline SVG of our own: they print, scale and read aloud, and need no script and no other server.

Colours come from the page's style; each series also has its own mark and line, so that colour alone tells nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from evolve.stats import Mean

WIDTH, HEIGHT = 760, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 44, 48


@dataclass(frozen=True)
class Series:
    """One arm: its name, its style (evolved, control, wander or recalled), its mean at each round, and at the exam."""

    name: str
    style: str
    points: Sequence[tuple[int, Mean]]
    exam: Mean | None = None


def learning_curve(series: Sequence[Series], reach: tuple[float, float] | None, reference: Mean | None = None) -> str:
    """SVG text: mean score per round with its interval, then the exam; '' when there is nothing to draw."""
    means = [mean for one in series for _, mean in one.points] + [one.exam for one in series if one.exam]
    values = [v for m in means for v in (m.mean, m.low, m.high) if v is not None]
    if not values:
        return ""
    low, high = reach or (min(0.0, *values), max(*values, 1e-9))
    rounds = sorted({at for one in series for at, _ in one.points})
    exam = any(one.exam for one in series)
    slots = len(rounds) + (1 if exam else 0)
    wide = WIDTH - _LEFT - _RIGHT
    place = {at: _LEFT + wide * (rank + 0.5) / slots for rank, at in enumerate(rounds)}
    exam_x = _LEFT + wide * (slots - 0.5) / slots

    def y(value: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - (value - low) / ((high - low) or 1.0))

    parts = [_axes(low, high, y)]
    if exam:
        left = _LEFT + wide * (slots - 1) / slots
        size = f'width="{wide / slots:.1f}" height="{HEIGHT - _TOP - _BOTTOM}"'
        parts.append(f'<rect class="band" x="{left:.1f}" y="{_TOP}" {size}/>')
        parts.append(f'<text x="{exam_x:.1f}" y="{HEIGHT - 28}" text-anchor="middle">exam</text>')
    every = max(1, len(rounds) // 16)
    parts += [f'<text x="{place[at]:.1f}" y="{HEIGHT - 28}" text-anchor="middle">{at}</text>' for at in rounds[::every]]
    middle = _LEFT + wide * len(rounds) / slots / 2
    parts.append(f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">round</text>')
    if reference is not None and reference.mean is not None:
        level = y(reference.mean)
        parts.append(f'<line class="reference" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>')
    for rank, one in enumerate(series):
        shift = (rank - (len(series) - 1) / 2) * 12
        known = [(place[at] + shift, mean) for at, mean in one.points if mean.mean is not None]
        path = " ".join(f"{x:.1f},{y(mean.mean or 0.0):.1f}" for x, mean in known)
        if known:
            parts.append(f'<polyline class="line {one.style}" points="{path}"/>')
        parts += [_point(x, mean, one, f"round, {one.name}", y) for x, mean in known]
        if one.exam is not None and one.exam.mean is not None:
            parts.append(_point(exam_x + shift, one.exam, one, f"exam, {one.name}", y))
    parts.append(_legend(series, reference))
    says = "; ".join(f"{one.name}: " + ", ".join(_told(one)) for one in series)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="curve-title curve-text">'
        f'<title id="curve-title">Mean score per round with 95 % intervals</title>'
        f'<desc id="curve-text">{escape(says)}</desc>{"".join(parts)}</svg>'
    )


def _axes(low: float, high: float, y: Callable[[float], float]) -> str:
    parts = []
    for step in range(5):
        value = low + (high - low) * step / 4
        at = y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    turned = f'transform="translate(14 {middle:.0f}) rotate(-90)"'
    parts.append(f'<text class="y-label" {turned} text-anchor="middle">mean score</text>')
    return "".join(parts)


def _point(x: float, mean: Mean, one: Series, where: str, y: Callable[[float], float]) -> str:
    bar = ""
    if mean.low is not None and mean.high is not None:
        top, foot = y(mean.high), y(mean.low)
        caps = f"M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {foot:.1f}h8"
        bar = f'<path class="bar {one.style}" d="M{x:.1f} {top:.1f}V{foot:.1f}{caps}"/>'
    hint = escape(f"{where}: {mean.summary()}")
    return f"<g><title>{hint}</title>{bar}{_mark(x, y(mean.mean or 0.0), one.style)}</g>"


def _mark(x: float, at: float, style: str) -> str:
    if style == "control":
        return f'<rect class="mark control" x="{x - 4.5:.1f}" y="{at - 4.5:.1f}" width="9" height="9"/>'
    if style == "wander":
        corners = f"{x - 5.5:.1f},{at + 4.5:.1f} {x + 5.5:.1f},{at + 4.5:.1f} {x:.1f},{at - 5.5:.1f}"
        return f'<polygon class="mark wander" points="{corners}"/>'
    if style == "recalled":
        corners = f"{x - 6:.1f},{at:.1f} {x:.1f},{at - 6:.1f} {x + 6:.1f},{at:.1f} {x:.1f},{at + 6:.1f}"
        return f'<polygon class="mark recalled" points="{corners}"/>'
    return f'<circle class="mark {style}" cx="{x:.1f}" cy="{at:.1f}" r="5"/>'


def _legend(series: Sequence[Series], reference: Mean | None) -> str:
    parts, x = [], float(_LEFT)
    for one in series:
        parts.append(f'<line class="line {one.style}" x1="{x:.0f}" x2="{x + 28:.0f}" y1="20" y2="20"/>')
        parts.append(_mark(x + 14, 20, one.style))
        parts.append(f'<text x="{x + 36:.0f}" y="24">{escape(one.name)}</text>')
        x += 60 + 11 * len(one.name)
    if reference is not None and reference.mean is not None:
        parts.append(f'<line class="reference" x1="{x:.0f}" x2="{x + 28:.0f}" y1="20" y2="20"/>')
        parts.append(f'<text x="{x + 36:.0f}" y="24">random moves ({reference.mean:.3f})</text>')
    return "".join(parts)


def _told(one: Series) -> list[str]:
    exam = [("exam", one.exam)] if one.exam is not None else []
    return [
        f"{where} {'no score' if mean.mean is None else f'{mean.mean:.3f}'}"
        for where, mean in (*((f"round {at}", mean) for at, mean in one.points), *exam)
    ]
