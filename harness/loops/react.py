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
    talk, retrieved = agent.opening(episode)
    while not episode.over:
        situation = agent.situation(episode).text
        request = Request(messages=tuple(talk), temperature=settings.temperature, max_tokens=settings.max_tokens)
        completion = await episode.ask(agent.model, request)
        action = find_action(completion.text)
        complaint = ""
        if action is None:
            await episode.reject(situation=situation, retrieved=retrieved)
            complaint = "No action was found in your answer. End it with a line of the form: Action: <your action>\n"
        else:
            await episode.act(action, situation=situation, retrieved=retrieved)
        seen = f"{complaint}{episode.observation.text}"
        if episode.observation.choices:
            seen += "\nPossible actions: " + ", ".join(episode.observation.choices)
        talk += [Message(role="assistant", content=completion.text), Message(role="user", content=seen)]


def find_action(text: str) -> str | None:
    """The last `Action:` line of `text`, without quotes or backticks; None when there is none."""
    found = _ACTION.findall(text)
    return found[-1].strip("`\"'* ") or None if found else None
