// SPDX-License-Identifier: Apache-2.0
// A problem laid out in memory: strides, buffers, the args struct; run once, then read back.
#pragma once
#include <deque>
#include <map>
#include <memory>

#include "harness/device.h"
#include "harness/problem.h"

namespace te::test {

enum class Layout {
  contiguous,  // strides absent
  explicit_,   // compact strides given, dimensions of size 1 with odd ones, element-aligned byte_offset
  rows,        // padded rows, where the schema takes `rows` or `strided`
  transposed,  // dimensions stored in reverse order, where it takes `strided`
  expand       // stride 0 in the first dimension of inputs that may be strided
};
const char *name(Layout l);
constexpr Layout kLayouts[] = {Layout::contiguous, Layout::explicit_, Layout::rows, Layout::transposed, Layout::expand};

// The logical bytes of every output part, row-major: "y", "y.columnwise", "y.scale_inv", "y.amax".
using Result = std::map<std::string, std::vector<uint8_t>>;

struct CallOptions {
  Layout layout = Layout::contiguous;
  uint8_t poison = 0xff;
  std::string implementation;     // "" = the library chooses
  std::string drop;               // leave this optional field out
  std::string alias_out, alias_in;  // share memory
  std::string bad_layout;         // give this field, which does not take it, strided rows
  std::string read_only;          // flag this output read-only
  bool flush = false;             // run with FTZ and DAZ set, as XLA's threads do
  bool short_workspace = false;   // one byte less than asked for
};

class Call {
 public:
  Call(const Problem &p, Device &d, const CallOptions &o);
  nvte_status run();              // uploads, runs, downloads; message() holds the error
  nvte_status run_again();        // only the call itself (perf)
  const std::string &message() const { return message_; }
  nvte_status explain(std::string &text);
  size_t workspace_bytes() const { return workspace_bytes_; }
  // What must not have changed: guards, gaps between rows, inputs, and after a failure or noop the outputs as well.
  std::string check_untouched(bool outputs_too) const;
  Result result();
  double bytes_moved() const { return bytes_moved_; }
  // True when the layout made some tensor's memory differ from the contiguous one.
  bool differs() const { return differs_; }

 private:
  struct Part {
    std::string name;
    std::unique_ptr<Buffer> own;
    Buffer *buffer;  // own, or that of the aliased input
    DLTensor *tensor;
    Shape shape, strides;
    int64_t offset;  // elements
    DType dtype;
    bool output, must_not_change;
    std::vector<int64_t> shape_store, stride_store;
  };
  Part &add_part(const std::string &name, DLTensor &t, const Shape &shape, DType dtype, const Shape &strides, int64_t offset, bool give_strides);
  void lay_out(const Arg &a, nvte_tensor &t, uint32_t field_flags);
  nvte_status invoke();

  const Problem &problem_;
  Device &device_;
  CallOptions options_;
  std::vector<uint8_t> args_;
  std::deque<nvte_tensor> tensors_;
  std::deque<std::vector<nvte_tensor *>> lists_;
  std::deque<Part> parts_;
  std::unique_ptr<Buffer> workspace_;
  size_t workspace_bytes_ = 0;
  nvte_exec exec_;
  std::string message_;
  double bytes_moved_ = 0;
  bool differs_ = false;
};

}  // namespace te::test
