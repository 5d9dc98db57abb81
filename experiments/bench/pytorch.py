"""Time PyTorch's scaled_dot_product_attention and FlexAttention on the shapes of the benchmark.

FlexAttention computes distance-aware attention (its `score_mod` is eq. 6 of the DA-Transformer
paper), relative positions in the keys, ALiBi and the biases of T5, with the gradients of their
parameters. PyTorch is imported only when a function of this module is called. The outputs of
PyTorch are not checked. The command `bench` keeps JAX from reserving GPU memory in advance, so that
PyTorch can use the rest. Each call is launched separately, so the times of small shapes include the
launch overhead.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import jax.numpy as jnp
import numpy as np

from distattn_jax.attention import alibi_slopes, t5_buckets
from experiments.bench.cases import REFERENCE_CASE
from experiments.bench.measure import Settings
from experiments.bench.programs import REFUSED
from experiments.bench.shapes import Shape
from experiments.bench.table import Row
from experiments.bench.variants import DEVIATION, GLOBAL, LOCAL, MAX_DISTANCE, V

IMPLEMENTATION = "torch"  # of the rows of this module
MAX_SECONDS = 10  # time for all timings of one function
Tensors = tuple[Any, ...]
# Function that computes attention, and the parameters whose gradients are computed too.
Peer = tuple[Callable[[], Any], Tensors]


def explain_absence() -> str:
    """Return why PyTorch cannot be timed on this machine, or "" if PyTorch can be timed."""
    try:
        import torch
    except ModuleNotFoundError:
        return "it is not installed"
    return "" if torch.cuda.is_available() else "it finds no GPU"


def find_version() -> str:
    """Return the version of PyTorch."""
    import torch

    return torch.__version__


def select_peers(cases: Sequence[str]) -> list[str]:
    """Return the names of the PyTorch functions in `PEERS` that compute one of the cases."""
    return [name for name, (case, _) in PEERS.items() if case in cases]


def measure_pytorch(
    peers: Sequence[str], name: str, shape: Shape, settings: Settings
) -> Iterator[Row]:
    """Time attention functions of PyTorch, and yield one row for each of them.

    Args:
      peers: Names of the functions in `PEERS`.
      name: Name of the shape.
      shape: Sizes of the arrays.
      settings: Settings of the measurement. After the deadline, no further function is timed.
    """
    for peer in peers:
        if time.monotonic() > settings.deadline:
            return
        row = Row(name, peer, implementation=IMPLEMENTATION)
        try:
            yield dataclasses.replace(row, **_measure_peer(PEERS[peer][1], shape, settings))
        except Exception as error:  # Any error of PyTorch becomes a message in the table.
            yield dataclasses.replace(row, message=_describe(error))


def _measure_peer(
    make_peer: Callable[..., Peer], shape: Shape, settings: Settings
) -> dict[str, Any]:
    """Time one PyTorch function: the forward pass alone, then the forward and backward pass.

    The backward pass computes the gradients of query, key, value and all parameters.

    Returns:
      Values of the fields `forward_ms`, `both_ms` and `message` of `Row`.
    """
    import torch

    torch.compiler.reset()  # PyTorch limits how often a function is compiled.
    torch.cuda.empty_cache()
    batch, heads, length, width, calls = shape
    dtype = getattr(torch, settings.dtype)
    query, key, value, cotangent = (
        torch.randn(batch, heads, length, width, device="cuda", dtype=dtype) for _ in range(4)
    )
    attend, parameters = make_peer(query, key, value)
    inputs = (query, key, value, *parameters)

    def gradients() -> Any:
        return torch.autograd.grad(attend(), inputs, cotangent)

    forward, reason = _try_timing(attend, calls, settings.repeats)
    for tensor in inputs:
        tensor.requires_grad_(True)
    both, backward_reason = _try_timing(gradients, calls, settings.repeats)
    return {"forward_ms": forward, "both_ms": both, "message": reason or backward_reason}


def _make_sdpa(query: Any, key: Any, value: Any) -> Peer:
    """Return a function that computes PyTorch's dot-product attention, and no parameters."""
    from torch.nn.functional import scaled_dot_product_attention

    return lambda: scaled_dot_product_attention(query, key, value), ()


