"""A model that is a function: it reads which door is next, and knows four of the five keys (it is wrong about tin)."""

import json
import re

from harness.model import Completion, ToolCall, Usage

KEYS = {"iron": "red", "brass": "blue", "copper": "red", "tin": "red", "silver": "blue"}


def locksmith(request):
    """One call of whatever function the agent offers: a shell (mini-swe-agent), or `act` (smolagents)."""
    said = [message.content for message in request.messages]
    seen = next((text for text in reversed(said) if "door of" in text or "The episode is over" in text), "")
    doors = re.findall(r"door of (\w+)", seen)
    shell = any(tool["function"]["name"] == "bash" for tool in request.tools)
    if "The episode is over" in seen:
        order = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        name, told = ("bash", {"command": order}) if shell else ("final_answer", {"answer": "I did what I could."})
    elif not doors:
        name, told = ("bash", {"command": "instar-task"})
    elif shell:
        name, told = ("bash", {"command": f"instar-act {KEYS[doors[-1]]}"})
    else:
        name, told = ("act", {"action": KEYS[doors[-1]]})
    call = ToolCall(id=f"call_{len(said)}", name=name, arguments=json.dumps(told))
    words = sum(len(text) for text in said) // 4
    return Completion(
        text="", tool_calls=(call,), finish_reason="tool_calls",
        usage=Usage(prompt_tokens=words, output_tokens=12, dollars=0.0),
    )  # fmt: skip
