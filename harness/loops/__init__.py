"""The loops: how an agent turns observations into actions until the episode is over.

Each is one async function over (agent, episode). A harness names one, or brings its own in `control.py`.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from harness.episode import Episode
from harness.folder import Harness

if TYPE_CHECKING:
    from harness.agent import Agent

#: Plays one episode; ends when `episode.over`, or by an EpisodeLimit that the episode raises.
Loop = Callable[["Agent", Episode], Awaitable[None]]


def loop(harness: Harness) -> Loop:
    """The loop that `harness` names; raises HarnessError when its own `control.py` is faulty."""
    name = harness.settings.control.loop
    if name == "choice":
        from harness.loops.choice import choice

        return choice
    if name == "react":
        from harness.loops.react import react

        return react
    if name == "tools":
        from harness.loops.tools import tools

        return tools
    if name == "command":
        from harness.loops.command import command

        return command
    from harness.loops.own import own

    return own(harness)
