// SPDX-License-Identifier: Apache-2.0
// The words that the generated op_table.cpp is written in. One Checker walks one call: tensors, then names, then shapes, then
// scalars; it stops at the first broken rule. In infer mode the outputs are filled instead of checked.
#pragma once
#include <initializer_list>

#include "core/op.h"
#include "core/tensor.h"

namespace te {

// An extent as an expression: kUnknown where a name is not bound, kBad where a division leaves a remainder or a product overflows.
constexpr int64_t kUnknown = -1, kBad = -2;
int64_t dim_add(int64_t a, int64_t b);
int64_t dim_sub(int64_t a, int64_t b);
int64_t dim_mul(int64_t a, int64_t b);
int64_t dim_div(int64_t a, int64_t b);   // exact
int64_t dim_ceil(int64_t a, int64_t b);  // ceil(a / b)

// A name of the schema and where its value came from.
struct DimName {
  const char *name;
  int64_t value = kUnknown;
  const char *field = nullptr;
  int index = 0;    // of the field's shape; negative = from the end
  int entry = -1;   // of a list
};

// The leading dimensions `*`.
struct Lead {
  const int64_t *shape = nullptr;
  int ndim = -1;  // -1: not bound
  const char *field = nullptr;
  int trailing = 0;
  int64_t prod() const;
};

constexpr uint32_t bit(DType t) { return 1u << (int)t; }
constexpr uint32_t kAnyDType = ~0u;

class Checker {
 public:
  // exec == nullptr: infer mode.
  explicit Checker(const nvte_exec *exec) : exec_(exec) {}
  nvte_status status() const { return status_; }
  bool ok() const { return status_ == NVTE_OK; }
  bool infers() const { return !exec_; }

  int entry = -1;  // the list entry that is being looked at

  // The numbers of a tensor that counts as an input of this walk (everything, when not inferring); nullptr when absent. Checks
  // presence, struct, layout, device, scaling.
  const DLTensor *tensor(const nvte_field &f, const nvte_tensor *t);
  // The entries of a list; 0 when it is absent.
  size_t list(const nvte_field &f, const void *entries, size_t n);
  void dtype(const nvte_field &f, const DLTensor *t, uint32_t allowed, std::initializer_list<const DLTensor *> same = {});

  void lead(Lead &l, const nvte_field &f, const DLTensor *t, int trailing);
  void bind(DimName &n, const nvte_field &f, const DLTensor *t, int index, int trailing, bool star);
  // For infer: binds n so that n * factor is the extent.
  void solve(DimName &n, const nvte_field &f, const DLTensor *t, int index, int trailing, bool star, int64_t factor);
  void shape(const nvte_field &f, const DLTensor *t, const Lead *l, std::initializer_list<int64_t> trailing,
             std::initializer_list<const DimName *> names = {});

  void at_least(const nvte_field &f, double value, double bound);
  void at_most(const nvte_field &f, double value, double bound);

  // Infer mode: fills an output. `dtype` = nullptr: the caller must have set it; l and trailing give the shape, unless
  // `shaped` is false ([...]: op.cpp fills it).
  void fill(const nvte_field &f, nvte_tensor *t, bool shaped, const Lead *l, std::initializer_list<int64_t> trailing,
            DLDataType dtype, uint32_t allowed, std::initializer_list<const DLTensor *> same = {});

 private:
  [[gnu::format(printf, 3, 4)]] void refuse(const nvte_field &f, const char *format, ...);
  bool layout(const nvte_field &f, const DLTensor &t, const char *part, uint32_t words);
  bool scale_part(const nvte_field &f, const DLTensor &t, const char *part, DType type, bool needed);
  bool scaling(const nvte_field &f, const nvte_tensor &t);
  bool memory(const nvte_field &f, const DLTensor &t, const char *part);

  const nvte_exec *exec_;
  nvte_status status_ = NVTE_OK;
};

// Infer mode, after the operator's own infer: shapes and dtypes of the other parts of an output.
nvte_status finish_infer(const nvte_field &f, nvte_tensor *t);

// Given in infer mode: the caller described it.
static inline bool described(const nvte_tensor *t) {
  return t && (present(t->data) || present(t->columnwise) || t->data.dtype.bits || t->data.shape);
}

// dtype of `t` if it is there, else `otherwise`.
static inline DLDataType dtype_or(const DLTensor *t, DLDataType otherwise) { return t ? t->dtype : otherwise; }

}  // namespace te
