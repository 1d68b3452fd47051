# SPDX-License-Identifier: Apache-2.0
"""What a call costs on the host: tensors so small that the mathematics is nothing."""
from __future__ import annotations

import torch
from measure import Row, Sides
from te import bind

SMALL = (1, 16)
BURST = 0.03


def shim() -> Row:
    """Six tensors through the generated shim, all checks on."""

    def make(allocate: bool) -> Sides:
        x, gamma, beta = torch.randn(SMALL), torch.randn(SMALL[1]), torch.randn(SMALL[1])
        y, mu, rstd, out = torch.empty(SMALL), torch.empty(SMALL[0]), torch.empty(SMALL[0]), torch.empty(SMALL)
        ours = bind("layernorm_forward", x=x, gamma=gamma, beta=beta, y=y, mu=mu, rstd=rstd)
        return Sides(ours, lambda: torch.add(x, x, out=out))

    return Row("call.shim.6", "call from torch through the shim, 6 tensors (layer_norm 1x16)", "1x16", "torch.add(out=), 3 tensors", make, must_us=1.6, aim_us=1.2,
               passes=("preallocated",), threads=1, burst=BURST)


def gate() -> Row:
    """A training step of one layer in FP8 under delayed scaling, all of it, against bf16 torch: at most 1.5 times as long."""

    def make(allocate: bool) -> Sides:
        import host

        calls = host.steps(torch.get_num_threads())
        return Sides(calls["te.Linear fp8"], calls["nn.Linear bf16"], {"te bf16": calls["te.Linear bf16"]})

    return Row("call.linear.step", "te.Linear FP8 delayed, forward + backward", "32x256 -> 256, bf16", "nn.Linear bf16, forward + backward", make, {"rival": 1 / 1.5},
               passes=("preallocated",), burst=BURST)


def linear(fp8: bool, backward: bool) -> Row:
    """te.Linear against nn.Linear, 64 -> 64 on 32 rows: weights are f32 on both sides, so the difference is what the module costs."""

    def make(allocate: bool) -> Sides:
        import libte_torch as te

        torch.manual_seed(0)
        x = torch.randn(32, 64, requires_grad=backward)
        mine, theirs = te.Linear(64, 64), torch.nn.Linear(64, 64)
        recipe = te.DelayedScaling()
        ones = torch.ones(32, 64)

        def step(module: torch.nn.Module):  # type: ignore[no-untyped-def]
            def run() -> None:
                y = module(x)
                if backward:
                    y.backward(ones)

            def inference() -> None:
                with torch.no_grad():
                    module(x)

            return run if backward else inference

        ours = step(mine)

        def ours_fp8() -> None:
            with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
                ours()

        return Sides(ours_fp8 if fp8 else ours, step(theirs))

    kind = ("fp8" if fp8 else "f32", "forward + backward" if backward else "forward")
    return Row(f"call.linear.{kind[0]}.{'both' if backward else 'forward'}", f"te.Linear {kind[0]}, {kind[1]}, host cost", "32x64 -> 64", f"nn.Linear f32, {kind[1]}", make,
               passes=("preallocated",), threads=1, burst=BURST)


def rows() -> list[Row]:
    return [shim(), gate()] + [linear(fp8, backward) for fp8 in (False, True) for backward in (False, True)]
