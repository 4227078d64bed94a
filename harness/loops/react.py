"""The `react` loop: the model thinks in text and ends with a line `Action: ...`; one conversation an episode.

What the model says stays in the conversation, and each observation comes back as a user message, so the token
prefix never changes (servers can cache it, and training can use the sampled ids).
"""

import re

from harness.agent import Agent
from harness.episode import Episode
from harness.model import Message, Request

_ACTION = re.compile(r"^\s*\**action\**\s*:\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE)


async def react(agent: Agent, episode: Episode) -> None:
    """Play `episode` by thought and action in text."""
    settings = agent.harness.settings.model
    items, memories = agent.remember(episode, agent.situation(episode).text)
    retrieved = [item.id for item in items]
    values = agent.values(episode, agent.situation(episode), memories)
    talk = [
        Message(role="system", content=agent.harness.render("system", values)),
        Message(role="user", content=agent.harness.render("step", values)),
    ]
    while not episode.over:
        situation = agent.situation(episode)
        request = Request(messages=tuple(talk), temperature=settings.temperature, max_tokens=settings.max_tokens)
        completion = await episode.ask(agent.model, request)
        action = find_action(completion.text)
        await episode.act(action or "", situation=situation.text, retrieved=retrieved, invalid=action is None)
        seen = episode.observation.text
        if action is None:
            seen = f"No action was found in your answer. End it with a line of the form: Action: <your action>\n{seen}"
        if episode.observation.choices:
            seen += "\nPossible actions: " + ", ".join(episode.observation.choices)
        talk += [Message(role="assistant", content=completion.text), Message(role="user", content=seen)]


def find_action(text: str) -> str | None:
    """The last `Action:` line of `text`, without quotes or backticks; None when there is none."""
    found = _ACTION.findall(text)
    return found[-1].strip("`\"'* ") or None if found else None
