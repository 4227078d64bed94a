"""The `tools` loop: native function calls. The world's tools, the folder's own, skills to read, `act` for plain text.

Arguments that are not valid JSON are answered as such and never run as an empty call; an unknown tool likewise.
"""

import json
from typing import Any

from harness.agent import Agent
from harness.episode import Episode
from harness.model import Message, Request, ToolCall
from harness.toolbox import Toolbox, ToolFault

_ACT: dict[str, Any] = {
    "name": "act",
    "description": "Do one action in the world and see what happens.",
    "parameters": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
}


async def tools(agent: Agent, episode: Episode) -> None:
    """Play `episode` by function calls."""
    settings = agent.harness.settings.model
    talk, retrieved = agent.opening(episode)
    box = Toolbox(agent.harness)
    own = box.schemas()
    while not episode.over:
        offered = [_act_schema(episode), *own, *(_schema(tool) for tool in episode.tools())]
        request = Request(
            messages=tuple(talk), tools=tuple({"type": "function", "function": tool} for tool in offered),
            temperature=settings.temperature, max_tokens=settings.max_tokens,
        )  # fmt: skip
        completion = await episode.ask(agent.model, request)
        talk.append(Message(role="assistant", content=completion.text, tool_calls=completion.tool_calls))
        situation = agent.situation(episode).text
        if not completion.tool_calls:
            await episode.reject(situation=situation, retrieved=retrieved)
            talk.append(Message(role="user", content=f"Call one of the functions. {episode.observation.text}"))
        for call in completion.tool_calls:
            if episode.over:
                break
            answer = await _do(call, box, episode, situation, retrieved)
            talk.append(Message(role="tool", content=answer, tool_call_id=call.id))


async def _do(call: ToolCall, box: Toolbox, episode: Episode, situation: str, retrieved: list[str]) -> str:
    """Carry out one call and return what the model sees of it."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except json.JSONDecodeError as error:
        await episode.reject(situation=situation, retrieved=retrieved)
        return f"Error: the arguments are not valid JSON ({error}). Nothing was done."
    if not isinstance(arguments, dict):
        await episode.reject(situation=situation, retrieved=retrieved)
        return "Error: the arguments must be a JSON object. Nothing was done."
    if call.name == "act":
        action = arguments.get("action")
        if not isinstance(action, str):
            await episode.reject(situation=situation, retrieved=retrieved)
            return "Error: act needs a text 'action'. Nothing was done."
        await episode.act(action, situation=situation, retrieved=retrieved)
        return episode.observation.text
    if call.name in box:
        try:
            return await box.call(call.name, arguments)
        except ToolFault as fault:
            return f"Error: {fault}"
    if any(tool.name == call.name for tool in episode.tools()):
        action = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
        await episode.act(action, situation=situation, retrieved=retrieved)
        return episode.observation.text
    await episode.reject(situation=situation, retrieved=retrieved)
    return f"Error: there is no function '{call.name}'. Nothing was done."


def _act_schema(episode: Episode) -> dict[str, Any]:
    choices = episode.observation.choices
    if not choices:
        return _ACT
    action = {"type": "string", "enum": list(choices)}
    return {**_ACT, "parameters": {**_ACT["parameters"], "properties": {"action": action}}}


def _schema(tool: Any) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
