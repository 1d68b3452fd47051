/* SPDX-License-Identifier: Apache-2.0
 * libte: version, status codes, last error, configuration and log. C11 and C++17.
 *
 * Every function returns a status; nothing throws across this boundary. The message of the last failure on the calling
 * thread is nvte_last_error(). Strings returned by libte are UTF-8, NUL-terminated and owned by libte. */
#ifndef LIBTE_BASE_H
#define LIBTE_BASE_H

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#if defined(_WIN32)
#define NVTE_API
#else
#define NVTE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define NVTE_VERSION_MAJOR 0
#define NVTE_VERSION_MINOR 1
#define NVTE_VERSION_PATCH 0
/* The plug-in and struct layout version: a plug-in built for another major number is refused. */
#define NVTE_ABI_VERSION 0

/* Ranks up to this are accepted everywhere; callers of nvte_infer lend shape arrays of this length. */
#define NVTE_MAX_DIMS 8

typedef int32_t nvte_status;

/* 0 is success. 1-31: the caller can fix it. 32-63: legal, but not possible here. 64-95: the machine. 96-: a fault of libte. */
enum {
  NVTE_OK = 0,
  NVTE_ERR_INVALID_ARGUMENT = 1, /* a value, shape, dtype, layout or pointer breaks a documented rule */
  NVTE_ERR_VERSION = 2,          /* a struct, capsule or plug-in of a version this build does not speak */
  NVTE_ERR_CONFIG = 3,           /* a configuration key or environment variable is unknown or has a bad value */
  NVTE_ERR_WORKSPACE = 4,        /* exec->workspace is too small; the message carries the needed size */
  NVTE_ERR_UNSUPPORTED = 32,     /* no implementation takes the request; the message lists each refusal */
  NVTE_ERR_NOT_FOUND = 33,       /* no operator, implementation, library or file of that name */
  NVTE_ERR_OUT_OF_MEMORY = 64,
  NVTE_ERR_DEVICE = 65,  /* the device, its driver or its runtime reported an error */
  NVTE_ERR_IO = 66,      /* a file could not be read or written */
  NVTE_ERR_INTERNAL = 96 /* a fault of libte: please report the message */
};

/* Returns (major << 16) | (minor << 8) | patch of the library that was loaded. Since 0.1. */
NVTE_API uint32_t nvte_version(void);

/* Returns the name of a status ("NVTE_ERR_WORKSPACE"); "NVTE_ERR_UNKNOWN" for a number that is none. Since 0.1. */
NVTE_API const char *nvte_status_name(nvte_status status);

/* Returns the message of the last failed call on this thread, "" if none failed. It names the function, the argument, the
 * rule and the value. Valid until the next failing call on the thread. Since 0.1. */
NVTE_API const char *nvte_last_error(void);

/* Copies the value of a configuration key ("num_threads", "cpu.isa", "log.level", "cache.dir", ...) as text into buf
 * (size bytes, always terminated where size > 0). *length, if given, receives the full length without the terminator.
 * A key is the environment variable LIBTE_<KEY> with '.' as '_'; upstream's variables keep their own names.
 * NVTE_ERR_NOT_FOUND  no such key
 * NVTE_ERR_CONFIG     the environment holds a value that the key does not take; the message lists what it takes
 * Since 0.1. */
NVTE_API nvte_status nvte_config_get(const char *key, char *buf, size_t size, size_t *length);

/* Sets a configuration key for the process, from text. Overrides the environment. Keys marked "startup" in their help are
 * refused with NVTE_ERR_CONFIG once they have been read. Since 0.1. */
NVTE_API nvte_status nvte_config_set(const char *key, const char *value);

/* One row of the configuration table. */
typedef struct nvte_config_entry {
  size_t struct_size;
  const char *key;           /* "num_threads" */
  const char *environment;   /* "LIBTE_NUM_THREADS" */
  const char *type;          /* "int", "bool", "string", "choice" */
  const char *default_value; /* as text */
  const char *choices;       /* what it takes, as text */
  const char *help;          /* one sentence */
} nvte_config_entry;

/* Number of rows, and row i (NULL past the end). Since 0.1. */
NVTE_API size_t nvte_config_count(void);
NVTE_API const nvte_config_entry *nvte_config_at(size_t i);

/* Receives each log line (trace, warnings). level: 0 trace, 1 info, 2 warning, 3 error. May be called from any thread. */
typedef void (*nvte_log_fn)(int32_t level, const char *message, void *context);

/* Replaces the log sink (default: standard error). NULL restores it. Since 0.1. */
NVTE_API nvte_status nvte_log_set(nvte_log_fn sink, void *context);

/* Sets the number of threads that the CPU back end may use in this process, the caller included; it wins over the key
 * num_threads. 0 = back to the configuration. Results do not depend on it. Since 0.1. */
NVTE_API nvte_status nvte_set_num_threads(int32_t n);

/* Returns the number of threads in use now. Since 0.1. */
NVTE_API int32_t nvte_get_num_threads(void);

#ifdef __cplusplus
}
#endif
#endif
