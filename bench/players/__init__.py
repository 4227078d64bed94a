"""Runners that play the game of `bench/players/game.py`, ours and others', each measured in a process of its own.

`python -m bench.players NAME VARIANT ...` runs in the environment that has the library NAME, so nothing here but
`ours.py` imports anything of ours. A player is a module with `load()`, which imports what it needs, and
`prepare(variant, at_once, url)`, which returns a function that plays n episodes and returns their rewards.
"""
