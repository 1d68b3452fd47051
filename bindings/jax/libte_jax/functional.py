# SPDX-License-Identifier: Apache-2.0
"""The differentiable operators: custom_vjp from libte's gradient table, the one that the torch adapter uses.

Dropout is a function of its key alone, so backward gives the same mask whenever and however often it runs.
"""
from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from libte import recipe as recipes
from libte.grads import GRADIENTS
from libte.schema import OPS

from . import ops
from .partition import PAIRS

_CURRENT, _POW2, _SPLIT = 1, 2, 32  # NVTE_LINEAR_*


class _Config(NamedTuple):
    outputs: tuple[tuple[str, Optional[str]], ...]  # with its dtype, None: what nvte_infer picks
    scalars: tuple[tuple[str, Any], ...]


@lru_cache(maxsize=None)
def _differentiable(name: str, view: str = "") -> Any:
    """(config, {slot: input}) -> {output: array}, for a row of the table with one backward step."""
    row = GRADIENTS[name]
    (step,) = row.steps
    forward, backward = OPS[name], OPS[step.op]
    written = {f.name for f in forward.outputs}

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def run(config: _Config, inputs: dict[str, Array]) -> dict[str, Array]:
        return ops.call(name + view, inputs, dict(config.outputs), dict(config.scalars))

    def keep(config: _Config, inputs: dict[str, Array]) -> Any:
        asked = dict(config.outputs)
        for source in step.inputs.values():  # an optional output that backward reads is asked for
            options = source.split("|")
            if not source.startswith("grad:") and not any(o in inputs or o in asked for o in options):
                asked.update({o: None for o in options if o in written and not forward.field(o).quantized})
        out = ops.call(name + view, inputs, asked, dict(config.scalars))
        saved = {}
        for source in step.inputs.values():
            value = next((v for o in source.split("|") for v in (out.get(o), inputs.get(o)) if v is not None), None)
            if value is not None:
                saved[source] = value
        return {o: out[o] for o, _ in config.outputs}, (saved, inputs)

    def pull(config: _Config, residuals: Any, gradients: dict[str, Array]) -> Any:
        saved, primals = residuals
        given = {f: gradients.get(s[5:]) if s.startswith("grad:") else saved.get(s) for f, s in step.inputs.items()}
        asked: dict[str, Optional[str]] = {}
        for field, targets in step.results.items():
            have = [t for t in targets.split(",") if t in primals]
            if have or not backward.field(field).optional:
                asked[field] = ops.dtype_name(primals[have[0]].dtype) if have else None
        known = {s.name for s in backward.scalars}
        made = ops.call(step.op + view, {f: v for f, v in given.items() if v is not None}, asked,
                        {n: v for n, v in config.scalars if n in known} | dict(step.scalars))
        result: dict[str, Any] = dict.fromkeys(primals)  # None: no gradient
        for field, targets in step.results.items():
            for t in targets.split(","):
                if t in primals:
                    result[t] = ops.like(made[field], primals[t])
        return (result,)

    run.defvjp(keep, pull)
    return run


def _apply(name: str, inputs: dict[str, Any], outputs: Union[tuple[str, ...], dict[str, str]], view: str = "", **scalars: Any) -> dict[str, Array]:
    present = {k: array(name, k, v) for k, v in inputs.items() if v is not None}
    asked = outputs if isinstance(outputs, dict) else dict.fromkeys(outputs)
    numbers = tuple((n, ops.constant(name, n, v)) for n, v in scalars.items())
    return _differentiable(name, view)(_Config(tuple(asked.items()), numbers), present)


def array(name: str, argument: str, x: Any) -> Array:
    """A copy of what is not JAX's: it is kept for backward, and its owner may write to it."""
    try:
        if x is not None and not isinstance(x, ops.Quantized):
            return jnp.asarray(x)
        reason: Any = None
    except (TypeError, ValueError, RuntimeError) as e:
        reason = e
    raise TypeError(f"{name}: {argument} must be an array, got {type(x).__name__}") from reason


def _flag(name: str, argument: str, value: Any) -> int:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: {argument} must be True or False, got {value!r}")
    return int(value)


def rmsnorm(x: Array, gamma: Optional[Array] = None, residual: Optional[Array] = None, *, epsilon: float = 1e-5,
            zero_centered: bool = False) -> Any:
    """RMSNorm of x (+ residual); with residual also returns the sum."""
    outputs = ("y",) if residual is None else ("y", "residual_out")
    out = _apply("rmsnorm_forward", {"x": x, "gamma": gamma, "residual": residual}, outputs, epsilon=epsilon,
                 flags=_flag("rmsnorm", "zero_centered", zero_centered))
    return out["y"] if residual is None else (out["y"], out["residual_out"])


