# SPDX-License-Identifier: Apache-2.0
"""Digits with a small MLP in JAX: plain flax, `--use-te`, or `--use-fp8`. Takes MNIST as an .npz (x_train, y_train, x_test, y_test) by `--data`,
else scikit-learn's digits (1,797 images of 8 x 8), which need no download."""
from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import libte_jax as te
import numpy as np
from flax import linen as nn
from libte_jax.flax import DenseGeneral


class Net(nn.Module):
    use_te: bool
    hidden: int = 128

    @nn.compact
    def __call__(self, x: Any) -> Any:
        dense = DenseGeneral if self.use_te else nn.DenseGeneral
        for _ in range(2):
            x = nn.relu(dense(self.hidden, use_bias=True)(x))
        return nn.Dense(10)(x)  # 10 classes are no multiple of 16: not worth FP8


def load(path: str | None) -> tuple[Any, ...]:
    if path:
        with np.load(path) as f:
            xs, ys = (f["x_train"], f["x_test"]), (f["y_train"], f["y_test"])
    else:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        x, y = x[order], y[order]
        xs, ys = (x[:1437], x[1437:]), (y[:1437], y[1437:])
    top = xs[0].max()
    return *((x.reshape(len(x), -1) / top).astype(np.float32) for x in xs), *(y.astype(np.int32) for y in ys)


def progress(done: int, total: int, text: str) -> None:
    width = 30 * done // total
    print(f"\r[{'#' * width}{'.' * (30 - width)}] {done}/{total} {text}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> float:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--epochs", type=int, default=15)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--data")
    p.add_argument("--use-te", action="store_true", help="libte's modules")
    p.add_argument("--use-fp8", action="store_true", help="libte's modules in FP8 with delayed scaling")
    a = p.parse_args(arguments)
    x, x_test, y, y_test = load(a.data)
    net = Net(a.use_te or a.use_fp8)
    recipe = te.recipe.DelayedScaling(amax_history_len=16)
    with te.autocast(enabled=a.use_fp8, recipe=recipe):
        variables = dict(net.init(jax.random.key(a.seed), x[: a.batch_size]))
        params = variables.pop("params")

        def loss_fn(params: Any, others: Any, x: Any, y: Any) -> Any:
            logits = net.apply({"params": params, **others}, x)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

        step = jax.jit(jax.value_and_grad(loss_fn, argnums=(0, 1)))
        roll = jax.jit(te.update_fp8_metas)
        predict = jax.jit(lambda params, others, x: net.apply({"params": params, **others}, x).argmax(-1))
        start, steps = time.perf_counter(), len(y) // a.batch_size
        rng = np.random.default_rng(a.seed)
        loss = jnp.zeros(())
        for epoch in range(a.epochs):
            order = rng.permutation(len(y))
            for i in range(steps):
                rows = order[i * a.batch_size : (i + 1) * a.batch_size]
                loss, (grads, other_grads) = step(params, variables, x[rows], y[rows])
                params = jax.tree.map(lambda w, g: w - a.lr * g, params, grads)
                variables = roll(other_grads)
            progress(epoch + 1, a.epochs, f"loss {float(loss):.4f}")
        accuracy = float((np.asarray(predict(params, variables, x_test)) == y_test).mean())
    mode = "fp8" if a.use_fp8 else "te" if a.use_te else "plain"
    print(f"{mode}: accuracy {accuracy:.4f} on {len(y_test)} test images, {time.perf_counter() - start:.1f} s")
    return accuracy


if __name__ == "__main__":
    main()
