"""`python -m tests.shapes.every_operator [--device cuda] [--part 3 --parts 15]`: facts without kernels.

torch's own samples of arguments for all its operators run in eager; of each ATen operation that they
come to, the sizes and dtypes that `FakeWorld` says are compared with what the kernel gave, and whether it
lies in the memory of an argument. Other strides are counted apart: a call of a library is moved to the
strides that were promised.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dynamo.base.errors import DynamoError, Signal
from dynamo.shapes.fake import Fake, FakeWorld

aten = torch.ops.aten
VIEWED = frozenset(("_reshape_alias", "_unsafe_view"))
UNKNOWN = frozenset(("empty", "new_empty", "empty_like", "empty_strided"))


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.device
    return [described(item) for item in value] if isinstance(value, (list, tuple)) else value


def strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple([step for n, step in zip(value.shape, value.stride(), strict=True) if n > 1]) if value.numel() else ()
    return [strides(item) for item in value] if isinstance(value, (list, tuple)) else None


def sharing(given: Any, results: Any) -> list[bool]:
    """For each tensor of the results, whether it lies in the memory of a given one."""
    leaves = torch.utils._pytree.tree_leaves
    lent = {storage_key(x) for x in leaves(given) if isinstance(x, torch.Tensor)}
    return [storage_key(x) in lent for x in leaves(results) if isinstance(x, torch.Tensor) and x.numel()]


def storage_key(tensor: torch.Tensor) -> Any:
    return tensor.storage_key if isinstance(tensor, Fake) else tensor.untyped_storage()._cdata


class Watch(TorchDispatchMode):
    """Compares at each operation. wrong: a text by what differs."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}
        self.moved: collections.Counter[str] = collections.Counter()
        self.compared: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable or "out" in kwargs:
            return func(*args, **kwargs)
        promised, lies = self.promise(func, args, kwargs)
        found = func(*args, **kwargs)
        if promised is not None:
            if lies != sharing((args, kwargs), found):
                self.wrong.setdefault(f"{func} shares", f"{shown((args, kwargs))}: promised {lies}, is {sharing((args, kwargs), found)}")
            self.compared[str(func)] += 1
            key = f"{func} {kinds((args, kwargs))}"
            if described(promised) != described(found):
                self.wrong.setdefault(key, f"{shown((args, kwargs))}: promised {described(promised)}, is {described(found)}")
            elif strides(promised) != strides(found):
                self.moved[str(func)] += 1
        return found

    def promise(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[bool]]:
        """What the world says, and which of it lies in arguments; None where it says nothing."""
        world = FakeWorld()

        def fake(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return world.from_real(value)
            return type(value)([fake(item) for item in value]) if isinstance(value, (list, tuple)) else value

        try:
            with torch.no_grad():
                given, named = fake(args), {name: fake(value) for name, value in kwargs.items()}
                promised = world.run(func, *given, **named)
                return promised, sharing((given, named), promised)
        except (DynamoError, Signal, NotImplementedError):
            return None, []
        except Exception as error:
            try:
                func(*args, **kwargs)
            except Exception:
                return None, []
            self.wrong.setdefault(f"{func} raises", f"{shown((args, kwargs))}: {error!r:.300}")
            return None, []


def kinds(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{value.dim()}"
    if isinstance(value, dict):
        return kinds(list(value.values()))
    return " ".join(filter(None, map(kinds, value))) if isinstance(value, (list, tuple)) else ""


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}:{list(value.stride())}"
    if isinstance(value, dict):
        return ", ".join([f"{name}={shown(item)}" for name, item in value.items()])
    return f"({', '.join(map(shown, value))})" if isinstance(value, (list, tuple)) else repr(value)[:80]


def samples(operator: Any, device: str, dtype: torch.dtype) -> Iterator[Any]:
    grad = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    yield from operator.sample_inputs(device, dtype, requires_grad=grad)


def run(watch: Watch, operator: Any, device: str, dtype: torch.dtype) -> None:
    for sample in samples(operator, device, dtype):
        try:
            with watch:
                found = operator(sample.input, *sample.args, **sample.kwargs)
                leaves = [t for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, torch.Tensor) and t.requires_grad]
                if leaves:
                    torch.stack([t.abs().sum().double() for t in leaves]).sum().backward()
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
            continue  # eager's own


def main() -> int:
    # torch's database of operators is large, and needs packages that the other tests do without.
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    watch = Watch()
    for operator in sorted(op_db, key=lambda operator: (operator.name, operator.variant_test_name))[options.part :: options.parts]:
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.complex64, torch.bool):
            if dtype in operator.supported_dtypes(torch.device(options.device).type):
                before = set(watch.wrong)
                try:
                    run(watch, operator, options.device, dtype)
                except Exception as error:
                    print(f"--- {operator.name} {dtype}: {error!r:.200}", flush=True)
                for key in set(watch.wrong) - before:
                    print(f"=== {operator.name}: {key}\n    {watch.wrong[key]}", flush=True)
    print(f"strides apart: {dict(watch.moved)}")
    print(f"{sum(watch.compared.values())} operations, {len(watch.compared)} kinds, {len(watch.wrong)} wrong")
    return 1 if watch.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
