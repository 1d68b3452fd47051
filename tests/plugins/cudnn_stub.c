/* SPDX-License-Identifier: Apache-2.0
 * A libcudnn.so.9 that has every function libte asks for, says the version it was built with, and can do nothing. */
#include <stddef.h>

size_t cudnnGetVersion(void) { return STUB_VERSION; }
const char *cudnnGetErrorString(int status) { return status ? "stub" : "ok"; }
void cudnnGetLastErrorString(char *message, size_t n) {
  if (n) *message = 0;
}
#define FAILS(name) \
  int name(void) { return 1; }
FAILS(cudnnCreate)
FAILS(cudnnDestroy)
FAILS(cudnnSetStream)
FAILS(cudnnGetStream)
FAILS(cudnnBackendCreateDescriptor)
FAILS(cudnnBackendDestroyDescriptor)
FAILS(cudnnBackendSetAttribute)
FAILS(cudnnBackendGetAttribute)
FAILS(cudnnBackendFinalize)
FAILS(cudnnBackendExecute)
