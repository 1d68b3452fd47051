// SPDX-License-Identifier: Apache-2.0
// Compiled code on disk, found by everything that it depends on. Files appear whole (written under another name, then renamed), so processes that
// start together need no lock; one that is damaged, or of another key, counts as absent and is written anew.
#pragma once
#include <string>

namespace te::gpu::rtc {

class Cache {
 public:
  // folder empty: nothing is kept.
  explicit Cache(std::string folder) : folder_(std::move(folder)) {}
  bool find(const std::string &key, std::string *code) const;
  // Makes the folder where it is missing. Empty, or why the code could not be kept.
  std::string add(const std::string &key, const std::string &code) const;
  std::string path(const std::string &key) const;

 private:
  std::string folder_;
};

// The folder of the setting cache.dir, else of XDG_CACHE_HOME, else of HOME; empty where none is set.
std::string cache_folder(const std::string &set, const std::string &xdg, const std::string &home);

// 64 bits of a text, for file names and checksums.
unsigned long long hash(const std::string &text);

// The code of `key`: kept, or made by compile(&code), which returns empty or why it failed, and kept from now on. Empty, or that reason;
// *unkept: why the cache did not take it.
template <class Compile> std::string obtain(const Cache &cache, const std::string &key, Compile &&compile, std::string *code, std::string *unkept) {
  if (cache.find(key, code)) return {};
  std::string why = compile(code);
  if (why.empty()) *unkept = cache.add(key, *code);
  return why;
}

}  // namespace te::gpu::rtc