def _make_distance_aware(query: Any, key: Any, value: Any) -> Peer:
    """Return a function that computes distance-aware attention, and its parameters w and v.

    Half of the heads are local (distance weight w < 0), and half are global (w > 0).
    """
    import torch

    heads = query.shape[1]
    halves = [LOCAL] * (heads // 2) + [GLOBAL] * (heads - heads // 2)
    w, v = torch.tensor(halves, device="cuda"), torch.full((heads,), V, device="cuda")

    def adjust_score(score, example, head, i, j):
        v_of_head = v[head]  # FlexAttention allows one indexing of an array with a gradient.
        x = w[head] * (i - j).abs()
        factor = (1 + torch.exp(v_of_head)) * torch.sigmoid(x - v_of_head)
        return torch.relu(score) * factor

    attend = _compile_flex()
    return lambda: attend(query, key, value, score_mod=adjust_score), (w, v)


def _make_relative_keys(query: Any, key: Any, value: Any) -> Peer:
    """Return a function that computes attention with relative positions in the keys.

    The position vectors are returned too.

    The products of queries and position vectors, 2k+1 per query, are computed first.
    """
    import torch

    _, heads, _, width = query.shape
    table = DEVIATION * torch.randn(heads, 2 * MAX_DISTANCE + 1, width, device="cuda")
    attend = _compile_flex()

    def call() -> Any:
        products = torch.einsum("bnlh,nrh->bnlr", query, table.to(query.dtype))
        relation_scores = width**-0.5 * products.float()

        def add_relation(score, example, head, i, j):
            relation = (j - i).clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
            return score + relation_scores[example, head, i, relation]

        return attend(query, key, value, score_mod=add_relation)

    return call, (table,)


def _make_alibi(query: Any, key: Any, value: Any) -> Peer:
    """Return a function that computes attention with ALiBi (linear biases), and its slopes."""
    import torch

    slopes = torch.tensor(alibi_slopes(query.shape[1]), device="cuda", dtype=torch.float32)

    def add_bias(score, example, head, i, j):
        return score - slopes[head] * (i - j).abs()

    attend = _compile_flex()
    return lambda: attend(query, key, value, score_mod=add_bias), (slopes,)


def _make_t5(query: Any, key: Any, value: Any) -> Peer:
    """Return a function that computes attention with the biases of T5, and these biases.

    There is one learned bias for each head and bucket of relative positions.
    """
    import torch

    farthest = t5_buckets.max_distance
    numbers = t5_buckets.find_buckets(jnp.arange(-farthest, farthest + 1))
    buckets = torch.tensor(np.array(numbers), device="cuda", dtype=torch.int64)
    table = DEVIATION * torch.randn(query.shape[1], t5_buckets.num_buckets, device="cuda")

    def add_bias(score, example, head, i, j):
        bucket = buckets[(i - j).clamp(-farthest, farthest) + farthest]
        return score + table[head, bucket]

    attend = _compile_flex()
    return lambda: attend(query, key, value, score_mod=add_bias), (table,)


# Case that each function computes, and the function of query, key and value, shape (B, N, L, H).
# The gradients of w and v take many seconds, and come last.
PEERS: dict[str, tuple[str, Callable[..., Peer]]] = {
    "torch_sdpa": (REFERENCE_CASE, _make_sdpa),
    "torch_flex_relative_position_keys": ("relative_position_keys", _make_relative_keys),
    "torch_flex_alibi": ("alibi", _make_alibi),
    "torch_flex_t5_bias": ("t5_bias", _make_t5),
    "torch_flex_distance_aware": ("distance_aware", _make_distance_aware),
}


def _compile_flex() -> Callable[..., Any]:
    """Return FlexAttention as a compiled function. PyTorch compiles it at the first call."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _try_timing(call: Callable[[], Any], calls: int, repeats: int) -> tuple[float | None, str]:
    """Return (milliseconds per call, ""), or (None, message) if PyTorch raises an error."""
    try:
        return _milliseconds(call, calls, repeats), ""
    except Exception as error:  # Any error of PyTorch becomes a message in the table.
        return None, _describe(error)


def _describe(error: Exception) -> str:
    """Return the message that the table shows for an error of PyTorch."""
    return f"{REFUSED} {(str(error) or repr(error)).splitlines()[0]}"


def _milliseconds(call: Callable[[], Any], calls: int, repeats: int) -> float:
    """Return the median time per call in milliseconds, over `repeats` timings of `calls` calls.

    Two calls come first: one to compile, and one to estimate the time per call. If all timings
    would take longer than `MAX_SECONDS`, fewer calls are timed. The gradients of the parameters of
    FlexAttention can take many seconds.
    """
    call()  # compiles
    first = _time_calls(call, 1)
    affordable = int(1e3 * MAX_SECONDS / max(first, 1e-6))
    if affordable <= 1:
        return first
    calls, repeats = max(1, min(calls, affordable // repeats)), min(repeats, affordable)
    return median(_time_calls(call, calls) for _ in range(repeats))


def _time_calls(call: Callable[[], Any], calls: int) -> float:
    """Make `calls` calls, and return the mean time per call in milliseconds."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls
