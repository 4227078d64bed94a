"""Measurements of what we promise, each beside a bare peer in the same call: ratios travel to other machines."""
