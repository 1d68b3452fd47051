// SPDX-License-Identifier: Apache-2.0
#include "harness/problem.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace te::test {
namespace {
double unit(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }
double normal(uint64_t seed, uint64_t i) {  // Box-Muller
  return std::sqrt(-2 * std::log(unit(mix(seed, 2 * i)) + 0x1p-60)) * std::cos(6.283185307179586 * unit(mix(seed, 2 * i + 1)));
}
double special(uint64_t seed, uint64_t i, DType t) {
  const double big = largest(t), least = ulp(t, 0);
  const double list[] = {0.0, -0.0, least, -least, 3 * least, big, -big, INFINITY, -INFINITY, NAN, 1, -1};
  const uint64_t r = mix(seed ^ 0x5bd1e995, i);
  return r % 3 ? normal(seed, i) : list[(r >> 8) % (sizeof list / sizeof *list)];
}
double extreme(uint64_t seed, uint64_t i, DType t) {
  const double lo = std::log2(ulp(t, 0)), hi = std::log2(largest(t));
  const double m = std::exp2(lo + (hi - lo) * unit(mix(seed, 2 * i)));
  return mix(seed, 2 * i + 1) & 1 ? -m : m;
}
}  // namespace

Fill parse_fill(const std::string &t) {
  static const std::pair<const char *, Fill> names[] = {
      {"normal", Fill::normal},   {"uniform", Fill::uniform}, {"positive", Fill::positive}, {"integers", Fill::integers}, {"special", Fill::special},
      {"extreme", Fill::extreme}, {"zero", Fill::zero},       {"one", Fill::one},           {"ordinal", Fill::ordinal}};
  for (auto &n : names)
    if (t == n.first) return n.second;
  throw std::runtime_error("unknown fill '" + t + "'");
}

void fill(Arg &a, Fill how, uint64_t seed) {
  seed ^= hash(a.key);
  a.values.resize((size_t)a.size());
  for (size_t i = 0; i < a.values.size(); i++) {
    double v = 0;
    switch (how) {
      case Fill::normal: v = normal(seed, i); break;
      case Fill::uniform: v = unit(mix(seed, i)); break;
      case Fill::positive: v = 0.5 + unit(mix(seed, i)); break;
      case Fill::integers: v = (double)(mix(seed, i) % 7) - 3; break;
      case Fill::special: v = special(seed, i, a.dtype); break;
      case Fill::extreme: v = extreme(seed, i, a.dtype); break;
      case Fill::zero: break;
      case Fill::one: v = 1; break;
      case Fill::ordinal: v = (double)(i % (bytes_of(a.dtype) == 1 ? 16 : 128)); break;
    }
    if (!is_float(a.dtype) && !is_fp8(a.dtype) && a.dtype != DType::f64) v = a.dtype == DType::u8 || a.dtype == DType::boolean ? std::fabs(std::floor(v)) : std::floor(v);
    a.values[i] = decode(a.dtype, encode(a.dtype, v));
  }
}

const nvte_field *field_of(const nvte_op *op, const std::string &name) {
  for (size_t i = 0; i < op->n_fields; i++)
    if (name == op->fields[i].name) return &op->fields[i];
  return nullptr;
}

Arg &Arg::set(const std::vector<double> &v) {
  if ((int64_t)v.size() != size()) throw std::runtime_error(key + ": " + std::to_string(v.size()) + " values for shape " + text(shape));
  values.resize(v.size());
  for (size_t i = 0; i < v.size(); i++) values[i] = decode(dtype, encode(dtype, v[i]));
  broadcast = false;
  return *this;
}

Arg &Problem::add(const char *field, Role role, const Shape &shape, DType dtype) {
  const nvte_field *f = field_of(op, field);
  if (!f || (f->kind != NVTE_FIELD_TENSOR && f->kind != NVTE_FIELD_TENSOR_LIST))
    throw std::runtime_error(std::string(op->name) + " has no tensor field '" + field + "'");
  Arg a;
  a.field = a.key = field;
  if (f->kind == NVTE_FIELD_TENSOR_LIST) {
    int n = 0;
    for (const Arg &other : args) n += other.field == field;
    a.key += "[" + std::to_string(n) + "]";
  }
  a.role = role;
  a.shape = shape;
  a.dtype = dtype;
  args.push_back(a);
  return args.back();
}
Arg &Problem::in(const char *field, const Shape &shape, DType dtype, Fill how) {
  Arg &a = add(field, Role::in, shape, dtype);
  fill(a, how, seed);
  const uint32_t flags = field_of(op, field)->flags;
  const int64_t n = a.size();
  if (expand && flags & (NVTE_FIELD_ROWS | NVTE_FIELD_STRIDED) && shape.size() >= (flags & NVTE_FIELD_STRIDED ? 1u : 2u) && shape[0] > 1 && n) {
    a.broadcast = true;
    for (int64_t i = 0; i < n; i++) a.values[(size_t)i] = a.values[(size_t)(i % (n / shape[0]))];
  }
  return a;
}
Arg &Problem::out(const char *field, const Shape &shape, DType dtype) { return add(field, Role::out, shape, dtype); }
Arg &Problem::inout(const char *field, const Shape &shape, DType dtype, Fill how) {
  Arg &a = add(field, Role::inout, shape, dtype);
  fill(a, how, seed);
  return a;
}
void Problem::set(const char *field, double value) {
  const nvte_field *f = field_of(op, field);
  if (!f || f->kind < NVTE_FIELD_F32 || f->kind > NVTE_FIELD_SIZE) throw std::runtime_error(std::string(op->name) + " has no scalar field '" + field + "'");
  scalars[field] = value;
}
void Problem::set(const char *field, DType dtype) {
  const nvte_field *f = field_of(op, field);
  if (!f || f->kind != NVTE_FIELD_DTYPE) throw std::runtime_error(std::string(op->name) + " has no dtype field '" + field + "'");
  dtypes[field] = dtype;
}
double Problem::scalar(const char *field) const {
  const auto it = scalars.find(field);
  const nvte_field *f = field_of(op, field);
  if (!f) throw std::runtime_error(std::string(op->name) + " has no field '" + field + "'");
  const double v = it != scalars.end() ? it->second : f->default_value;
  return f->kind == NVTE_FIELD_F32 ? (double)(float)v : v;
}
const Arg *Problem::find(const std::string &key) const {
  for (const Arg &a : args)
    if (a.key == key) return &a;
  return nullptr;
}

}  // namespace te::test
