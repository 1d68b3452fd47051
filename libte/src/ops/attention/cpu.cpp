// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: who computes what. Blocks of rows (forward) and key/value heads (backward) are owned by one worker each and cut
// by shape alone, so results do not depend on the number of threads.
#include "ops/attention/backward.h"

namespace te::cpu::TE_CPU_ISA {
namespace {

nvte_status out_of_memory() { return fail(NVTE_ERR_OUT_OF_MEMORY, "no memory for attention's tiles"); }

// The Pair products round probabilities to bf16, so they serve bf16 results only.
#if defined(__AVX512BF16__) || defined(TE_ATTENTION_PAIRS)
#define TE_PAIRS 1
bool takes_pairs(const Problem &p, DType result) { return p.q.dtype == DType::bf16 && result == DType::bf16; }
#endif

// Rough operations of a score matrix of all heads, for parallel().
int64_t cost_of(const Problem &p) {
  const double c = (double)p.b * p.h_q * p.s_q * (p.thd ? p.s_kv / (double)p.b : (double)p.s_kv) * (p.d + p.d_v);
  return c > 1e15 ? (int64_t)1e15 : (int64_t)c + p.s_q * p.h_q * p.d_v;
}

int64_t longest_query(const Problem &p) {
  if (!p.thd) return p.s_q;
  int64_t n = 0;
  for (int64_t b = 0; b < p.b; b++) n = p.sequence(b).len_q > n ? p.sequence(b).len_q : n;
  return n;
}
int64_t rows_of(const Problem &p, int64_t b) { return p.group * (p.thd ? p.sequence(b).len_q : p.s_q); }

// THD: calls f(first, end) for the tokens in front of, between and behind the sequences.
template <class F> void for_gaps(const Problem &p, bool keys, F &&f) {
  int64_t at = 0;
  for (int64_t b = 0; b <= p.b; b++) {
    const int64_t tokens = keys ? p.s_kv : p.s_q;
    const Sequence s = b < p.b ? p.sequence(b) : Sequence{tokens, tokens, 0, 0};
    const int64_t start = keys ? s.k0 : s.q0;
    if (start > at) f(at, start);
    at = start + (keys ? s.len_k : s.len_q);
  }
}
void zero_tokens(const View &v, int64_t first, int64_t end, int64_t heads, int64_t width) {
  for (int64_t t = first; t < end; t++)
    for (int64_t h = 0; h < heads; h++) zero_row(v.bytes, v.row(0, t, h), v.d, width);
}

template <class E> nvte_status forward(const Problem &p, const ForwardOut &out) {
  const Sizes z = sizes_of(p, kForwardBudget);
  const Dropout drop = dropout_of(p);
  const int64_t blocks = (p.group * longest_query(p) + z.rows - 1) / z.rows, tasks = p.b * p.h_kv * blocks;
  int failed = 0;
  const bool ran = parallel_for(tasks, cost_of(p), [&](int64_t i) {
    // late blocks first: with causal masks they are the long ones
    const int64_t b = i / (p.h_kv * blocks), kv_head = i / blocks % p.h_kv, first = (blocks - 1 - i % blocks) * z.rows;
    const int64_t end = rows_of(p, b);
    if (first >= end) return;
    char *memory = (char *)scratch(1, ForwardTiles<E>::bytes(z));
    if (!memory) {
      __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
      return;
    }
    ForwardTiles<E> t;
    t.place(memory, z);
    forward_block<E>(p, z, out, drop, t, b, kv_head, first, end < first + z.rows ? end : first + z.rows);
  });
  return ran && !failed ? NVTE_OK : out_of_memory();
}

// Parts into which the rows of a key/value head are cut, so that about kTasks tasks keep threads busy; a function of the shape.
constexpr int64_t kTasks = 16;
int64_t parts_of(const Problem &p, int64_t blocks) {
  const int64_t heads = p.b * p.h_kv, want = heads ? (kTasks + heads - 1) / heads : 1;
  return want < blocks / 2 ? want : blocks / 2 > 1 ? blocks / 2 : 1;
}

template <class E> nvte_status backward(const Problem &p, const nvte_attention_backward_args &a, const BackwardIn &in, BackwardOut out) {
  const Sizes z = sizes_of(p, kBackwardBudget);
  const Dropout drop = dropout_of(p);
  const int64_t blocks = (p.group * longest_query(p) + z.rows - 1) / z.rows, heads = (p.thd ? 1 : p.b) * p.h_kv;
  int failed = 0;
  out.parts = parts_of(p, blocks);
  if (out.parts > 1) {
    out.dk_part = (float *)scratch(1, (size_t)(heads * out.parts * p.s_kv * (z.d16 + z.dv16)) * 4);
    if (!out.dk_part) return out_of_memory();
    out.dv_part = out.dk_part + heads * out.parts * p.s_kv * z.d16;
  }
  auto with_tiles = [&](int64_t extra, auto &&body) {  // `extra` floats behind the tiles
    char *memory = (char *)scratch(2, BackwardTiles<E>::bytes(z) + (size_t)extra * 4);
    if (!memory) return __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    BackwardTiles<E> t;
    t.place(memory, z);
    body(t, (float *)(memory + BackwardTiles<E>::bytes(z)));
  };
  bool ran = parallel_for(p.b * p.h_kv * out.parts, 3 * cost_of(p), [&](int64_t i) {
    const int64_t b = i / (p.h_kv * out.parts), kv_head = i / out.parts % p.h_kv, part = i % out.parts, all = rows_of(p, b);
    const int64_t mine = (all + z.rows - 1) / z.rows, first = mine * part / out.parts * z.rows, last = mine * (part + 1) / out.parts * z.rows;
    const int64_t end = last < all ? last : all;
    with_tiles((end - first) * z.ld_d,
               [&](const BackwardTiles<E> &t, float *dq) { backward_part(p, z, in, out, drop, t, dq, b, kv_head, part, first, end); });
  });
  if (out.parts > 1 && ran && !failed) {
    constexpr int64_t kChunk = 64;
    const int64_t chunks = (p.s_kv + kChunk - 1) / kChunk;
    ran = parallel_for(p.b * p.h_kv * chunks, p.b * p.h_kv * p.s_kv * (p.d + p.d_v) * out.parts, [&](int64_t i) {
      const int64_t first = i % chunks * kChunk;
      reduce_parts(p, z, out, i / (p.h_kv * chunks), i / chunks % p.h_kv, first, first + kChunk);
    });
  }
  if (given(a.dbias) && ran && !failed) {
    const DLTensor &d = a.dbias->data;
    const int64_t q_blocks = (d.shape[2] + z.rows - 1) / z.rows, k_blocks = (d.shape[3] + z.keys - 1) / z.keys;
    ran = parallel_for(d.shape[0] * d.shape[1] * q_blocks * k_blocks, cost_of(p), [&](int64_t i) {
      const int64_t k = i % k_blocks, q = i / k_blocks % q_blocks, head = i / k_blocks / q_blocks;
      with_tiles(z.rows * z.ld_keys, [&](const BackwardTiles<E> &t, float *sum) {
        bias_block(p, z, in, drop, t, sum, d, head / d.shape[1], head % d.shape[1], q * z.rows, k * z.keys);
      });
    });
  }
  return ran && !failed ? NVTE_OK : out_of_memory();
}

}  // namespace

nvte_status attention_forward(const nvte_exec &, const nvte_attention_forward_args &a) {
  Problem p = problem_of(a);
  read_rng(&p);
  const ForwardOut out = {view_of(a.o, axes_of(a.format)), given(a.stats) ? address_as<float>(a.stats->data) : nullptr};
  if (p.thd)
    for_gaps(p, false, [&](int64_t first, int64_t end) {
      zero_tokens(out.o, first, end, p.h_q, p.d_v);
      for (int64_t h = 0; h < p.h_q && out.stats; h++)
        for (int64_t t = first; t < end; t++) out.stats[h * p.s_q + t] = kMinusInf;
    });
#if defined(TE_PAIRS)
  if (takes_pairs(p, out.o.dtype)) return forward<Pair>(p, out);
#endif
  return forward<float>(p, out);
}

nvte_status attention_backward(const nvte_exec &, const nvte_attention_backward_args &a) {
  Problem p = problem_of(a);
  read_rng(&p);
  const Axes x = axes_of(a.format);
  const View d_o = view_of(a.d_o, x), o = view_of(a.o, x);
  const float *stats = address_as<const float>(a.stats->data);
  // delta, then a double a head for the gradient of the softmax offset
  const int64_t rows = (p.thd ? 1 : p.b) * p.h_q * p.s_q, heads = p.b * p.h_q;
  double *offsets = (double *)scratch(0, (size_t)(heads * 8 + rows * 4 + 8));
  if (!offsets) return out_of_memory();
  float *delta = (float *)(offsets + heads);
  int failed = 0;
  const bool ran = parallel_for(heads, 4 * rows * p.d_v, [&](int64_t i) {
    float *two_rows = (float *)scratch(2, (size_t)(2 * up16(p.d_v)) * 4);
    if (!two_rows) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    else offsets[i] = delta_of_head(p, d_o, o, stats, delta, two_rows, i / p.h_q, i % p.h_q);
  });
  if (!ran || failed) return out_of_memory();
  if (given(a.dsoftmax_offset))
    for (int64_t h = 0; h < p.h_q; h++) {
      double sum = 0;
      for (int64_t b = 0; b < p.b; b++) sum += offsets[b * p.h_q + h];
      address_as<float>(a.dsoftmax_offset->data)[h] = (float)-sum;
    }
  const BackwardOut out = {view_of(a.dq, x), view_of(a.dk, x), view_of(a.dv, x), 1, nullptr, nullptr};
  if (p.thd) {
    for_gaps(p, false, [&](int64_t first, int64_t end) { zero_tokens(out.dq, first, end, p.h_q, p.d); });
    for_gaps(p, true, [&](int64_t first, int64_t end) {
      zero_tokens(out.dk, first, end, p.h_kv, p.d);
      zero_tokens(out.dv, first, end, p.h_kv, p.d_v);
    });
  }
  const BackwardIn in = {d_o, stats, delta};
#if defined(TE_PAIRS)
  if (takes_pairs(p, out.dq.dtype) && d_o.dtype == DType::bf16 && out.dk.dtype == DType::bf16 && out.dv.dtype == DType::bf16)
    return backward<Pair>(p, a, in, out);
#endif
  return backward<float>(p, a, in, out);
}

}  // namespace te::cpu::TE_CPU_ISA
