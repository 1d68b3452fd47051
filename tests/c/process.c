/* SPDX-License-Identifier: Apache-2.0
 * What needs a process of its own: loading, symbols, clashes, fork, exit, the environment. The library is opened with dlopen, as
 * Python does.  process COMMAND /path/libte.so [arguments]; exit status 0 = as it should be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libte/init.h"

static struct {
  uint32_t (*version)(void);
  const char *(*last_error)(void);
  const nvte_op *(*op_find)(const char *);
  size_t (*op_count)(void);
  nvte_status (*device_count)(int32_t, int32_t *);
  nvte_status (*config_get)(const char *, char *, size_t, size_t *);
  nvte_status (*config_set)(const char *, const char *);
  nvte_status (*set_num_threads)(int32_t);
  nvte_status (*backend_load)(const char *);
} te;
static void *library;

#define CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__, #x, te.last_error ? te.last_error() : "-"); \
      exit(1); \
    } \
  } while (0)

static void *symbol(const char *name) {
  void *p = dlsym(library, name);
  if (!p) {
    fprintf(stderr, "no symbol %s: %s\n", name, dlerror());
    exit(1);
  }
  return p;
}
#define GET(name) *(void **)&te.name = symbol("nvte_" #name)

static void open_library(const char *path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "dlopen: %s\n", dlerror());
    exit(1);
  }
  GET(version);
  GET(last_error);
  GET(op_find);
  GET(op_count);
  GET(device_count);
  GET(config_get);
  GET(config_set);
  GET(set_num_threads);
  GET(backend_load);
}

enum { kN = 1 << 18 };  /* enough for the pool to be used */
static float x[kN], y[kN];

/* Dropout over kN ones with p = 1/2: the kept elements are 2. Returns their sum, or -1. */
static double work(void) {
  int64_t shape[1] = {kN}, two[1] = {2}, rng[2] = {1, 0};
  nvte_tensor tx = NVTE_TENSOR_INIT, ty = NVTE_TENSOR_INIT, tr = NVTE_TENSOR_INIT;
  nvte_dropout_forward_args a = NVTE_DROPOUT_FORWARD_ARGS_INIT;
  double sum = 0;
  for (int i = 0; i < kN; i++) x[i] = 1;
  tx.data.data = x;
  ty.data.data = y;
  tr.data.data = rng;
  tx.data.ndim = ty.data.ndim = tr.data.ndim = 1;
  tx.data.shape = ty.data.shape = shape;
  tr.data.shape = two;
  tx.data.dtype = ty.data.dtype = (DLDataType){kDLFloat, 32, 1};
  tr.data.dtype = (DLDataType){kDLInt, 64, 1};
  a.x = &tx;
  a.y = &ty;
  a.rng_state = &tr;
  a.p = 0.5f;
  if (te.op_find("dropout_forward")->run(NULL, &a) != NVTE_OK) return -1;
  for (int i = 0; i < kN; i++) sum += y[i];
  return sum;
}
static int good(double sum) { return sum > 0.9 * kN && sum < 1.1 * kN; }

/* I01: no driver, no plug-in: loading works, the version answers, a device call returns a status. */
static void no_driver(void) {
  int32_t n = -1;
  CHECK(te.version() == (NVTE_VERSION_MAJOR << 16 | NVTE_VERSION_MINOR << 8 | NVTE_VERSION_PATCH));
  for (int type = kDLCUDA; type <= kDLROCM; type += kDLROCM - kDLCUDA) {
    CHECK(te.device_count(type, &n) == NVTE_ERR_UNSUPPORTED);
    CHECK(n == 0);
    CHECK(strstr(te.last_error(), type == kDLCUDA ? "libte_cuda.so" : "libte_hip.so"));
  }
  CHECK(te.device_count(kDLCPU, &n) == NVTE_OK && n == 1);
  CHECK(good(work()));
}

/* I03: RTLD_LOCAL stays local, and the inside is not to be seen at all. */
static void symbols(void) {
  static const char *const inside[] = {"_ZN2te4failEiPKcz", "_ZN2te10last_errorEv", "_ZN2te7find_opEPKc", "_ZN2te3cpu8parallelEllPFvPvlES1_",
                                       "_ZN2te7call_opEPKcPK9nvte_execPKv"};
  CHECK(dlsym(RTLD_DEFAULT, "nvte_version") == NULL);
  for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
    CHECK(dlsym(RTLD_DEFAULT, inside[i]) == NULL);
    CHECK(dlsym(library, inside[i]) == NULL);
  }
}

