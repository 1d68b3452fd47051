/* SPDX-License-Identifier: Apache-2.0
 * explain_attention PLUGIN [LIBRARY ...]: opens the libraries, then prints what would run an attention of bf16 on cuda:0. Needs no GPU. */
#include <dlfcn.h>
#include <libte/init.h>
#include <stdio.h>

int main(int argc, char **argv) {
  for (int i = 2; i < argc; i++)
    if (!dlopen(argv[i], RTLD_NOW | RTLD_LOCAL)) return printf("%s\n", dlerror()), 1;
  if (argc < 2 || nvte_backend_load(argv[1]) != NVTE_OK) return printf("%s\n", nvte_last_error()), 1;
  int64_t shape[4] = {1, 64, 2, 64};
  nvte_tensor q = NVTE_TENSOR_INIT, o = NVTE_TENSOR_INIT;
  q.data = (DLTensor){.data = (void *)4096, .device = {kDLCUDA, 0}, .ndim = 4, .dtype = {kDLBfloat, 16, 1}, .shape = shape};
  o.data = q.data, o.data.data = (void *)65536;
  nvte_attention_forward_args a = NVTE_ATTENTION_FORWARD_ARGS_INIT;
  a.q = a.k = a.v = &q, a.o = &o;
  nvte_exec exec = NVTE_EXEC_INIT;
  exec.device = q.data.device;
  char text[4096];
  const nvte_status status = nvte_explain("attention_forward", &exec, &a, text, sizeof text);
  printf("%s\n", status == NVTE_OK ? text : nvte_last_error());
  return status != NVTE_OK;
}
