/* SPDX-License-Identifier: Apache-2.0
 * A profiler's library for the tests: writes "push NAME" and "pop" lines to the file that RANGES_SEEN names. -DPUSH= and -DPOP= give its functions' names. */
#include <stdio.h>
#include <stdlib.h>

static int line(const char *word, const char *name) {
  FILE *f = fopen(getenv("RANGES_SEEN"), "a");
  if (!f) return -1;
  fprintf(f, "%s%s%s\n", word, name ? " " : "", name ? name : "");
  return fclose(f);
}

int PUSH(const char *name);
int POP(void);
int PUSH(const char *name) { return line("push", name); }
int POP(void) { return line("pop", NULL); }