/* I04: another library exports the same names, loaded before or after. */
static void clash(const char *path, const char *other, int before) {
  if (!before) open_library(path);
  if (!dlopen(other, RTLD_NOW | RTLD_GLOBAL)) {
    fprintf(stderr, "dlopen: %s\n", dlerror());
    exit(1);
  }
  if (before) open_library(path);
  uint32_t (*theirs)(void);
  *(void **)&theirs = dlsym(RTLD_DEFAULT, "nvte_version");
  CHECK(theirs && theirs() == 0xdead);
  CHECK(te.version() != 0xdead);
  CHECK(te.op_find("no_such") == NULL);
  CHECK(te.op_find("dropout_forward")->run(NULL, NULL) == NVTE_ERR_INVALID_ARGUMENT);
  CHECK(!strcmp(te.last_error(), "nvte_dropout_forward: args is NULL"));
  CHECK(te.op_count() > 0);
  CHECK(good(work()));
}

static int child_status(pid_t pid) {
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

/* I06: open, fork, use in the child; use, fork, use in the child. */
static void forks(void) {
  for (int used = 0; used < 2; used++) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(150);
      _exit(good(work()) ? 0 : 1);
    }
    CHECK(child_status(pid) == 0);
    CHECK(good(work()));
  }
  const pid_t pid = fork(); /* and an orderly exit in the child */
  if (pid == 0) {
    alarm(150);
    exit(good(work()) ? 0 : 1);
  }
  CHECK(child_status(pid) == 0);
}

static void use_at_exit(void) {
  if (!good(work())) _exit(3);
}
static void *use_for_ever(void *unused) {
  (void)unused;
  for (;;) work();
  return NULL;
}
static void *exit_here(void *unused) {
  (void)unused;
  exit(good(work()) ? 0 : 1);
}

/* I11: leave without ceremony: with the pool warm, in atexit, from another thread, while a thread is calling, after dlclose. */
static void exits(int how) {
  pthread_t t;
  alarm(150);
  CHECK(good(work()));
  if (how == 1) atexit(use_at_exit);
  if (how == 2) {
    CHECK(pthread_create(&t, NULL, exit_here, NULL) == 0);
    pthread_join(t, NULL);
  }
  if (how == 3) CHECK(pthread_create(&t, NULL, use_for_ever, NULL) == 0);
  if (how == 4) {
    CHECK(dlclose(library) == 0);
    usleep(20000);
  }
  exit(0);
}

/* The environment: process environment LIB KEY STATUS [TEXT]: config_get and an operator call give STATUS; the message has TEXT. */
static void environment(const char *key, int want, const char *text) {
  char buf[64];
  const nvte_status s = te.config_get(key, buf, sizeof buf, NULL);
  if (s != want) {
    fprintf(stderr, "config_get(%s) is %d, expected %d: %s\n", key, (int)s, want, te.last_error());
    exit(1);
  }
  CHECK(s == NVTE_OK ? !strcmp(buf, text) : strstr(te.last_error(), text) != NULL);
  if (strncmp(key, "NVTE_", 5)) {
    const double sum = work();
    CHECK(want == NVTE_OK ? good(sum) : sum == -1 && strstr(te.last_error(), text) != NULL);
  }
  if (want != NVTE_OK) { /* and a set mends it */
    CHECK(te.config_set(key, strcmp(key, "cpu.isa") ? "1" : "base") == NVTE_OK || te.config_set(key, "error") == NVTE_OK);
    CHECK(good(work()));
  }
}

/* The null device through the real library: every operator is there, and plug-ins that link libte get the copy in the process. */
static void null_device(const char *plug_in) {
  int32_t n = 0;
  CHECK(te.backend_load(plug_in) == NVTE_OK);
  CHECK(te.device_count(kDLExtDev, &n) == NVTE_OK && n == 2);
  nvte_status (*implementations)(const char *, int32_t, const char **, size_t *);
  *(void **)&implementations = symbol("nvte_op_implementations");
  const nvte_op *(*op_at)(size_t);
  *(void **)&op_at = symbol("nvte_op_at");
  for (size_t i = 0; i < te.op_count(); i++) {
    const char *name = NULL;
    size_t count = 1;
    CHECK(implementations(op_at(i)->name, kDLExtDev, &name, &count) == NVTE_OK);
    CHECK(count == 1 && !strcmp(name, "null"));
  }
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const char *command = argv[1];
  if (!strncmp(command, "clash", 5)) {
    clash(argv[2], argv[3], !strcmp(command, "clash_before"));
    return 0;
  }
  open_library(argv[2]);
  te.set_num_threads(4);
  if (!strcmp(command, "no_driver")) no_driver();
  else if (!strcmp(command, "symbols")) symbols();
  else if (!strcmp(command, "fork")) forks();
  else if (!strcmp(command, "exit")) exits(atoi(argv[3]));
  else if (!strcmp(command, "environment")) environment(argv[3], atoi(argv[4]), argc > 5 ? argv[5] : "");
  else if (!strcmp(command, "null")) null_device(argv[3]);
  else return 2;
  return 0;
}
