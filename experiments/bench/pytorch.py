"""Time PyTorch's scaled_dot_product_attention and FlexAttention on the shapes of the benchmark.

FlexAttention computes distance-aware attention: its `score_mod` is eq. 6 of the DA-Transformer
paper. PyTorch is imported only when a function of this module is called. The outputs of PyTorch are
not checked. JAX reserves three quarters of the GPU memory, so PyTorch can use only one quarter.
Each call is launched separately, so the times of small shapes include the time of the launch.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from experiments.bench.cases import GLOBAL, LOCAL, Shape, V
from experiments.bench.table import Row


def explain_absence() -> str:
    """Return why PyTorch cannot be timed on this machine, or "" if PyTorch can be timed."""
    try:
        import torch
    except ModuleNotFoundError:
        return "it is not installed"
    return "" if torch.cuda.is_available() else "it finds no GPU"


def measure_pytorch(name: str, shape: Shape, dtype: str, repeats: int) -> Iterator[Row]:
    """Time two attention functions of PyTorch, and yield one row for each function.

    Args:
      name: Name of the shape.
      shape: Sizes of the arrays.
      dtype: Name of the dtype of the inputs.
      repeats: Number of timings, of which the median is reported.
    """
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    torch.compiler.reset()  # PyTorch limits the number of shapes that a function is compiled for.
    batch, heads, length, width, _ = shape
    query, key, value, cotangent = (
        torch.randn(batch, heads, length, width, device="cuda", dtype=getattr(torch, dtype))
        for _ in range(4)
    )
    halves = [LOCAL] * (heads // 2) + [GLOBAL] * (heads - heads // 2)
    w, v = torch.tensor(halves, device="cuda"), torch.full((heads,), V, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def adjust_score(score, example, head, i, j):
        shape_of_head = v[head]  # FlexAttention allows one indexing of an array with a gradient.
        x = w[head] * (i - j).abs()
        factor = (1 + torch.exp(shape_of_head)) * torch.sigmoid(x - shape_of_head)
        return torch.relu(score) * factor

    def sdpa() -> Any:
        return scaled_dot_product_attention(query, key, value)

    def flex() -> Any:
        return compiled(query, key, value, score_mod=adjust_score)

    functions = {
        "torch_sdpa": (sdpa, (query, key, value)),
        "torch_flex_distance_aware": (flex, (query, key, value, w, v)),
    }
    for case, (call, inputs) in functions.items():

        def gradients(call=call, inputs=inputs) -> Any:
            return torch.autograd.grad(call(), inputs, cotangent)

        for tensor in inputs:
            tensor.requires_grad_(False)
        forward, reason = _try_timing(call, shape.calls, repeats)
        for tensor in inputs:
            tensor.requires_grad_(True)
        both, backward_reason = _try_timing(gradients, shape.calls, repeats)
        message = reason or backward_reason
        yield Row(name, case, message=message, forward_ms=forward, both_ms=both)


def _try_timing(call: Callable[[], Any], calls: int, repeats: int) -> tuple[float | None, str]:
    """Return (milliseconds per call, ""), or (None, message) if PyTorch raises an error."""
    try:
        return _milliseconds(call, calls, repeats), ""
    except Exception as error:  # Any error of PyTorch becomes a message in the table.
        return None, f"refused: {(str(error) or repr(error)).splitlines()[0]}"


def _milliseconds(call: Callable[[], Any], calls: int, repeats: int) -> float:
    """Return the milliseconds per call: the median of `repeats` timings of `calls` calls.

    Three more calls run first and are not timed.
    """
    import torch

    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return median(times)