def layernorm(x: Array, gamma: Optional[Array] = None, beta: Optional[Array] = None, residual: Optional[Array] = None, *,
              epsilon: float = 1e-5, zero_centered: bool = False) -> Any:
    """LayerNorm of x (+ residual); with residual also returns the sum."""
    outputs = ("y",) if residual is None else ("y", "residual_out")
    out = _apply("layernorm_forward", {"x": x, "gamma": gamma, "beta": beta, "residual": residual}, outputs, epsilon=epsilon,
                 flags=_flag("layernorm", "zero_centered", zero_centered))
    return out["y"] if residual is None else (out["y"], out["residual_out"])


def activation(x: Array, activation: str = "gelu") -> Array:
    """gelu (tanh form), gelu_erf, qgelu, relu, srelu, silu or sigmoid."""
    return _apply("activation_forward", {"x": x}, ("y",), activation=activation)["y"]


def gated_activation(x: Array, activation: str = "silu", *, pairs: bool = False, limit: Optional[float] = None, alpha: float = 1.702,
                     offset: float = 1.0) -> Array:
    """f(x[..., :H]) * x[..., H:]; with `limit` the clamped form. pairs: x is [..., 2, H] instead, and H may be cut over devices."""
    clamp: dict[str, Any] = {} if limit is None else {"flags": "clamped", "limit": limit, "alpha": alpha, "offset": offset}
    x = array("gated_activation", "x", x)
    if pairs and x.shape[-2:-1] != (2,):
        raise ValueError(f"gated_activation: x must be [..., 2, H] with pairs, got {list(x.shape)}")
    return _apply("gated_activation_forward", {"x": x}, ("y",), PAIRS if pairs else "", activation=activation, **clamp)["y"]


def softmax(x: Array, mask: Optional[Array] = None, *, scale: float = 1.0, mask_kind: str = "none") -> Array:
    """softmax(scale * x) over the last dimension; mask: True = masked out."""
    x = array("softmax", "x", x)
    wide = x if x.ndim > 1 else x[None]
    return _apply("softmax_forward", {"x": wide, "mask": mask}, ("y",), scale=scale, mask_kind=mask_kind)["y"].reshape(x.shape)


def rope(x: Array, freqs: Array, *, format: str = "sbhd", interleaved: bool = False, start_positions: Optional[Array] = None,
         positions: Optional[Array] = None, cu_seqlens: Optional[Array] = None) -> Array:
    """Rotary embedding by the angles freqs[position]."""
    inputs = {"x": x, "freqs": freqs, "start_positions": start_positions, "positions": positions, "cu_seqlens": cu_seqlens}
    return _apply("rope_forward", inputs, ("y",), format=format, flags=_flag("rope", "interleaved", interleaved))["y"]


def rng_state(key: Array) -> Array:
    """{seed, offset} of libte's Philox from a JAX key."""
    return jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32) >> 1, jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dropout(p: float, x: Array, state: Array) -> Array:
    return ops.dropout_forward(x, state, p=p)  # type: ignore[attr-defined]


_dropout.defvjp(lambda p, x, state: (_dropout(p, x, state), state), lambda p, state, dy: (_dropout(p, dy, state), None))


def dropout(x: Array, key: Array, p: float) -> Array:
    """x / (1 - p) where kept, else 0; the mask is a function of the key and of the index in x, however x is sharded. Backward makes it again
    instead of keeping it: its packed bits could not be cut over devices."""
    p = ops.constant("dropout", "p", p)
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError(f"dropout: p must be a number, got {p!r}")
    return _dropout(float(p), array("dropout", "x", x), rng_state(key))


def cross_entropy(logits: Array, target: Array, *, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int = -100) -> Array:
    """Softmax cross-entropy in f32 over logits [..., V]; a scalar, or one value a token for reduction="none"."""
    logits, target = array("cross_entropy", "logits", logits), array("cross_entropy", "target", target)
    if not logits.ndim or target.shape != logits.shape[:-1]:
        raise ValueError(f"cross_entropy: logits must be [*, V] and target [*], got {list(logits.shape)} and {list(target.shape)}")
    flat = logits.reshape(prod(target.shape), logits.shape[-1])
    loss = _apply("cross_entropy_forward", {"logits": flat, "target": jnp.reshape(target, -1)}, ("loss",), reduction=reduction,
                  label_smoothing=label_smoothing, ignore_index=ignore_index)["loss"]
    return loss.reshape(jnp.shape(target)) if reduction == "none" else loss[0]


