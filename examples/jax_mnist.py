# SPDX-License-Identifier: Apache-2.0
"""Digits with a small MLP in JAX: plain flax, `--use-te`, or `--use-fp8`."""
from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Optional

import jax
import jax.numpy as jnp
import libte
import libte_jax as te
import numpy as np
from flax import linen as nn
from libte_jax.flax import DenseGeneral
from tqdm import tqdm

import digits
import shared


class Net(nn.Module):
    use_te: bool
    hidden: int = 128

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = DenseGeneral if self.use_te else nn.DenseGeneral
        for _ in range(2):
            x = nn.relu(dense(self.hidden, use_bias=True)(x))
        return nn.Dense(10)(x)  # 10 classes are no multiple of 16: not worth FP8


def main(arguments: Optional[list[str]] = None) -> shared.Result:
    p = shared.parser(__doc__, epochs=15, batch_size=64, lr=0.1)
    p.add_argument("--data", help=digits.HELP)
    a = p.parse_args(arguments)
    x, x_test, y, y_test = digits.load(a.data)
    x, x_test = (t.reshape(len(t), -1) for t in (x, x_test))
    net = Net(a.use_te or a.use_fp8)
    recipe = te.recipe.DelayedScaling(amax_history_len=16)
    with shared.jax_device(a.device), te.autocast(enabled=a.use_fp8, recipe=recipe):
        start = time.perf_counter()
        variables = dict(net.init(jax.random.key(a.seed), x[: a.batch_size]))
        params = variables.pop("params")

        def loss_fn(params: Any, others: Any, x: Any, y: Any) -> Any:
            logits = net.apply({"params": params, **others}, x)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

        @jax.jit
        def step(params: Any, others: Any, x: Any, y: Any) -> Any:
            loss, (grads, other_grads) = jax.value_and_grad(loss_fn, argnums=(0, 1))(params, others, x, y)
            return jax.tree.map(lambda w, g: w - a.lr * g, params, grads), te.update_fp8_metas(other_grads), loss

        predict = jax.jit(lambda params, others, x: net.apply({"params": params, **others}, x).argmax(-1))
        calls: dict[str, int] = {}
        bar = tqdm(shared.Batches(len(y), a.batch_size, a.epochs, np.random.default_rng(a.seed).permutation), desc="training", ncols=100, mininterval=0.5)
        for last, rows in bar:
            now = (params, variables, x[rows], y[rows])
            run = shared.every_call(step, *now) if last else step
            if last:
                jax.block_until_ready(params)  # steps that still run would be in the trace
            with libte.trace() if last else nullcontext() as trace:
                params, variables, loss = run(*now)
                if last or bar.n % 10 == 0:  # reading the loss waits for the device
                    bar.set_postfix(loss=f"{float(loss):.4f}")
            if trace is not None:
                calls = trace.counts()
        accuracy = float((np.asarray(predict(params, variables, x_test)) == y_test).mean())
    return shared.report(shared.mode(a), accuracy, f"{len(y_test)} test images", start, calls, a.use_fp8)


if __name__ == "__main__":
    main()
