// SPDX-License-Identifier: Apache-2.0
// What an operator's test says about one call: its tensors, scalars, and what should come of it. No memory layout, no device: those
// are the runner's business.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "harness/case.h"
#include "libte/libte.h"

namespace te::test {

enum class Fill {
  normal,    // standard normal
  uniform,   // [0, 1)
  positive,  // [0.5, 1.5)
  integers,  // -3 .. 3: sums of products are exact in f32, so tolerance is 0 in effect
  special,   // normals mixed with +-0, subnormals, largest, +-infinity, NaN
  extreme,   // finite, magnitudes from the least subnormal to near the largest
  zero,
  one,
  ordinal    // 0, 1, 2, ... (modulo the format's exact integers)
};
Fill parse_fill(const std::string &text);

enum class Role { in, out, inout };

// One tensor argument. The setters chain: p.out("y", {m, h}, DType::e4m3).scaled(8).amax().
struct Arg {
  std::string field;  // name in the args struct
  std::string key;    // field, or "field[i]" for entry i of a list
  Role role;
  Shape shape;  // logical
  DType dtype;
  std::vector<double> values;  // in, inout: what is stored, row-major (codes decoded, not multiplied by scale_inv)

  bool is_exact = false;     // expected bit for bit: the rounding of (float)reference
  bool is_scaled = false;    // NVTE_SCALING_TENSOR
  float scale = 1;           // multiplier; scale_inv = 1 / scale
  bool pass_scale = true;    // give the scale part (false: absent = 1)
  bool has_data = true, has_columnwise = false, has_amax = false, amax_accumulate = false;
  float amax_before = 0;     // content of amax before the call
  bool keep_absent = false;  // leave it present when optional outputs are dropped one by one
  bool broadcast = false;    // its rows are equal (set by the expand layout)
  bool untouched = false;    // out: must not be written (noop)

  Arg &exact() { is_exact = true; return *this; }
  Arg &scaled(float s) { is_scaled = true; scale = s; return *this; }
  Arg &no_scale() { pass_scale = false; scale = 1; return *this; }
  Arg &columnwise() { has_columnwise = true; return *this; }
  Arg &columnwise_only() { has_columnwise = true; has_data = false; return *this; }
  Arg &amax() { has_amax = true; return *this; }
  Arg &accumulate_amax(float before) { has_amax = amax_accumulate = true; amax_before = before; return *this; }
  Arg &keep() { keep_absent = true; return *this; }
  Arg &not_written() { untouched = true; return *this; }
  // Replaces the seeded fill; values are rounded to the dtype.
  Arg &set(const std::vector<double> &v);
  int64_t size() const { return count(shape); }
};

class Problem {
 public:
  Problem(const nvte_op *op, const Case &c, uint64_t draw = 0, bool expand = false)
      : op(op), seed(mix(c.seed ^ hash(c.id), draw)), expand(expand), fill_(c.has("fill") ? parse_fill(c.s("fill")) : Fill::normal) {}

  // Adds a tensor. Inputs are filled from the seed and the field's name at once, so `in("x", ...).values` may be used to compute
  // what forward would have saved. The case's fill=... is the default. Calls for a list field append.
  Arg &in(const char *field, const Shape &shape, DType dtype) { return in(field, shape, dtype, fill_); }
  Arg &in(const char *field, const Shape &shape, DType dtype, Fill fill);
  Arg &out(const char *field, const Shape &shape, DType dtype);
  Arg &inout(const char *field, const Shape &shape, DType dtype) { return inout(field, shape, dtype, fill_); }
  Arg &inout(const char *field, const Shape &shape, DType dtype, Fill fill);
  // Scalars and DLDataType fields, by name; the others keep the schema's default.
  void set(const char *field, double value);
  void set(const char *field, DType dtype);
  // The output may share memory with the input: the runner tries it.
  void may_alias(const char *output, const char *input) { aliases.push_back({output, input}); }
  // The call must fail with this status and a message that contains `word`, and write nothing.
  void must_fail(nvte_status status, const char *word) { error = status, error_word = word; }

  // Mode grad leaves this case out (rounding inside the formula, terms that forward does not have).
  void no_gradient() { differentiable = false; }

  double scalar(const char *field) const;  // set, or the schema's default
  const Arg *find(const std::string &key) const;
  bool has(const char *key) const { return find(key) != nullptr; }

  const nvte_op *op;
  uint64_t seed;
  bool expand;  // give inputs that may be strided equal rows, to be bound with stride 0
  std::deque<Arg> args;
  std::map<std::string, double> scalars;
  std::map<std::string, DType> dtypes;
  std::vector<std::pair<std::string, std::string>> aliases;
  nvte_status error = NVTE_OK;
  std::string error_word;
  bool differentiable = true;

 private:
  Arg &add(const char *field, Role role, const Shape &shape, DType dtype);
  Fill fill_;
};

const nvte_field *field_of(const nvte_op *op, const std::string &name);
void fill(Arg &a, Fill how, uint64_t seed);

// A reference works on these: inputs as T (scaled ones multiplied by scale_inv), outputs to be written, unscaled.
template <class T> class Values {
 public:
  explicit Values(const Problem &p) {
    for (const Arg &a : p.args) {
      if (a.role != Role::out) {
        std::vector<T> &v = in_[a.key];
        v.resize(a.values.size());
        const T inv = a.is_scaled ? (T)(1.0f / a.scale) : (T)1;
        for (size_t i = 0; i < v.size(); i++) v[i] = (T)a.values[i] * inv;
      }
      if (a.role != Role::in) out_[a.key].assign((size_t)a.size(), (T)0);
    }
  }
  bool has(const std::string &key) const { return in_.count(key) != 0; }
  const std::vector<T> &operator[](const std::string &key) const { return in_.at(key); }
  bool wants(const std::string &key) const { return out_.count(key) != 0; }
  // An output that was not asked for can be written all the same; it goes nowhere (sized `n`).
  std::vector<T> &out(const std::string &key, int64_t n = 0) {
    std::vector<T> &v = out_[key];
    if ((int64_t)v.size() < n) v.assign((size_t)n, (T)0);
    return v;
  }
  std::map<std::string, std::vector<T>> in_, out_;
};

}  // namespace te::test
