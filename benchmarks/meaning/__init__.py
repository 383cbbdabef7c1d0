"""Programs after public reports about compilers: does a compiled program keep its meaning?

Each program is a small reproduction, written for this project, of what a user of a compiler has
reported. Three engines run it: eager, ours and torch.compile. A row of the table says whether the
compiled program did what eager does, did something else without a word, or raised.

    python -m benchmarks.meaning                     # all programs, all engines, a table at the end
    python -m benchmarks.meaning hooks closures      # these topics alone
    python -m benchmarks.meaning --publish           # writes docs/results/meaning.md
"""
