// SPDX-License-Identifier: Apache-2.0
// Stands in for libFuzzer where there is only g++: seeded inputs for some seconds, or the files named on the command line.
//     fuzz_ops [--seconds=S] [--seed=N] [FILE...]
// A crash prints the seed of the input before it, so --seed=N --runs=1 replays it.
#include <csignal>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <unistd.h>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t current;
static void crashed(int signal) {
  char text[96];
  const int n = snprintf(text, sizeof text, "signal %d: replay with --runs=1 --seed=%llu\n", signal, (unsigned long long)current);
  if (write(2, text, (size_t)n) < 0) _exit(3);
  _exit(1);
}

int main(int argc, char **argv) {
  double seconds = 3;
  uint64_t seed = 1, runs = 0, done = 0;
  bool files = false;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(s, crashed);
  for (int i = 1; i < argc; i++) {
    if (!strncmp(argv[i], "--seconds=", 10)) seconds = atof(argv[i] + 10);
    else if (!strncmp(argv[i], "--seed=", 7)) seed = strtoull(argv[i] + 7, nullptr, 0);
    else if (!strncmp(argv[i], "--runs=", 7)) runs = strtoull(argv[i] + 7, nullptr, 0);
    else {
      files = true;
      std::ifstream in(argv[i], std::ios::binary);
      const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
      LLVMFuzzerTestOneInput((const uint8_t *)bytes.data(), bytes.size());
    }
  }
  if (files) return 0;
  const auto start = std::chrono::steady_clock::now();
  std::vector<uint8_t> input(2048);
  for (; runs ? done < runs : std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds; done++, seed++) {
    current = seed;
    uint64_t z = seed;
    for (size_t i = 0; i < input.size(); i += 8) {  // splitmix64
      uint64_t x = z += 0x9e3779b97f4a7c15ull;
      x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
      x = (x ^ x >> 27) * 0x94d049bb133111ebull;
      x ^= x >> 31;
      memcpy(&input[i], &x, 8);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  printf("%llu inputs, last seed %llu\n", (unsigned long long)done, (unsigned long long)(seed - 1));
  return done ? 0 : 1;
}
