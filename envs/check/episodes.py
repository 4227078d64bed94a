"""The rules about episodes as they were played: `record` plays them, the others read what was written down."""

import asyncio
import math
from functools import partial
from typing import Any

from envs.benchmark import total_reward
from envs.check.probe import BLOCKED_S, Finding, NotApplicable, Probe, Trace, brief
from envs.env import Env
from envs.task import Tool

#: Longer observations are cut by most harnesses (warning); ten times as long fills a context (failure).
TEXT_LIMIT = 20_000
#: Random episodes before it is said that they solve everything, and the seconds that these may take.
RANDOM_PLAYS, RANDOM_S = 30, 5.0


async def record(probe: Probe) -> str:
    """The methods exist and answer with the right types, for a random policy and for each of the benchmark's own."""
    policies = ["random", *(name for name in probe.benchmark.policies if name != "random")]
    for task in probe.tasks:
        for policy in policies:
            async with probe.opened() as env:
                probe.traces.append(await probe.play(env, task, policy))
                _check_tools(probe, env)
    steps = sum(len(trace.actions) for trace in probe.traces)
    return f"{len(probe.traces)} episodes, {steps} steps ({', '.join(policies)})"


def _check_tools(probe: Probe, env: Env) -> None:
    cure = "tools() is a plain method that returns a list of envs.Tool, each with a name of its own and a JSON schema."
    tools: list[Any] = probe.guarded("tools()", lambda: list(env.tools()), cure)
    for tool in tools:
        if not isinstance(tool, Tool):
            raise Finding(f"tools() holds a {type(tool).__name__}.", cure)
        if not tool.name or [other.name for other in tools].count(tool.name) > 1:
            raise Finding(f"tools() has the name {tool.name!r} twice or empty.", cure)
        if not isinstance(tool.parameters, dict) or tool.parameters.get("type") != "object":
            raise Finding(
                f"the parameters of tool '{tool.name}' are no JSON schema of an object: {brief(tool.parameters)}.", cure
            )


async def text(probe: Probe) -> str:
    """What the agent reads is valid Unicode of a bounded size."""
    longest = max(check_text(trace, number) for trace in probe.traces for number in range(len(trace.shots)))
    if longest > TEXT_LIMIT:
        raise Finding(
            f"an observation has {longest} characters.",
            f"Keep to {TEXT_LIMIT}: show the part that matters, and offer an action that shows more.",
            warning=True,
        )
    return f"at most {longest} characters"


def check_text(trace: Trace, number: int) -> int:
    shot = trace.shots[number]
    for part in (shot.text, *(choice for choice in shot.choices or () if isinstance(choice, str))):
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Finding(
                f"{trace.at(number)}: the text has a lone surrogate at {error.start}: {brief(part)}.",
                "Decode with errors='replace', and never echo an action as it came (use repr).",
            ) from error
    if len(shot.text) > 10 * TEXT_LIMIT:
        raise Finding(
            f"{trace.at(number)}: the text has {len(shot.text)} characters.",
            f"Keep to {TEXT_LIMIT}; never echo an action as it came.",
        )
    return len(shot.text)


async def plain_data(probe: Probe) -> str:
    """Observation data and step info can be journalled as JSON."""
    for trace in probe.traces:
        if trace.impure:
            raise Finding(f"{trace.impure[0]}.", "Put only text, finite numbers, lists and string-keyed dicts there.")
    return "JSON"


async def rewards(probe: Probe) -> str:
    """Every reward is within the range that the benchmark declares."""
    low, high = probe.benchmark.reward_range
    given = 0
    for trace in probe.traces:
        for number, reward in enumerate(trace.rewards, start=1):
            given += reward is not None
            if reward is not None and not _within(reward, low, high):
                raise Finding(
                    f"{trace.at(number)}: the reward is {reward:g}, outside [{low:g}, {high:g}].",
                    "Correct the reward, or declare reward_range=(lowest, highest).",
                )
    if not given:
        raise Finding(
            "no episode gave any reward.", "Reward what solves the task; None only means unscored.", warning=True
        )
    return f"{given} given"


