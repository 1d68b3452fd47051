/* SPDX-License-Identifier: Apache-2.0
 * A C11 user of the installed library: RMSNorm, quantise, FP8 GEMM, errors, inference, explanation. Built against an install prefix
 * by installed.sh, once with CMake's package and once with pkg-config. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libte/init.h>
#include <libte/libte.h>

#define CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__, #x, nvte_last_error()); \
      return 1; \
    } \
  } while (0)

enum { M = 4, K = 32, N = 8 };

static DLTensor matrix(void *data, DLDataType dtype, int64_t *shape, int ndim) {
  DLTensor t = {NULL, {kDLCPU, 0}, 0, {0, 0, 0}, NULL, NULL, 0};
  t.data = data;
  t.ndim = ndim;
  t.dtype = dtype;
  t.shape = shape;
  return t;
}

int main(void) {
  const DLDataType f32 = {kDLFloat, 32, 1}, e4m3 = {kDLFloat8_e4m3fn, 8, 1};
  int64_t mk[2] = {M, K}, nk[2] = {N, K}, mn[2] = {M, N}, m[1] = {M}, one[1] = {1};
  float x[M * K], w[N * K], y[M * K], rstd[M], d[M * N], scale[2], scale_inv[2], amax[2] = {0, 0};
  unsigned char qx[M * K], qw[N * K];
  for (int i = 0; i < M * K; i++) x[i] = (float)(i % 13) - 6.0f;
  for (int i = 0; i < N * K; i++) w[i] = (float)(i % 7) - 3.0f;

  /* y = rmsnorm(x) */
  nvte_tensor tx = NVTE_TENSOR_INIT, ty = NVTE_TENSOR_INIT, tr = NVTE_TENSOR_INIT;
  tx.data = matrix(x, f32, mk, 2);
  ty.data = matrix(y, f32, mk, 2);
  tr.data = matrix(rstd, f32, m, 1);
  nvte_rmsnorm_forward_args norm = NVTE_RMSNORM_FORWARD_ARGS_INIT;
  norm.x = &tx;
  norm.y = &ty;
  norm.rstd = &tr;
  CHECK(norm.epsilon == 1e-5f);
  CHECK(nvte_rmsnorm_forward(NULL, &norm) == NVTE_OK);
  for (int i = 0; i < M; i++) {
    double sum = 0;
    for (int k = 0; k < K; k++) sum += (double)x[i * K + k] * x[i * K + k];
    const double r = 1 / sqrt(sum / K + 1e-5);
    CHECK(fabs(rstd[i] - r) < 8 * FLT_EPSILON * r);
    for (int k = 0; k < K; k++) CHECK(fabs(y[i * K + k] - x[i * K + k] * r) <= 8 * FLT_EPSILON * fabs(x[i * K + k] * r));
  }

  /* codes of y and w, each with a scale from its amax */
  nvte_tensor tq[2] = {NVTE_TENSOR_INIT, NVTE_TENSOR_INIT}, tw = NVTE_TENSOR_INIT;
  tw.data = matrix(w, f32, nk, 2);
  for (int i = 0; i < 2; i++) {
    nvte_tensor a = NVTE_TENSOR_INIT, s = NVTE_TENSOR_INIT;
    a.data = matrix(&amax[i], f32, one, 1);
    s.data = matrix(&scale[i], f32, one, 1);
    nvte_compute_amax_args ca = NVTE_COMPUTE_AMAX_ARGS_INIT;
    ca.x = i ? &tw : &ty;
    ca.amax = &a;
    CHECK(nvte_compute_amax(NULL, &ca) == NVTE_OK);
    nvte_compute_scale_args cs = NVTE_COMPUTE_SCALE_ARGS_INIT;
    cs.amax = &a;
    cs.scale = &s;
    cs.dtype = e4m3;
    CHECK(nvte_compute_scale(NULL, &cs) == NVTE_OK);
    CHECK(scale[i] == 448.0f / amax[i]);
    tq[i].data = i ? matrix(qw, e4m3, nk, 2) : matrix(qx, e4m3, mk, 2);
    tq[i].scaling = NVTE_SCALING_TENSOR;
    tq[i].scale = s.data;
    tq[i].scale_inv = matrix(&scale_inv[i], f32, one, 1);
    nvte_quantize_args q = NVTE_QUANTIZE_ARGS_INIT;
    q.x = i ? &tw : &ty;
    q.y = &tq[i];
    CHECK(nvte_quantize(NULL, &q) == NVTE_OK);
    CHECK(scale_inv[i] == 1.0f / scale[i]);
  }

  /* d = y w^T on codes */
  nvte_tensor td = NVTE_TENSOR_INIT;
  td.data = matrix(d, f32, mn, 2);
  nvte_gemm_args g = NVTE_GEMM_ARGS_INIT;
  g.a = &tq[0];
  g.b = &tq[1];
  g.d = &td;
  g.flags = NVTE_GEMM_TRANS_B;
  CHECK(nvte_gemm(NULL, &g) == NVTE_OK);
  for (int i = 0; i < M; i++)
    for (int n = 0; n < N; n++) {
      double sum = 0, size = 0;
      for (int k = 0; k < K; k++) {
        sum += (double)y[i * K + k] * w[n * K + k];
        size += fabs((double)y[i * K + k] * w[n * K + k]);
      }
      CHECK(fabs(d[i * N + n] - sum) <= size / 7); /* each factor is within 2^-4 of its code */
    }

  /* an error names function, argument, rule and value; nothing is written */
  m[0] = M + 1;
  rstd[0] = 77;
  CHECK(nvte_rmsnorm_forward(NULL, &norm) == NVTE_ERR_INVALID_ARGUMENT);
  CHECK(!strcmp(nvte_last_error(), "nvte_rmsnorm_forward: rstd must be [*], * = x.shape[:-1] = [4], got [5]"));
  CHECK(rstd[0] == 77);
  m[0] = M;

  /* shapes without data, and who runs */
  int64_t shape[NVTE_MAX_DIMS];
  nvte_tensor out = NVTE_TENSOR_INIT;
  out.data.shape = shape;
  norm.y = &out;
  norm.rstd = NULL;
  CHECK(nvte_infer("rmsnorm_forward", &norm) == NVTE_OK);
  CHECK(out.data.ndim == 2 && shape[0] == M && shape[1] == K && out.data.dtype.bits == 32);
  norm.y = &ty;
  char text[256];
  size_t bytes = 1;
  CHECK(nvte_explain("rmsnorm_forward", NULL, &norm, text, sizeof text) == NVTE_OK);
  CHECK(!strcmp(text, "rmsnorm_forward on cpu:0: runs cpu"));
  CHECK(nvte_workspace("rmsnorm_forward", NULL, &norm, &bytes) == NVTE_OK);
  nvte_exec exec = NVTE_EXEC_INIT;
  exec.implementation = "gpu";
  CHECK(nvte_rmsnorm_forward(&exec, &norm) == NVTE_ERR_NOT_FOUND);
  exec.implementation = NULL;
  exec.device.device_type = kDLCUDA;
  CHECK(nvte_rmsnorm_forward(&exec, &norm) == NVTE_ERR_INVALID_ARGUMENT); /* the tensors are the CPU's */
  puts("ok");
  return 0;
}
