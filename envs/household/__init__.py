"""A text household after ALFWorld, made for learning: six levels, no two splits alike, thousands of steps a second."""

from envs.household.benchmark import LEVELS, benchmark
from envs.household.layout import TASK_TYPES, Layout
from envs.household.play import Household
from envs.household.world import World

__all__ = ["LEVELS", "TASK_TYPES", "Household", "Layout", "World", "benchmark"]
