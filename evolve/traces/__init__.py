"""Trajectories in the formats of others, one module each; all of them read the journal and none of them writes to it.

`trace` reads a run; `lines` is our own JSONL, `rows` are rows for a trainer, `spans` and `otlp` speak OpenTelemetry,
and `foreign` reads its spans back. `evolve/export.py` is the way in.
"""