def attention(q: Array, k: Array, v: Array, *, bias: Optional[Array] = None, mask: Optional[Array] = None,
              cu_seqlens_q: Optional[Array] = None, cu_seqlens_kv: Optional[Array] = None, cu_seqlens_q_padded: Optional[Array] = None,
              cu_seqlens_kv_padded: Optional[Array] = None, softmax_offset: Optional[Array] = None, alibi_slopes: Optional[Array] = None,
              key: Optional[Array] = None, dropout: float = 0.0, scale: Optional[float] = None, format: str = "bshd",
              mask_kind: str = "none", bias_kind: str = "post_scale", softmax_kind: str = "vanilla",
              window: tuple[int, int] = (-1, -1)) -> Array:
    """Fused attention; mask: True = masked out. scale defaults to 1 / sqrt(d)."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"attention: window must be (left, right), got {window!r}")
    q = array("attention", "q", q)
    if not q.ndim:
        raise ValueError("attention: q must be [*, d], got []")
    inputs = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv,
              "cu_seqlens_q_padded": cu_seqlens_q_padded, "cu_seqlens_kv_padded": cu_seqlens_kv_padded,
              "rng_state": None if key is None else rng_state(key), "softmax_offset": softmax_offset, "alibi_slopes": alibi_slopes}
    return _apply("attention_forward", inputs, ("o",), scale=q.shape[-1] ** -0.5 if scale is None else scale, dropout=dropout, format=format,
                  mask_kind=mask_kind, bias_kind=bias_kind, softmax_kind=softmax_kind, window_left=window[0], window_right=window[1])["o"]


# ---- linear, wide or in FP8 ----
class Fp8(NamedTuple):
    """A recipe as constants of a trace."""

    current: bool
    forward: str
    backward: str
    forward_flags: int = 0
    backward_flags: int = _SPLIT
    margin: int = 0
    algorithm: str = "max"
    history: int = 0

    @classmethod
    def of(cls, r: recipes.Recipe) -> Fp8:
        for flag in ("fp8_dpa", "fp8_mha"):
            if getattr(r, flag, False):
                raise NotImplementedError(f"libte_jax: {flag} must be False: attention runs in its inputs' dtype, got {getattr(r, flag)!r}")
        if not getattr(r, "reduce_amax", True):
            raise NotImplementedError("libte_jax: reduce_amax must be True: the amax of a sharded array is that of the whole array")
        if isinstance(r, recipes.Float8CurrentScaling):
            if r.backward_override is not None:
                raise NotImplementedError(f"libte_jax: backward_override must be None, got {r.backward_override!r}")
            flags = _CURRENT | (_POW2 if r.use_power_2_scales else 0)
            split = r.fp8_gemm_dgrad.use_split_accumulator or r.fp8_gemm_wgrad.use_split_accumulator
            return cls(True, "e4m3", "e5m2" if r.fp8_format is recipes.Format.HYBRID else "e4m3",
                       flags | (_SPLIT if r.fp8_gemm_fprop.use_split_accumulator else 0), flags | (_SPLIT if split else 0))
        if isinstance(r, recipes.DelayedScaling):
            if callable(r.amax_compute_algo) or r.scaling_factor_compute_algo is not None:
                raise NotImplementedError("libte_jax: amax_compute_algo must be 'max' or 'most_recent', scaling_factor_compute_algo None")
            return cls(False, "e4m3", "e5m2" if r.fp8_format is recipes.Format.HYBRID else "e4m3", 0, _SPLIT, r.margin,
                       r.amax_compute_algo, r.amax_history_len)
        raise NotImplementedError(f"libte_jax has DelayedScaling and Float8CurrentScaling, got {r!r}")


@jax.tree_util.register_pytree_with_keys_class
class Fp8Meta:
    """Delayed scaling of one linear: scale f32 [3] and amax_history f32 [len, 3] of input, weight and output gradient, and uses, f32 [] = 1.
    Its gradient is its next value: the same scales, with the amaxes just seen in row 0 of the history (`update_fp8_metas` rolls it).

    JAX adds the gradients of one state that is used several times (a layer called twice, the body of a scan); `uses` then counts them, and
    row 0 is the sum of their amaxes, no less than the largest. vmap takes the largest itself."""

    FIELDS = ("scale", "amax_history", "uses")

    def __init__(self, scale: Array, amax_history: Array, uses: Array, fp8: Fp8) -> None:
        self.scale, self.amax_history, self.uses, self.fp8 = scale, amax_history, uses, fp8

    def __repr__(self) -> str:
        return f"Fp8Meta({', '.join(f'{n}={getattr(self, n)!r}' for n in (*self.FIELDS, 'fp8'))})"

    @classmethod
    def new(cls, fp8: Fp8) -> Fp8Meta:
        return cls(jnp.ones(3, jnp.float32), jnp.zeros((fp8.history, 3), jnp.float32), jnp.ones((), jnp.float32), fp8)

    def tree_flatten_with_keys(self) -> Any:
        return tuple((jax.tree_util.GetAttrKey(n), getattr(self, n)) for n in self.FIELDS), self.fp8

    def tree_flatten(self) -> Any:
        return tuple(getattr(self, n) for n in self.FIELDS), self.fp8

    @classmethod
    def tree_unflatten(cls, fp8: Fp8, leaves: Any) -> Fp8Meta:
        return cls(*leaves, fp8)

    def rolled(self) -> Fp8Meta:
        """The next value from a gradient; of states stacked by scan or vmap, of each."""
        if self.uses.ndim:
            return jax.vmap(Fp8Meta.rolled)(self)
        # What was added up is taken apart again; amaxes stay added, where shards shared one (uses < 1: some are not in) they are made whole.
        seen = self.amax_history / jnp.where(self.uses > 0, self.uses, 1)
        seen = seen.at[0].set(self.amax_history[0] / jnp.where(self.uses > 0, jnp.minimum(self.uses, 1), 1))
        scale = jnp.where(self.uses > 0, self.scale / self.uses, 1)  # nothing used it: its gradient is zeros
        halves = []
        for columns, dtype in ((slice(0, 2), self.fp8.forward), (slice(2, 3), self.fp8.backward)):
            halves.append(ops.amax_and_scale_update(
                seen[:, columns], scale[columns], dtype=dtype, margin=self.fp8.margin,  # type: ignore[attr-defined]
                algorithm=self.fp8.algorithm, new_history=True, new_scale=True))
        return Fp8Meta(jnp.concatenate([h.new_scale for h in halves]), jnp.concatenate([h.new_history for h in halves], 1),
                       jnp.ones_like(self.uses), self.fp8)


def _is_meta(x: Any) -> bool:
    return isinstance(x, Fp8Meta)


def update_fp8_metas(tree: Any, state: Any = None) -> Any:
    """The variables for the next step, from their gradients: every Fp8Meta in the tree is rolled, the rest is returned as it is. The gradient
    of a linear that the loss did not use (a branch not taken, stop_gradient) is zeros: its state starts anew, or, with `state`, this step's
    variables, stays as it was."""
    def update(gradient: Any, old: Any = None) -> Any:
        if not _is_meta(gradient):
            return gradient
        new = gradient.rolled()
        if old is None:
            return new
        used = gradient.uses > 0
        return jax.tree.map(lambda n, o: jnp.where(used.reshape(used.shape + (1,) * (n.ndim - used.ndim)), n, o), new, old)

    return jax.tree.map(update, tree, *(() if state is None else (state,)), is_leaf=_is_meta)


def _checked(meta: Fp8Meta, fp8: Fp8) -> Fp8Meta:
    if not _is_meta(meta):
        raise TypeError(f"linear: meta must be an Fp8Meta, got {type(meta).__name__}")
    if meta.fp8 != fp8:
        made, now = (", ".join(f"{n}={getattr(f, n)!r}" for n in Fp8._fields if getattr(meta.fp8, n) != getattr(fp8, n)) for f in (meta.fp8, fp8))
        raise ValueError(f"linear: meta must be of the recipe: it was made for one with {made}, this one has {now}")
    for n, shape in zip(Fp8Meta.FIELDS, ((3,), (fp8.history, 3), ())):
        leaf = getattr(meta, n)
        if jnp.shape(leaf) != shape or jnp.result_type(leaf) != jnp.float32:
            raise ValueError(f"linear: meta.{n} must be f32 {list(shape)}, got {jnp.result_type(leaf)} {list(jnp.shape(leaf))}")
    return meta


@jax.custom_batching.custom_vmap
def _of_batch(amax: Array, history: Array) -> Array:
    """amax; the largest of all entries of a vmap whose entries share one history. Its result is then not batched, so nothing is added up."""
    return amax


@_of_batch.def_vmap
def _largest(size: int, batched: list[bool], amax: Array, history: Array) -> Any:
    shared = batched[0] and not batched[1]
    return _of_batch(jnp.max(amax, 0) if shared else amax, history), batched[0] and batched[1]


def _codes(q: ops.Quantized) -> ops.Quantized:
    return ops.Quantized(q.data, scale_inv=q.scale_inv)


def _view(weight: Array) -> str:
    return PAIRS if weight.ndim == 3 else ""


def _fp8_forward(fp8: Fp8, x: Array, weight: Array, bias: Optional[Array], meta: Optional[Fp8Meta]) -> Any:
    def out(i: int) -> ops.Output:
        return ops.Output(fp8.forward, compute_scale=True) if meta is None else ops.Output(fp8.forward, scale=meta.scale[i])

    return ops.linear_forward(x, weight, bias, x_quantized=out(0), weight_quantized=out(1), y=x.dtype,  # type: ignore[attr-defined]
                              flags=fp8.forward_flags, view=_view(weight))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fp8_linear(fp8: Fp8, x: Array, weight: Array, bias: Optional[Array], meta: Optional[Fp8Meta]) -> Array:
    return _fp8_forward(fp8, x, weight, bias, meta).y


def _fp8_keep(fp8: Fp8, x: Array, weight: Array, bias: Optional[Array], meta: Optional[Fp8Meta]) -> Any:
    out = _fp8_forward(fp8, x, weight, bias, meta)
    amaxes = (out.x_quantized.amax, out.weight_quantized.amax)
    like = (x[:0], weight[:0], None if bias is None else bias[:0])  # only dtypes and varying axes are needed
    return out.y, (_codes(out.x_quantized), _codes(out.weight_quantized), amaxes, like, meta)


def _fp8_pull(fp8: Fp8, residuals: Any, dy: Array) -> Any:
    xq, wq, amaxes, (x, weight, bias), meta = residuals
    want = ops.Output(fp8.backward, compute_scale=True) if meta is None else ops.Output(fp8.backward, scale=meta.scale[2])
    out = ops.linear_backward(dy, xq, wq, dy_quantized=want, dx=x.dtype, dweight=weight.dtype,  # type: ignore[attr-defined]
                              dbias=None if bias is None else bias.dtype, flags=fp8.backward_flags, view=_view(weight))
    new = None
    if meta is not None:
        seen = jnp.concatenate([*amaxes, out.dy_quantized.amax])
        if not ops.in_old_shard_map():  # which has no rule for custom_vmap
            seen = _of_batch(seen, meta.amax_history)
        seen, share = ops.greatest(seen, meta.amax_history)
        new = Fp8Meta(meta.scale * share, meta.amax_history.at[0].set(seen) * share, meta.uses * share, fp8)
    return ops.like(out.dx, x), ops.like(out.dweight, weight), None if bias is None else ops.like(out.dbias, bias), new


_fp8_linear.defvjp(_fp8_keep, _fp8_pull)


def linear(x: Array, weight: Array, bias: Optional[Array] = None, fp8: Optional[recipes.Recipe] = None, meta: Optional[Fp8Meta] = None) -> Array:
    """x weight^T + bias, weight [N, K]; of weight [2, N, K] (and bias [2, N]) the result is [..., 2, N]. With a recipe the operands and the gradient
    are quantised; delayed scaling needs `meta`."""
    x, weight = array("linear", "x", x), array("linear", "weight", weight)
    bias = None if bias is None else array("linear", "bias", bias)
    if weight.ndim == 3 and weight.shape[0] != 2:
        raise ValueError(f"linear: weight must be [N, K] or [2, N, K], got {list(weight.shape)}")
    if fp8 is None:
        if meta is not None:
            raise ValueError("linear: meta must be given for delayed scaling, and only then; fp8 is None")
        y = {"y": ops.dtype_name(x.dtype)}  # the schema's first choice is f32, whatever x is
        return _apply("linear_forward", {"x": x, "weight": weight, "bias": bias}, y, _view(weight))["y"]
    config = Fp8.of(fp8)
    if config.current != (meta is None):
        raise ValueError("linear: meta must be given for delayed scaling, and only then")
    return _fp8_linear(config, x, weight, bias, None if meta is None else _checked(meta, config))
