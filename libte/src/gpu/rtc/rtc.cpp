// SPDX-License-Identifier: Apache-2.0
#include "gpu/rtc/rtc.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/log.h"
#include "gpu/rtc/cache.h"
#include "gpu/vendor/rtc.h"

namespace te::gpu::rtc {
namespace {

std::string setting(const char *key) {
  char text[4096] = "";
  return host().config_get(key, text, sizeof text, nullptr) == NVTE_OK ? text : "";
}
bool disabled() {
  static const bool is = setting("NVTE_DISABLE_NVRTC") == "1";
  return is;
}
const Cache &cache() {
  static const Cache &c = *new Cache(cache_folder(setting("cache.dir"), setting("XDG_CACHE_HOME"), setting("HOME")));
  return c;
}
void say(int level, const std::string &text) { host().log(level, text.c_str()); }

std::vector<std::string> options(const std::string &chip, const Program &program, const Values &values) {
  std::vector<std::string> all = {"-std=c++17", "-DTE_RTC=1"};
#if defined(TE_VENDOR_HIP)
  for (const char *o : {"-O3", "-ffp-contract=off", "-D__HIP_PLATFORM_AMD__"}) all.push_back(o);
  all.push_back("--offload-arch=" + chip);
#else
  all.push_back("-fmad=false");
  all.push_back("-arch=" + chip);
#endif
  for (int i = 0; i < kDefines && program.defines[i]; i++) all.push_back(std::string("-D") + program.defines[i] + "=" + std::to_string(values[(size_t)i]));
  return all;
}

const char *source(const char *file) {
  for (size_t i = 0; i < kSourceCount; i++)
    if (kSources[i].name == std::string(file)) return kSources[i].text;
  return "#error this file is not among the library's sources\n";
}

// Empty, or the compiler's first complaint.
std::string compile(const Functions &f, const Program &program, const std::vector<std::string> &with, std::string *code) {
  std::vector<const char *> names, texts, arguments;
  for (size_t i = 0; i < kSourceCount; i++) names.push_back(kSources[i].name), texts.push_back(kSources[i].text);
  for (const std::string &o : with) arguments.push_back(o.c_str());
  void *p = nullptr;
  int status = f.create(&p, source(program.file), program.file, (int)names.size(), texts.data(), names.data());
  if (status != 0) return f.error(status);
  size_t size = 0;
  std::string why;
  if ((status = f.compile(p, (int)arguments.size(), arguments.data())) != 0) {
    std::string log;
    if (f.log_size(p, &size) == 0 && size > 1) {
      log.resize(size);
      if (f.log(p, &log[0]) != 0) log.clear();
    }
    const size_t at = log.find("error");
    const size_t line = at == std::string::npos ? 0 : log.rfind('\n', at) == std::string::npos ? 0 : log.rfind('\n', at) + 1;
    why = std::string(f.error(status)) + ": " + log.substr(line, log.find('\n', line) - line);
  } else if ((status = f.code_size(p, &size)) != 0 || (code->resize(size), status = f.code(p, &(*code)[0])) != 0) {
    why = f.error(status);
  }
  f.destroy(&p);
  return why;
}

// Everything that the code depends on.
std::string key_of(const Functions &f, const Program &program, const std::vector<std::string> &with) {
  int major = 0, minor = 0;
  (void)f.version(&major, &minor);
  std::string key = "libte " + std::to_string(host().library_version) + "\n" + kCompiler + " " + std::to_string(major) + "." + std::to_string(minor) + "\n" + program.file;
  for (const std::string &o : with) key += "\n" + o;
  std::string sources;
  for (size_t i = 0; i < kSourceCount; i++) sources += kSources[i].text;
  return key + "\n" + std::to_string(hash(sources)) + "\n";
}

// A kernel, or why there is none, for one device and set of values; decided once.
struct Made {
  void *kernel = nullptr;
  std::string why;
};
Made make(int device, const Program &program, const Values &values) {
  Made m;
  const Functions &f = functions();
  char chip_name[256];
  chip(device, chip_name, sizeof chip_name);
  if (!*chip_name) return m.why = "the device does not say which chip it is", m;
  const std::vector<std::string> with = options(chip_name, program, values);
  const std::string key = key_of(f, program, with);
  std::string code, unkept;
  m.why = obtain(cache(), key, [&](std::string *out) { return compile(f, program, with, out); }, &code, &unkept);
  if (!unkept.empty()) say(kLogInfo, "run-time compilation: the code of " + std::string(program.file) + " is not kept: " + unkept);
  if (!m.why.empty()) return m.why = "it was not compiled: " + m.why, m;
  // a thread that never used the device has no context of it yet
  if (hipSetDevice(device) != hipSuccess) return m.why = "the device cannot be used", m;
  if (const char *why = load(code.data(), program.kernel, &m.kernel)) m.why = std::string("its code was not loaded: ") + why;
  return m;
}

}  // namespace

const char *find(const nvte_exec &exec, const Program &program, const Values &values, void **kernel) {
  if (disabled()) return "NVTE_DISABLE_NVRTC is set";
  if (functions().missing) return functions().missing;
  static std::mutex mutex;
  static auto *all = new std::map<std::tuple<int, const Program *, Values>, Made>;  // never destroyed: calls may come late
  std::lock_guard<std::mutex> lock(mutex);
  const auto at = all->find({exec.device.device_id, &program, values});
  const Made *made = at == all->end() ? nullptr : &at->second;
  if (!made) {
    hipStreamCaptureStatus capture = hipStreamCaptureStatusNone;
    (void)hipStreamIsCapturing(stream_of(exec), &capture);
    if (capture != hipStreamCaptureStatusNone) return "it is not compiled yet, and the stream is being captured";
    const DeviceScope scope(exec);
    if (scope.status() != NVTE_OK) return "the device cannot be used";
    made = &((*all)[{exec.device.device_id, &program, values}] = make(exec.device.device_id, program, values));
    if (!made->why.empty()) say(kLogWarning, std::string("run-time compilation of ") + program.file + ": " + made->why + "; the precompiled kernel runs");
  }
  *kernel = made->kernel;
  return made->why.empty() ? nullptr : made->why.c_str();
}

nvte_status launch_pointers(const nvte_exec &exec, void *kernel, dim3 grid, int threads, const char *what, void **arguments) {
  if (const nvte_status s = check(hipSetDevice(exec.device.device_id), "exec.device")) return s;
  const char *error = nullptr;
  const int status = launch(kernel, grid, threads, stream_of(exec), arguments, overlaps(exec), &error);
  return status == 0 ? NVTE_OK : fail(NVTE_ERR_DEVICE, "%s: %s (" TE_GPU_NAME " error %d)", what, error, status);
}

}  // namespace te::gpu::rtc
