"""Packages a model, and runs it in Python as the program in C++ beside it does.

    python -m examples.package.make /tmp/classifier
    g++ -std=c++17 -O2 examples/package/main.cpp -I /tmp/classifier -ldl -o /tmp/main
    env -i /tmp/main /tmp/classifier

A second argument is a target, as sm_90: the same program in C++ then runs the model on a GPU.
"""

from __future__ import annotations

import sys

import torch

import dynamo


def classifier() -> torch.nn.Module:
    """A small model; its weights are the same at each run."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 3), torch.nn.Softmax(1)]
    return torch.nn.Sequential(*layers).eval()


def main(folder: str, target: str = "cpu") -> None:
    dynamo.package(classifier(), (torch.ones(2, 8),), folder, target=target)
    fast = dynamo.load_package(folder)
    x = torch.arange(16, dtype=torch.float32).reshape(2, 8) / 16
    for row in fast(x).tolist():
        print(" ".join(f"{value:.4f}" for value in row))


if __name__ == "__main__":
    main(*sys.argv[1:])
