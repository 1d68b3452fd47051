# SPDX-License-Identifier: Apache-2.0
"""A small GPT that learns to sort: it reads a sequence of digits and writes them in order. Plain torch, `--use-te`, `--ln-mlp` (te.LayerNormMLP in
place of a norm and two linears) or `--use-fp8`; the last three combine."""
from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any, Optional

import torch
import torch.nn.functional as tF
from torch import Tensor, nn
from tqdm import tqdm

import libte
import libte_torch as te
import shared

WIDTH, HEADS, LAYERS = 64, 4, 2


class Attention(nn.Module):
    """Plain torch causal attention: q, k, v [b, s, h, d] -> [b, s, h * d]."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return tF.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, use_te: bool, ln_mlp: bool) -> None:
        super().__init__()
        norm, linear = (te.LayerNorm, te.Linear) if use_te else (nn.LayerNorm, nn.Linear)
        self.norm, self.qkv, self.proj = norm(WIDTH), linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.attention = te.DotProductAttention(HEADS, WIDTH // HEADS, qkv_format="bshd", attn_mask_type="causal") if use_te else Attention()
        self.mlp: nn.Module
        if ln_mlp:
            self.mlp = te.LayerNormMLP(WIDTH, 4 * WIDTH, activation="gelu")
        else:
            self.mlp = nn.Sequential(norm(WIDTH), linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(2)
        x = x + self.proj(self.attention(q, k, v))
        return x + self.mlp(x)


class GPT(nn.Module):
    """tokens [b, s] of `digits` kinds, s <= positions -> scores [b, s, digits]."""

    def __init__(self, digits: int, positions: int, use_te: bool, ln_mlp: bool) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(digits, WIDTH), nn.Embedding(positions, WIDTH)
        self.blocks = nn.Sequential(*(Block(use_te, ln_mlp) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, digits)  # few classes: not worth FP8

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def sequences(n: int, length: int, digits: int, held_out: bool, generator: torch.Generator) -> Tensor:
    """Random sequences [n, length]; a quarter of all that exist is held out, by a hash of the sequence."""
    drawn = torch.randint(digits, (6 * n + 64, length), generator=generator, device=generator.device)
    code = (drawn * digits ** torch.arange(length, device=generator.device)).sum(1)
    mine = drawn[((code * 2654435761 >> 16) % 4 == 0) == held_out][:n]
    if not len(mine):
        raise SystemExit(f"--length {length} --digits {digits}: too few sequences to hold some out")
    return mine if len(mine) == n else torch.cat([mine, sequences(n - len(mine), length, digits, held_out, generator)])


def main(arguments: Optional[list[str]] = None) -> shared.Result:
    p = shared.parser(__doc__, steps=300, batch_size=64, lr=2e-3, length=6, digits=10)
    p.add_argument("--ln-mlp", action="store_true", help="te.LayerNormMLP for the MLP and the norm before it")
    a = p.parse_args(arguments)
    device, _ = shared.torch_device(a.device)
    torch.manual_seed(a.seed)
    generator = torch.Generator().manual_seed(a.seed + 1)
    use_te = a.use_te or a.use_fp8
    with device:
        model = GPT(a.digits, 2 * a.length - 1, use_te, a.ln_mlp)
    for weight in model.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, 0, 0.02)  # the same in every mode
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * i / a.steps))))
    recipe = te.recipe.DelayedScaling(amax_history_len=16)
    calls: dict[str, int] = {}
    start = time.perf_counter()
    bar = tqdm(range(a.steps), desc="training", ncols=100, mininterval=0.5)
    for i in bar:
        given = sequences(a.batch_size, a.length, a.digits, False, generator)
        whole = torch.cat([given, given.sort(1).values], 1).to(device)
        last = i == a.steps - 1
        with libte.trace() if last else nullcontext() as trace:
            with te.autocast(enabled=a.use_fp8, recipe=recipe):
                scores = model(whole[:, :-1])[:, a.length - 1 :]  # only what it writes counts, not what it reads
            loss = tF.cross_entropy(scores.flatten(0, 1), whole[:, a.length :].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if trace is not None:
            calls = trace.counts()
        if last or i % 10 == 0:  # reading the loss waits for the device
            bar.set_postfix(loss=f"{loss.item():.4f}")
    model.eval()
    given = sequences(1024, a.length, a.digits, True, generator).to(device)
    tokens = given
    with torch.no_grad(), te.autocast(enabled=a.use_fp8, recipe=recipe):
        for _ in range(a.length):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    accuracy = (tokens[:, a.length :] == given.sort(1).values).all(1).float().mean().item()
    return shared.report(shared.mode(a), accuracy, f"{len(given)} sequences never trained on, all {a.length} digits right", start, calls, a.use_fp8)


if __name__ == "__main__":
    main()