async def score(probe: Probe) -> str:
    """Every episode's score, also that of an empty one, is within the range."""
    low, high = probe.benchmark.reward_range
    seen = []
    cure = "metric takes the list of rewards (also an empty one) and returns a float within reward_range, or None."
    metered = [(f"the score of task '{trace.task.id}' ({trace.policy})", trace.rewards) for trace in probe.traces]
    for what, given in [*metered, ("the score of an empty episode", [])]:
        value: Any = probe.guarded(what, partial(probe.benchmark.metric, given), cure)
        value = low if value is None else value
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Finding(f"{what} is {value!r}.", cure)
        if not _within(value, low, high):
            summed = " (the sum of its rewards)" if probe.benchmark.metric is total_reward else ""
            raise Finding(f"{what}{summed} is {value:g}, outside [{low:g}, {high:g}].", cure)
        seen.append(value)
    return f"from {min(seen):g} to {max(seen):g}"


async def ending(probe: Probe) -> str:
    """Episodes end, and the expert's within max_steps."""
    most = probe.benchmark.max_steps
    for trace in probe.traces:
        if trace.policy == "expert" and not trace.done:
            raise Finding(
                f"task '{trace.task.id}': the expert's episode is not done after max_steps={most}.",
                "Return done=True when the task is decided, and raise max_steps if it needs more.",
            )
    done = [len(trace.actions) for trace in probe.traces if trace.done]
    if not done:
        raise Finding(
            f"none of {len(probe.traces)} episodes was done after max_steps={most}.",
            "Return done=True when the task is decided; an 'expert' policy would show that it can be.",
            warning=True,
        )
    return f"{len(done)} of {len(probe.traces)} ended by themselves, after {min(done)} to {max(done)} steps"


async def expert(probe: Probe) -> str:
    """The benchmark's expert solves its tasks."""
    played = [trace for trace in probe.traces if trace.policy == "expert"]
    if not played:
        raise NotApplicable("the benchmark has no policy called 'expert'")
    missed = [trace for trace in played if not probe.benchmark.solved(probe.benchmark.score(trace.rewards))]
    if missed:
        scored = probe.benchmark.score(missed[0].rewards)
        raise Finding(
            f"the expert solves {len(played) - len(missed)} of {len(played)}; '{missed[0].task.id}' scores {scored:g}.",
            "Mend the expert, the reward, success_at or the task: what no one can solve teaches nothing.",
            warning=len(missed) < len(played),
        )
    return f"solves {len(played)} of {len(played)}"


async def random_play(probe: Probe) -> str:
    """A random policy runs, and does not solve everything."""
    played = [trace for trace in probe.traces if trace.policy == "random"]
    scores = [probe.benchmark.score(trace.rewards) for trace in played]
    if probe.benchmark.solved(min(scores)):  # a few episodes may be luck
        scores += await _more_random(probe, RANDOM_PLAYS - len(scores))
    if probe.benchmark.solved(min(scores)):
        raise Finding(
            f"random moves solved all {len(scores)} episodes that were played.",
            "Make it harder if an agent is to learn here: these leave it little to do better.",
            warning=True,
        )
    return f"mean score {sum(scores) / len(scores):.2g} over {len(scores)} episodes"


async def _more_random(probe: Probe, most: int) -> list[float]:
    """Scores of up to `most` further random episodes, until one is not solved or a few seconds are over."""
    tasks = [task for split in probe.all_tasks.values() for task in split] or probe.tasks
    scores: list[float] = []
    try:
        async with asyncio.timeout(RANDOM_S) as box:
            for luck in range(1, most + 1):
                async with probe.opened() as env:
                    task = probe.random("luck", luck).choice(tasks)
                    scores.append(probe.benchmark.score((await probe.play(env, task, luck=luck)).rewards))
                if not probe.benchmark.solved(scores[-1]):
                    break
    except TimeoutError:
        if not box.expired():
            raise
    return scores


async def event_loop(probe: Probe) -> str:
    """No call holds the event loop up: other episodes run in it."""
    worst = 0.0
    for trace in probe.traces:
        worst = max(worst, *trace.blocked)
        if max(trace.blocked) <= BLOCKED_S:
            continue
        async with probe.opened() as env:  # once more: a busy machine stalls here and there, a blocking call each time
            again = await probe.replay(env, trace)
        twice = [min(pair) for pair in zip(trace.blocked, again.blocked, strict=False)]
        number = max(range(len(twice)), key=twice.__getitem__)
        if twice[number] > BLOCKED_S:
            raise Finding(
                f"{trace.at(number)}: the event loop stood still for {1000 * twice[number]:.0f} ms, twice.",
                "Move the slow part into a thread: await asyncio.to_thread(slow, ...).",
                warning=True,
            )
    return f"at most {1000 * worst:.0f} ms"


def _within(value: float, low: float, high: float) -> bool:
    slack = 1e-9 * max(1.0, abs(low), abs(high))  # a sum of thirds
    return low - slack <= value <= high + slack
