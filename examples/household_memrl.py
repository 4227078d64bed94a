"""A 135M-parameter model learns a household from experience; `household_memrl.txt` is what this printed.

`python household_memrl.py` takes a few minutes on two cores. `python household_memrl.py MODEL` takes another model.
"""

import sys

from evolve import evolve
from evolve.terminal import show
from harness.starter import starter

model = sys.argv[1] if len(sys.argv) > 1 else "embedded"
learnt = evolve(starter("small"), "household", recipe="memrl", model=model, n=50, seed=0, say=print)
show(learnt.folder)
