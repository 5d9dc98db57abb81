"""PyTorch's attentions on the same shapes: scaled_dot_product_attention, FlexAttention.

FlexAttention computes distance-aware attention from eq. 6 written as a `score_mod`. PyTorch is
imported here alone, once it is asked for, and its results are not checked. Of the GPU's memory it
has what JAX leaves, a quarter. Calls are started one by one: times of small shapes hold that too.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from experiments.bench.cases import GLOBAL, LOCAL, Shape, V
from experiments.bench.lines import Line


def missing() -> str:
    """Why PyTorch cannot be timed here; empty: it can."""
    try:
        import torch
    except ModuleNotFoundError:
        return "it is not installed"
    return "" if torch.cuda.is_available() else "it sees no GPU"


def measured(name: str, shape: Shape, dtype: str, repeats: int) -> Iterator[Line]:
    """A line for each peer."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    torch.compiler.reset()  # it compiles anew for so many shapes only
    batch, heads, length, width, _ = shape
    query, key, value, cotangent = (
        torch.randn(batch, heads, length, width, device="cuda", dtype=getattr(torch, dtype))
        for _ in range(4)
    )
    halves = [LOCAL] * (heads // 2) + [GLOBAL] * (heads - heads // 2)
    w, v = torch.tensor(halves, device="cuda"), torch.full((heads,), V, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def coefficient(score, example, head, i, j):
        bend = v[head]  # once: it refuses to index twice what has a gradient
        x = w[head] * (i - j).abs()
        return torch.relu(score) * (1 + torch.exp(bend)) * torch.sigmoid(x - bend)

    def sdpa() -> Any:
        return scaled_dot_product_attention(query, key, value)

    def flex() -> Any:
        return compiled(query, key, value, score_mod=coefficient)

    peers = {
        "torch_sdpa": (sdpa, (query, key, value)),
        "torch_flex_distance_aware": (flex, (query, key, value, w, v)),
    }
    for peer, (call, inputs) in peers.items():

        def gradients(call=call, inputs=inputs) -> Any:
            return torch.autograd.grad(call(), inputs, cotangent)

        for each in inputs:
            each.requires_grad_(False)
        forward, reason = _tried(call, shape.calls, repeats)
        for each in inputs:
            each.requires_grad_(True)
        both, also = _tried(gradients, shape.calls, repeats)
        yield Line(name, peer, said=reason or also, forward_ms=forward, both_ms=both)


def _tried(call: Callable[[], Any], calls: int, repeats: int) -> tuple[float | None, str]:
    """Milliseconds of a call, or what PyTorch says against it."""
    try:
        return _milliseconds(call, calls, repeats), ""
    except Exception as error:  # whatever the reason is, it is printed
        return None, f"refused: {(str(error) or repr(error)).splitlines()[0]}"


def _milliseconds(call: Callable[[], Any], calls: int, repeats: int) -> float:
    import torch

    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(calls):
            call()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended) / calls)
    return median(times)
