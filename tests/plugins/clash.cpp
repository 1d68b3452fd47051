// SPDX-License-Identifier: Apache-2.0
// Exports, with default visibility, names that libte has too: its public ones and some of its insides. A libte that binds to these
// answers nonsense.
#include <stdint.h>
#include <stdlib.h>

extern "C" {
uint32_t nvte_version() { return 0xdead; }
const char *nvte_last_error() { return "clash"; }
size_t nvte_op_count() { abort(); }
int32_t nvte_quantize(const void *, const void *) { abort(); }
int32_t nvte_dropout_forward(const void *, const void *) { abort(); }
}
namespace te {
int32_t fail(int32_t, const char *, ...) { abort(); }
const char *last_error() { return "clash"; }
const void *find_op(const char *) { abort(); }
namespace cpu {
bool parallel(int64_t, int64_t, void (*)(void *, int64_t), void *) { abort(); }
void *scratch(int, size_t) { abort(); }
int threads() { abort(); }
}  // namespace cpu
}  // namespace te
