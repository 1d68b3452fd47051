// SPDX-License-Identifier: Apache-2.0
#include "harness/case.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace te::test {
namespace {

std::vector<std::string> split(const std::string &s, char by) {
  std::vector<std::string> r;
  std::stringstream in(s);
  for (std::string part; std::getline(in, part, by);) r.push_back(part);
  return r;
}

int64_t to_int(const std::string &key, const std::string &v) {
  size_t used = 0;
  const int64_t n = std::stoll(v, &used, 0);
  if (used != v.size()) throw std::runtime_error("case key " + key + ": '" + v + "' is not an integer");
  return n;
}

// "3..17" -> a number of that range; anything else unchanged. Ranges work inside lists too ("2,1..9").
std::string draw(const std::string &v, uint64_t seed) {
  std::string r;
  uint64_t k = 0;
  for (const std::string &part : split(v, ',')) {
    const size_t dots = part.find("..");
    std::string one = part;
    if (dots != std::string::npos) {
      const int64_t lo = to_int("range", part.substr(0, dots)), hi = to_int("range", part.substr(dots + 2));
      one = std::to_string(lo + (int64_t)(mix(seed, k) % (uint64_t)(hi - lo + 1)));
    }
    r += (k++ ? "," : "") + one;
  }
  return r;
}

}  // namespace

Group parse_group(const std::string &t) {
  if (t == "smoke") return Group::smoke;
  if (t == "ci") return Group::ci;
  if (t == "all") return Group::all;
  throw std::runtime_error("group must be smoke, ci or all, got '" + t + "'");
}

uint64_t mix(uint64_t seed, uint64_t index) {  // splitmix64's finaliser over a Weyl sequence
  uint64_t z = seed * 0x9e3779b97f4a7c15ull + (index + 1) * 0xd1342543de82ef95ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
uint64_t hash(const std::string &s) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : s) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

std::map<std::string, std::set<std::string>> &Case::keys_read() {
  static std::map<std::string, std::set<std::string>> m;
  return m;
}
bool Case::has(const std::string &key) const {
  keys_read()[file].insert(key);
  return values.count(key) != 0;
}
std::string Case::s(const std::string &key) const {
  if (!has(key)) throw std::runtime_error("case " + id + ": no key '" + key + "'");
  return values.at(key);
}
std::string Case::s(const std::string &key, const std::string &fallback) const { return has(key) ? values.at(key) : fallback; }
int64_t Case::i(const std::string &key) const { return to_int(key, s(key)); }
int64_t Case::i(const std::string &key, int64_t fallback) const { return has(key) ? i(key) : fallback; }
double Case::f(const std::string &key) const { return std::stod(s(key)); }
double Case::f(const std::string &key, double fallback) const { return has(key) ? f(key) : fallback; }
Shape Case::shape(const std::string &key) const {
  Shape r;
  for (const std::string &part : split(s(key), ',')) r.push_back(to_int(key, part));
  return r;
}
DType Case::dtype(const std::string &key) const { return parse_dtype(s(key)); }
DType Case::dtype(const std::string &key, DType fallback) const { return has(key) ? dtype(key) : fallback; }
bool Case::applies_to(const std::string &op) const {
  const auto it = values.find("op");
  if (it == values.end()) return true;
  for (const std::string &want : split(it->second, ','))
    if (op == want || (op.size() > want.size() && op.compare(op.size() - want.size() - 1, std::string::npos, "_" + want) == 0)) return true;
  return false;
}

#if defined(TE_EMBEDDED_CASES)
extern const Embedded kEmbedded[];
extern const size_t kEmbeddedCount;
#endif
bool read_file(const std::string &directory, const std::string &name, std::string &text) {
#if defined(TE_EMBEDDED_CASES)
  for (size_t i = 0; directory == "embedded" && i < kEmbeddedCount; i++)
    if (name == kEmbedded[i].name) {
      text = kEmbedded[i].text;
      return true;
    }
#endif
  std::ifstream in(directory + "/" + name);
  if (!in) return false;
  text.assign(std::istreambuf_iterator<char>(in), {});
  return true;
}

std::vector<Case> read_cases(const std::string &directory, const std::string &folder, Group group, uint64_t seed) {
  const std::string path = directory + "/" + folder + ".txt";
  std::string text;
  if (!read_file(directory, folder + ".txt", text)) throw std::runtime_error("no case file " + path);
  std::istringstream in(text);
  std::vector<Case> cases;
  std::set<std::string> ids;
  Group now = Group::smoke;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    number++;
    line = line.substr(0, line.find('#'));
    std::stringstream words(line);
    std::string word;
    if (!(words >> word)) continue;
    if (word.front() == '[' && word.back() == ']') {
      now = parse_group(word.substr(1, word.size() - 2));
      continue;
    }
    Case base;
    base.id = word;
    base.group = now;
    base.seed = seed;
    base.file = folder;
    int64_t repeat = 0;
    std::vector<std::pair<std::string, std::vector<std::string>>> alternatives;
    while (words >> word) {
      const size_t eq = word.find('=');
      if (eq == std::string::npos) throw std::runtime_error(path + ":" + std::to_string(number) + ": '" + word + "' is not key=value");
      const std::string key = word.substr(0, eq), value = word.substr(eq + 1);
      if (key == "repeat") repeat = to_int(key, value);
      else if (value.find('|') != std::string::npos) alternatives.push_back({key, split(value, '|')});
      else base.values[key] = value;
    }
    if (now > group) continue;
    // repeat = n: n cases with everything drawn; else all combinations of the alternatives
    size_t total = 1;
    for (auto &a : alternatives) total *= a.second.size();
    if (repeat) total = (size_t)repeat;
    for (size_t k = 0; k < total; k++) {
      Case c = base;
      if (repeat) c.id += "." + std::to_string(k);
      size_t rest = k;
      for (auto &a : alternatives) {
        const size_t pick = repeat ? mix(seed ^ hash(c.id + a.first), 1) % a.second.size() : rest % a.second.size();
        rest /= a.second.size();
        c.values[a.first] = a.second[pick];
        if (!repeat) c.id += "." + a.second[pick];
      }
      for (auto &v : c.values)
        if (v.second.find("..") != std::string::npos) v.second = draw(v.second, seed ^ hash(c.id + v.first));
      if (!ids.insert(c.id).second) throw std::runtime_error(path + ":" + std::to_string(number) + ": case '" + c.id + "' is there twice");
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace te::test
