// SPDX-License-Identifier: Apache-2.0
#include "gpu/rtc/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

namespace te::gpu::rtc {
namespace {

// A file: this line with the lengths and the code's checksum, the key, the code.
std::string header(const std::string &key, const std::string &code) {
  char text[128];
  snprintf(text, sizeof text, "libte code 1 %zu %zu %016llx\n", key.size(), code.size(), hash(code));
  return text;
}

bool read_file(const std::string &path, std::string *out) {
  FILE *f = fopen(path.c_str(), "rb");
  if (!f) return false;
  char part[1 << 16];
  out->clear();
  for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) out->append(part, n);
  const bool ok = !ferror(f);
  fclose(f);
  return ok;
}

std::string problem(const char *what, const std::string &path) { return std::string(what) + " " + path + ": " + strerror(errno); }

std::string make_folders(const std::string &folder) {
  for (size_t at = 1; at != std::string::npos;) {
    at = folder.find('/', at);
    const std::string part = folder.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return problem("cannot make the folder", part);
    if (at != std::string::npos) at++;
  }
  return {};
}

bool write_all(int file, const std::string &text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(file, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) at += (size_t)n;
  }
  return true;
}

}  // namespace

unsigned long long hash(const std::string &text) {  // FNV-1a
  unsigned long long h = 0xcbf29ce484222325;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

std::string cache_folder(const std::string &set, const std::string &xdg, const std::string &home) {
  if (!set.empty()) return set;
  if (!xdg.empty()) return xdg + "/libte";
  return home.empty() ? "" : home + "/.cache/libte";
}

std::string Cache::path(const std::string &key) const {
  char name[32];
  snprintf(name, sizeof name, "/%016llx.co", hash(key));
  return folder_ + name;
}

bool Cache::find(const std::string &key, std::string *code) const {
  std::string text;
  if (folder_.empty() || !read_file(path(key), &text)) return false;
  const size_t line = text.find('\n');
  if (line == std::string::npos || text.compare(line + 1, key.size(), key) != 0) return false;
  const std::string body = text.substr(line + 1 + key.size());
  if (text.compare(0, line + 1, header(key, body)) != 0) return false;
  *code = body;
  return true;
}

std::string Cache::add(const std::string &key, const std::string &code) const {
  if (folder_.empty()) return "no folder: set LIBTE_CACHE_DIR";
  if (const std::string why = make_folders(folder_); !why.empty()) return why;
  static std::atomic<unsigned> count{0};
  const std::string final = path(key), unfinished = final + "." + std::to_string(getpid()) + "." + std::to_string(count++);
  const int file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return problem("cannot write", unfinished);
  bool ok = write_all(file, header(key, code) + key + code);
  ok = close(file) == 0 && ok;
  if (ok && rename(unfinished.c_str(), final.c_str()) == 0) return {};
  const std::string why = problem("cannot write", final);
  unlink(unfinished.c_str());
  return why;
}

}  // namespace te::gpu::rtc
