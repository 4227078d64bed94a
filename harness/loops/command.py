"""The `command` loop: a foreign agent plays the episode from outside, through the recording proxy.

It thinks with our model and acts in our world, so its limits, its record, its budget and its score are those of any
other agent. What it does wrong is its own and scored; a command that never got as far as a call or an action is not
installed right, and stops the run until one episode has gone further.
"""

from harness.agent import Agent
from harness.episode import Episode, EpisodeLimit
from harness.foreign import Ran, check_command, run_command
from harness.model import ModelRefused
from harness.proxy.rooms import room
from harness.proxy.session import EpisodeSession
from harness.proxy.wire_in import Defaults
from harness.proxy.words import plain
from harness.settings import HarnessError

LAST = 300  # characters of a command's last words
#: Versions of harnesses whose command has reached us at least once in this process.
_reached: set[str] = set()


async def command(agent: Agent, episode: Episode) -> None:
    """Play `episode` by the harness's command."""
    check_command(agent.harness)
    settings = agent.harness.settings.model
    items, memories = agent.remember(episode, agent.situation(episode).text)
    session = EpisodeSession(
        episode, agent.model, Defaults(settings.temperature, settings.max_tokens),
        situation=lambda: agent.situation(episode).text, retrieved=[item.id for item in items],
        told={"memories": memories, "skills": agent.skills},
    )  # fmt: skip
    async with room(session) as (url, key):
        ran = await run_command(
            agent.harness, url=url, key=key, goal=episode.task.goal, task=episode.task.id, model=agent.model.name,
            until=session.ended, spare=episode.clock.pauses,
        )  # fmt: skip
        await session.drain()
    if session.answered or episode.turns:
        _reached.add(agent.harness.version)
    if session.error is not None:
        raise session.error
    if not episode.over:
        raise _unfinished(agent, session, ran)


def _unfinished(agent: Agent, session: EpisodeSession, ran: Ran) -> Exception:
    """Why a command ended before its episode."""
    if session.stumble is not None and not (session.answered and isinstance(session.stumble, ModelRefused)):
        return session.stumble  # a prompt that it could not shorten, or a model that takes nothing of it
    how = f"the command ended with status {ran.status} before the episode was over"
    last = f": {_last_words(ran.said)}" if ran.status else ""
    if ran.status and agent.harness.version not in _reached:
        return HarnessError(
            f"{agent.harness.where}/harness.toml: [command] {agent.harness.settings.command.argv[0]}: {how}, and it "
            f"neither asked the model nor did anything{last}. Cure: give the command by hand and mend that"
        )
    return EpisodeLimit(how + last, "bug") if ran.status else EpisodeLimit(how)


def _last_words(said: str) -> str:
    """The end of what a command printed, on one line and without what would act on a terminal."""
    return plain(" | ".join(" ".join(line.split()) for line in said.splitlines()[-3:]))[-LAST:]
