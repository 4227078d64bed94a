"""A harness's own loop: `control.py` with `async def control(agent, episode)`.

It is the user's own code and runs in this process, so no proposer of ours may write it. An exception in it is the
harness's own fault: the episode is scored on what it has; where every first episode ends so, the run stops.
"""

import linecache
import traceback
from typing import Any

from envs.env import EnvFault
from harness.agent import Agent
from harness.episode import BrokenControl, Episode, EpisodeLimit
from harness.folder import Harness
from harness.journal import JournalError
from harness.loops import Loop
from harness.model import ContextOverflow, ModelFault, ModelRefused
from harness.settings import HarnessError


def own(harness: Harness) -> Loop:
    """The function `control` of the folder's `control.py`; raises HarnessError when there is none."""
    name = f"{harness.where}/control.py"
    source = harness.files["control.py"]
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "control", "__file__": name}
    try:
        exec(compile(source, name, "exec"), space)
    except Exception as error:
        raise HarnessError(f"{name}: {_place(error, name)}{type(error).__name__}: {error}") from error
    function = space.get("control")
    if not callable(function):
        raise HarnessError(f"{name}: defines no function. Cure: async def control(agent, episode): ...")

    async def run(agent: Agent, episode: Episode) -> None:
        try:
            await function(agent, episode)
        except (EpisodeLimit, EnvFault, ModelFault, ModelRefused, ContextOverflow, HarnessError, JournalError):
            raise
        except Exception as error:
            raise BrokenControl(f"{name}: {_place(error, name)}{type(error).__name__}: {error}") from error
        if not episode.over:
            raise EpisodeLimit("control.py returned before the episode was over")

    return run


def _place(error: Exception, name: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return f"line {lines[-1]}: " if lines else f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
