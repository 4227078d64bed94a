"""Every random number comes from a stream named by (run seed, task, episode, role).

So a task's luck does not depend on what else ran, in which order, or on how many workers; and two arms of a
comparison that share task, episode and role share their luck.
"""

import hashlib
import random


def seed_for(run_seed: int, *names: str | int) -> int:
    """A 63-bit seed from the run's seed and the names of what it is for."""
    text = "\x1f".join(str(part) for part in (run_seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 1


def stream(run_seed: int, *names: str | int) -> random.Random:
    """A random stream of its own for `names`, typically (task id, episode number, role)."""
    return random.Random(seed_for(run_seed, *names))
