/* SPDX-License-Identifier: Apache-2.0
 * The workspaces of each thread that calls through the shim. */
#include "shim.h"

static pthread_key_t key;
static int key_made;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void release(void *p) {
  te_memory *m = p;
  free(m->data);
  while (m) {
    te_memory *next = m->next;
    free(m);
    m = next;
  }
}
static void make_key(void) { key_made = pthread_key_create(&key, release) == 0; }

te_memory *te_thread_workspace(void) {
  pthread_once(&once, make_key);
  if (!key_made) return NULL;
  te_memory *m = pthread_getspecific(key);
  if (!m && (m = calloc(1, sizeof *m)) && pthread_setspecific(key, m)) {
    free(m);
    m = NULL;
  }
  return m;
}
