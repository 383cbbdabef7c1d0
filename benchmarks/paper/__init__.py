"""The papers' tables, measured here: written as Markdown and JSON into a folder (`--out`).

    python -m benchmarks.paper table1|table2|table3|table4|fx|lazy [MODEL ...] [--cuda]

    table1   which ways of capture give a model's results, and how much of it they capture
    table2   what capture costs when the captured graph is only run, over eager
    table3   speed over eager by backend, inference and training
    table4   speed over eager without one optimization at a time
    fx       tools on graphs: symbolic tracing, folding, int8
    lazy     lazy tensors: correct, compiled once, what a hit costs

Each model and kind (inference, training) runs in a process of its own. `--processes` of them
compile side by side; when all are ready, they are timed one by one while nothing else of ours
runs. Rows are written as they come: `--seconds` ends a run in time, `--resume` goes on with what
has no row yet, `--keep` measures some models again and leaves the others. `--publish` writes into
`docs/results/`: a whole table only, since that page is replaced. Timings are medians of
blocks of calls that take turns in one process; `spread` is the upper quartile over the lower one of
the first. `--hold COMMAND` names a command that keeps others from the machine for as long as it
runs (it must copy its input to its output, as `cat` does).

Engines of others (ONNX Runtime, OpenVINO) have a process of their own for each model, beside eager
there: where one crashes, its cell says so and the row stands.

`--slots N` runs N models at once, each alone on two cores of its own with all its ways in turns;
`--timed K` lets K of them be timed at a time while the others compile. On 16 cores:

    python -m benchmarks.paper table2 --slots 8 --timed 3 --timing 4 --each 60 --seconds 300
    python -m benchmarks.paper table4 --slots 8 --timed 2 --timing 8 --each 100 --seconds 300

On a machine with 16 cores and one GPU, about 500 seconds each; run again with `--resume`, the next
models follow:

    python -m benchmarks.paper table1 --cuda --processes 16 --each 150 --seconds 500
    python -m benchmarks.paper table3 --cuda --kinds inference --processes 16 --timing 2 --each 150
        --seconds 500
    python -m benchmarks.paper table3 --cuda --kinds training --processes 12 --timing 2 --each 200
        --seconds 500 --resume
    python -m benchmarks.paper table4 --cuda --kinds inference --processes 12 --timing 4 --each 300
        --seconds 500
    python -m benchmarks.paper table4 --cuda --kinds training --processes 8 --timing 4 --each 300
        --seconds 500 --resume
"""
