"""Compiling while the program runs: `options={"background": True}`, `DYNAMO_BACKGROUND=1`.

    fast = dynamo.compile(model, options={"background": True})
    fast(x)                     # traced here, then the captured graph runs as it is
    dynamo.background.wait()    # for tests: all that is being compiled is ready behind this
    fast(x)                     # compiled

A compile is a job (`jobs.py`): a thread does it, in the modes of the thread that asked for it
(`modes.py`), on substitutes of the inputs (`examples.py`). Until it is done the captured graph
runs, forward and backward, and a call that begins later runs the compiled one. A backend may have a
process do the work first (`inductor/driver/ahead.py`): Python code in a thread slows down the
program.
"""

from dynamo.background.jobs import pending, wait

__all__ = ["pending", "wait"]
