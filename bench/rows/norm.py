# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm, 8192x1024."""
from __future__ import annotations

import torch
from measure import Row, Sides
from te import bind

from .gemm import NAMES, close

M, K = 8192, 1024
EPS = 1e-5
aten = torch.ops.aten


def layernorm_forward(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, gamma, beta = torch.randn(M, K).to(dtype), torch.randn(K).to(dtype), torch.randn(K).to(dtype)
        y, mu, rstd = torch.empty_like(x), torch.empty(M), torch.empty(M)
        out, mean, scale = torch.empty_like(x), torch.empty(M, 1), torch.empty(M, 1)
        if dtype != torch.float32:
            mean, scale = mean.to(dtype), scale.to(dtype)
        ours = bind("layernorm_forward", x=x, gamma=gamma, beta=beta, y=y, mu=mu, rstd=rstd, epsilon=EPS)
        compiled = torch.compile(lambda: torch.nn.functional.layer_norm(x, (K,), gamma, beta, EPS))

        def new() -> None:
            bind("layernorm_forward", x=x, gamma=gamma, beta=beta, y=torch.empty_like(x), mu=torch.empty(M), rstd=torch.empty(M), epsilon=EPS)()

        def check() -> None:
            ours()
            close(y, torch.nn.functional.layer_norm(x, (K,), gamma, beta, EPS), 6)

        if allocate:
            return Sides(new, lambda: torch.nn.functional.layer_norm(x, (K,), gamma, beta, EPS), check=check)
        return Sides(ours, lambda: aten.native_layer_norm.out(x, [K], gamma, beta, EPS, out0=out, out1=mean, out2=scale), {"compiled": compiled}, check)

    return Row(f"layernorm.forward.{NAMES[dtype]}", f"layer_norm forward {NAMES[dtype]}", f"{M}x{K}", "torch layer_norm", make, {"rival": must}, {"rival": aim},
               bytes=2 * M * K * torch.empty(0, dtype=dtype).element_size())


def layernorm_backward(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, dy, gamma, beta = torch.randn(M, K).to(dtype), torch.randn(M, K).to(dtype), torch.randn(K).to(dtype), torch.randn(K).to(dtype)
        mu, rstd = torch.empty(M), torch.empty(M)
        bind("layernorm_forward", x=x, gamma=gamma, beta=beta, y=torch.empty_like(x), mu=mu, rstd=rstd, epsilon=EPS)()
        _, mean, scale = aten.native_layer_norm(x, [K], gamma, beta, EPS)
        outs = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
        theirs = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)

        def call(dx: torch.Tensor, dgamma: torch.Tensor, dbeta: torch.Tensor):  # type: ignore[no-untyped-def]
            return bind("layernorm_backward", dy=dy, x=x, gamma=gamma, mu=mu, rstd=rstd, dx=dx, dgamma=dgamma, dbeta=dbeta)

        ours = call(*outs)

        def rival() -> tuple[torch.Tensor, ...]:
            return aten.native_layer_norm_backward(dy, x, [K], mean, scale, gamma, beta, [True, True, True])

        def rival_out() -> None:
            aten.native_layer_norm_backward.out(dy, x, [K], mean, scale, gamma, beta, [True, True, True], out0=theirs[0], out1=theirs[1], out2=theirs[2])

        def check() -> None:
            ours()
            close(outs[0], rival()[0], 5)

        if allocate:
            return Sides(lambda: call(torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma))(), rival, check=check)
        return Sides(ours, rival_out, check=check)

    return Row(f"layernorm.backward.{NAMES[dtype]}", f"layer_norm backward {NAMES[dtype]}", f"{M}x{K}", "torch layer_norm backward", make, {"rival": must},
               {"rival": aim}, bytes=3 * M * K * torch.empty(0, dtype=dtype).element_size())


def rmsnorm_forward(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, gamma = torch.randn(M, K).to(dtype), torch.randn(K).to(dtype)
        y, rstd = torch.empty_like(x), torch.empty(M)
        ours = bind("rmsnorm_forward", x=x, gamma=gamma, y=y, rstd=rstd, epsilon=EPS)

        def rival() -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, (K,), gamma, EPS)

        def new() -> None:
            bind("rmsnorm_forward", x=x, gamma=gamma, y=torch.empty_like(x), rstd=torch.empty(M), epsilon=EPS)()

        def check() -> None:
            ours()
            close(y, rival(), 6)

        if allocate:
            return Sides(new, rival, check=check)
        return Sides(ours, rival, {"compiled": torch.compile(rival)}, check)

    return Row(f"rmsnorm.forward.{NAMES[dtype]}", f"rms_norm forward {NAMES[dtype]}", f"{M}x{K}", "torch rms_norm (it has no out=)", make,
               {"rival": must, "compiled": 1.0}, {"rival": aim}, bytes=2 * M * K * torch.empty(0, dtype=dtype).element_size())


def rmsnorm_both(dtype: torch.dtype, must: float, aim: float) -> Row:
    def make(allocate: bool) -> Sides:
        torch.manual_seed(0)
        x, dy, gamma = torch.randn(M, K).to(dtype), torch.randn(M, K).to(dtype), torch.randn(K).to(dtype)
        kept = torch.empty_like(x), torch.empty(M), torch.empty_like(x), torch.empty_like(gamma)

        def step(y: torch.Tensor, rstd: torch.Tensor, dx: torch.Tensor, dgamma: torch.Tensor):  # type: ignore[no-untyped-def]
            one = bind("rmsnorm_forward", x=x, gamma=gamma, y=y, rstd=rstd, epsilon=EPS)
            two = bind("rmsnorm_backward", dy=dy, x=x, gamma=gamma, rstd=rstd, dx=dx, dgamma=dgamma)
            return lambda: (one(), two())

        ours = step(*kept)
        inputs = x.clone().requires_grad_(), gamma.clone().requires_grad_()

        def rival() -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(torch.nn.functional.rms_norm(inputs[0], (K,), inputs[1], EPS), inputs, dy)

        def check() -> None:
            ours()
            close(kept[2], rival()[0], 5)

        new = lambda: step(torch.empty_like(x), torch.empty(M), torch.empty_like(x), torch.empty_like(gamma))()  # noqa: E731
        return Sides(new if allocate else ours, rival, check=check)

    return Row(f"rmsnorm.both.{NAMES[dtype]}", f"rms_norm forward + backward {NAMES[dtype]}", f"{M}x{K}", "torch rms_norm, autograd", make, {"rival": must},
               {"rival": aim}, bytes=5 * M * K * torch.empty(0, dtype=dtype).element_size())


def rows() -> list[Row]:
    f32, bf16 = torch.float32, torch.bfloat16
    return [layernorm_forward(f32, 1.0, 1.1), layernorm_forward(bf16, 1.4, 1.9), layernorm_backward(f32, 1.3, 1.6), layernorm_backward(bf16, 2, 3),
            rmsnorm_forward(f32, 1.6, 2), rmsnorm_forward(bf16, 4, 7), rmsnorm_both(f32, 6, 8), rmsnorm_both(bf16, 10, 15)]
