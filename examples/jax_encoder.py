# SPDX-License-Identifier: Apache-2.0
"""A text encoder in JAX: libte_jax.flax's Transformer layers, in bf16 or with `--use-fp8`. Tells which family of Python's language reference (which
every CPython ships) a passage comes from; with `--data`, whether a sentence is acceptable English (GLUE's CoLA)."""
from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import jax
import jax.numpy as jnp
import libte
import libte_jax as te
import numpy as np
import optax
from flax import linen as nn
from libte_jax.flax import TransformerLayer
from tqdm import tqdm

import shared

FAMILIES = {  # topics of pydoc_data with no page in common
    "statements": "assert assignment break compound continue del global import nonlocal pass raise return yield",
    "expressions": "atom-identifiers atom-literals binary booleans calls comparisons dict exprlists lambda lists operator-summary power shifting "
                   "slicings strings subscriptions unary",
    "data model": "objects specialnames types",
    "built-in types": "formatstrings string-methods typesmapping typesseq",
}
PASSAGE = 32  # words
Labelled = list[tuple[list[str], int]]


def words(text: str) -> list[str]:
    """Lower-case words and single other characters; three or more of one sign, as under a heading or in a table, are one."""
    return re.findall(r"[a-z]+|[^\sa-z]", re.sub(r"([^\w\s])\1{2,}", r"\1", text.lower()))


def passages() -> tuple[Labelled, Labelled]:
    """(training, held out: every fifth) passages, no word in two of them, with the numbers of their families."""
    from pydoc_data.topics import topics

    parts: tuple[Labelled, Labelled] = [], []
    for label, names in enumerate(FAMILIES.values()):
        text = [w for name in names.split() for w in words(topics[name])]
        for i in range(len(text) // PASSAGE):
            parts[i % 5 == 4].append((text[i * PASSAGE :][:PASSAGE], label))
    return parts


def cola(folder: str) -> tuple[Labelled, Labelled]:
    """(train.tsv, dev.tsv) of GLUE's CoLA: source, label 0 or 1, the author's mark, sentence; no head line."""
    parts: tuple[Labelled, Labelled] = [], []
    for part, name in zip(parts, ("train.tsv", "dev.tsv")):
        path = Path(folder) / name
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            columns = line.split("\t")
            if len(columns) != 4 or columns[1] not in ("0", "1"):
                raise ValueError(f"{path}:{number}: must be four columns with 0 or 1 in the second, got {line[:60]!r}")
            part.append((words(columns[3]), int(columns[1])))
    return parts


def encode(data: Labelled, vocabulary: dict[str, int], length: int) -> tuple[Any, Any]:
    """(words as i32 [n, length]: 0 after the end, 1 for those not in the vocabulary; labels i32 [n])."""
    x = np.zeros((len(data), length), np.int32)
    for row, (text, _) in zip(x, data):
        numbers = [vocabulary.get(w, 1) for w in text[:length]]
        row[: len(numbers)] = numbers
    return x, np.array([label for _, label in data], np.int32)


class Encoder(nn.Module):
    """words i32 [b, s] -> scores f32 [b, classes]."""

    vocabulary: int
    classes: int
    layers: int
    width: int = 128

    @nn.compact
    def __call__(self, x: Any, deterministic: bool = True) -> Any:
        absent = x == 0
        h = nn.Embed(self.vocabulary, self.width)(x) + self.param("position", nn.initializers.normal(0.02), (x.shape[1], self.width))
        h = h.astype(jnp.bfloat16)
        for _ in range(self.layers):
            h = TransformerLayer(self.width, 2 * self.width, 4, use_bias=True, self_attn_mask_type="padding")(
                h, attention_mask=absent[:, None, None, :], deterministic=deterministic)
        h = nn.LayerNorm()(h.astype(jnp.float32))
        mean = jnp.where(absent[..., None], 0, h).sum(1) / jnp.maximum((~absent).sum(1), 1)[:, None]
        return nn.Dense(self.classes)(mean)  # few classes: not worth FP8


def main(arguments: Optional[list[str]] = None) -> shared.Result:
    p = shared.parser(__doc__, te=False, epochs=6, batch_size=64, lr=1e-3, layers=2)
    p.add_argument("--data", help="the folder of CoLA's train.tsv and dev.tsv; by default passages of the language reference")
    a = p.parse_args(arguments)
    training, held_out = cola(a.data) if a.data else passages()
    counts = Counter(w for text, _ in training for w in text)
    vocabulary = {w: i + 2 for i, (w, n) in enumerate(counts.most_common(8190)) if n > 1}
    x, y = encode(training, vocabulary, PASSAGE)
    x_test, y_test = encode(held_out, vocabulary, PASSAGE)
    classes = int(y.max()) + 1
    net = Encoder(len(vocabulary) + 2, classes, a.layers)
    recipe = te.recipe.DelayedScaling(amax_history_len=16)
    with shared.jax_device(a.device), te.autocast(enabled=a.use_fp8, recipe=recipe):
        key, start = jax.random.key(a.seed), time.perf_counter()
        bar = tqdm(shared.Batches(len(y), a.batch_size, a.epochs, np.random.default_rng(a.seed).permutation), desc="training", ncols=100, mininterval=0.5)
        variables = dict(net.init(key, x[: a.batch_size]))
        params = variables.pop("params")
        optimizer = optax.adamw(optax.cosine_decay_schedule(a.lr, len(bar)), weight_decay=0.01)
        state = optimizer.init(params)

        def loss_fn(params: Any, others: Any, x: Any, y: Any, key: Any) -> Any:
            scores = net.apply({"params": params, **others}, x, deterministic=False, rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

        @jax.jit
        def step(params: Any, others: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
            loss, (grads, other_grads) = jax.value_and_grad(loss_fn, argnums=(0, 1))(params, others, x, y, key)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), te.update_fp8_metas(other_grads), state, loss

        predict = jax.jit(lambda params, others, x: net.apply({"params": params, **others}, x).argmax(-1))
        calls: dict[str, int] = {}
        for i, (last, rows) in enumerate(bar):
            now = (params, variables, state, x[rows], y[rows], jax.random.fold_in(key, i))
            run = shared.every_call(step, *now) if last else step
            if last:
                jax.block_until_ready(params)  # steps that still run would be in the trace
            with libte.trace() if last else nullcontext() as trace:
                params, variables, state, loss = run(*now)
                if i % 10 == 0 or last:  # reading the loss waits for the device
                    bar.set_postfix(loss=f"{float(loss):.4f}")
            if trace is not None:
                calls = trace.counts()
        accuracy = float((np.asarray(predict(params, variables, x_test)) == y_test).mean())
        guess = float((y_test == np.bincount(y).argmax()).mean())
        of = f"{len(y_test)} texts never trained on ({classes} classes; always the most frequent one: {guess:.4f})"
        return shared.report(shared.mode(a), accuracy, of, start, calls, a.use_fp8)


if __name__ == "__main__":
    main()
