// SPDX-License-Identifier: Apache-2.0
// Choice, refusal, forcing, explaining, plug-ins, and calls from many threads.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "../core/tensors.h"
#include "core/op.h"
#include "core/platform.h"
#include "libte/init.h"

namespace te::test {
namespace {

constexpr DLDeviceType kDevice = kDLHexagon;  // a type that no plug-in serves
std::string ran;

template <const char *const &Name> nvte_status note(const nvte_exec *, const void *) { return ran = Name, NVTE_OK; }
const char *const kPicky = "picky", *const kPlain = "plain", *const kGreedy = "greedy", *const kThrows = "throws";

const nvte_implementation kRows[] = {
    // asked last
    {sizeof(nvte_implementation), "dropout_backward", "plain", 0, 0, nullptr, nullptr, note<kPlain>},
    {sizeof(nvte_implementation), "dropout_backward", "greedy", 5, 0,
     [](const nvte_exec *, const void *a) -> const char * { return static_cast<const nvte_dropout_backward_args *>(a)->p == 0.5f ? nullptr : "p must be 0.5"; },
     [](const nvte_exec *, const void *, size_t *n) -> nvte_status { return *n = 1000, NVTE_OK; }, note<kGreedy>},
    // asked first
    {sizeof(nvte_implementation), "dropout_backward", "picky", 9, 0, [](const nvte_exec *, const void *) -> const char * { return "never"; }, nullptr, note<kPicky>},
    {sizeof(nvte_implementation), "dropout_forward", "throws", 0, 0, nullptr, nullptr,
     [](const nvte_exec *, const void *) -> nvte_status { throw std::bad_alloc(); }},
    {sizeof(nvte_implementation), "compute_amax", "mute", 0, 0, nullptr, nullptr, [](const nvte_exec *, const void *) -> nvte_status { return NVTE_ERR_DEVICE; }},
};
nvte_backend kBackend = {sizeof(nvte_backend), NVTE_ABI_VERSION, kDevice, "test", kRows, std::size(kRows), nullptr, nullptr};

class Dispatch : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(nvte_backend_register(&kBackend), NVTE_OK) << error();
    ran.clear();
    a.dy = dy;
    a.mask = mask;
    a.dx = dx;
    for (Owned *t : {&dy, &mask, &dx}) t->t.data.device = {kDevice, 0};
  }
  void TearDown() override { EXPECT_EQ(nvte_backend_remove("test"), NVTE_OK); }
  Owned dy{kF32, {16}}, mask{kU8, {2}}, dx{kF32, {16}};
  nvte_dropout_backward_args a = NVTE_DROPOUT_BACKWARD_ARGS_INIT;
  nvte_exec exec = {sizeof(nvte_exec), {kDevice, 0}, nullptr, nullptr, 0, nullptr, 0, 0};
  alignas(256) char workspace[1024];

  std::string explain(const char *op, const void *args) {
    char text[512];
    EXPECT_EQ(nvte_explain(op, &exec, args, text, sizeof text), NVTE_OK) << error();
    return text;
  }
};

TEST_F(Dispatch, TheFirstThatDoesNotRefuse) {
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_OK) << error();
  EXPECT_EQ(ran, "plain");
  EXPECT_EQ(explain("dropout_backward", &a), "dropout_backward on device type 16:0: runs plain; refused: picky: never; greedy: p must be 0.5");
  const char *names[8];
  size_t n = 8;
  ASSERT_EQ(nvte_op_implementations("dropout_backward", kDevice, names, &n), NVTE_OK);
  ASSERT_EQ(n, 3u);
  EXPECT_STREQ(names[0], "picky");
  EXPECT_STREQ(names[1], "greedy");
  EXPECT_STREQ(names[2], "plain");
  n = 1;
  EXPECT_EQ(nvte_op_implementations("dropout_backward", kDevice, names, &n), NVTE_OK);
  EXPECT_EQ(n, 3u);
  EXPECT_EQ(nvte_op_implementations("nothing", kDevice, names, &n), NVTE_ERR_NOT_FOUND);
}

TEST_F(Dispatch, WorkspaceIsAskedForAndChecked) {
  a.p = 0.5f;
  size_t bytes = 0;
  ASSERT_EQ(nvte_workspace("dropout_backward", &exec, &a, &bytes), NVTE_OK) << error();
  EXPECT_EQ(bytes, 1000u);
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_WORKSPACE);
  EXPECT_EQ(error(), "nvte_dropout_backward: greedy needs 1000 bytes of workspace, got 0");
  EXPECT_EQ(ran, "");
  exec.workspace = workspace;
  exec.workspace_size = 999;
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_WORKSPACE);
  exec.workspace = workspace + 4;
  exec.workspace_size = 1000;
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_INVALID_ARGUMENT);
  exec.workspace = workspace;
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_OK) << error();
  EXPECT_EQ(ran, "greedy");
  // an argument may lie behind the part that is used, as operands that a library's caller prepared do, but not in it
  ran.clear();
  dx.t.data.data = workspace + 960;
  exec.workspace_size = sizeof workspace;
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_NE(error().find("dx must not share memory with exec.workspace"), std::string::npos) << error();
  EXPECT_EQ(ran, "");
  dx.t.data.shape[0] = dy.t.data.shape[0] = 4, mask.t.data.shape[0] = 1, dx.t.data.data = workspace + 1000;
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_OK) << error();
  EXPECT_EQ(ran, "greedy");
}

TEST_F(Dispatch, ForcedByName) {
  a.p = 0.5f;
  exec.implementation = "plain";  // though a better one would take it
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_OK);
  EXPECT_EQ(ran, "plain");
  exec.implementation = "picky";
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_UNSUPPORTED);
  EXPECT_EQ(error(), "nvte_dropout_backward: picky: never");
  EXPECT_EQ(explain("dropout_backward", &a), "dropout_backward on device type 16:0: unsupported; refused: picky: never");
  exec.implementation = "nobody";
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_NOT_FOUND);
  EXPECT_EQ(error(), "nvte_dropout_backward: no implementation 'nobody' of dropout_backward on device type 16; known: picky, greedy, plain");
  char text[16];
  EXPECT_EQ(nvte_explain("dropout_backward", &exec, &a, text, sizeof text), NVTE_ERR_NOT_FOUND);
}

TEST_F(Dispatch, UnsupportedListsTheRefusals) {
  Owned x(kF32, {4}), w(kF32, {4}), y(kF32, {4});
  nvte_dropout_forward_args f = NVTE_DROPOUT_FORWARD_ARGS_INIT;
  kBackend.n_implementations = 3;
  const nvte_implementation only[] = {kRows[1], kRows[2]};
  kBackend.implementations = only;
  kBackend.n_implementations = 2;
  ASSERT_EQ(nvte_backend_remove("test"), NVTE_OK);
  ASSERT_EQ(nvte_backend_register(&kBackend), NVTE_OK);
  EXPECT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_UNSUPPORTED);
  EXPECT_EQ(error(), "nvte_dropout_backward: no implementation on device type 16 takes this call: picky: never; greedy: p must be 0.5");
  Owned rng(kI64, {2});
  for (Owned *t : {&x, &rng, &y}) t->t.data.device = {kDevice, 0};
  f.x = x;
  f.rng_state = rng;
  f.y = y;
  EXPECT_EQ(nvte_dropout_forward(&exec, &f), NVTE_ERR_UNSUPPORTED);
  EXPECT_EQ(error(), "nvte_dropout_forward: dropout_forward has no implementation on device type 16");
  EXPECT_EQ(explain("dropout_forward", &f), "dropout_forward on device type 16:0: unsupported; dropout_forward has no implementation on device type 16");
  kBackend.implementations = kRows;
  kBackend.n_implementations = std::size(kRows);
  ASSERT_EQ(nvte_backend_remove("test"), NVTE_OK);
  ASSERT_EQ(nvte_backend_register(&kBackend), NVTE_OK);
}

TEST_F(Dispatch, ExceptionsOfAnImplementationStayInside) {
  Owned x(kF32, {4}), rng(kI64, {2}), y(kF32, {4});
  for (Owned *t : {&x, &rng, &y}) t->t.data.device = {kDevice, 0};
  nvte_dropout_forward_args f = NVTE_DROPOUT_FORWARD_ARGS_INIT;
  f.x = x;
  f.rng_state = rng;
  f.y = y;
  EXPECT_EQ(nvte_dropout_forward(&exec, &f), NVTE_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(error(), "nvte_dropout_forward: out of memory");
}

TEST_F(Dispatch, AFailureWithoutAWordDoesNotShowAnOlderText) {
  a.p = 2;
  ASSERT_EQ(nvte_dropout_backward(&exec, &a), NVTE_ERR_INVALID_ARGUMENT);
  Owned x(kF32, {4}), amax(kF32, {1});
  for (Owned *t : {&x, &amax}) t->t.data.device = {kDevice, 0};
  nvte_compute_amax_args c = NVTE_COMPUTE_AMAX_ARGS_INIT;
  c.x = x;
  c.amax = amax;
  EXPECT_EQ(nvte_compute_amax(&exec, &c), NVTE_ERR_DEVICE);
  EXPECT_EQ(error(), "nvte_compute_amax: implementation mute failed with status " + std::to_string(NVTE_ERR_DEVICE) + " and no message");
}

TEST_F(Dispatch, ExplainCutsAndTerminates) {
  char text[9] = "########";
  ASSERT_EQ(nvte_explain("dropout_backward", &exec, &a, text, sizeof text), NVTE_OK);
  EXPECT_STREQ(text, "dropout_");
  EXPECT_EQ(nvte_explain("dropout_backward", &exec, &a, nullptr, 0), NVTE_OK);
  EXPECT_EQ(nvte_explain("dropout_backward", &exec, &a, nullptr, 3), NVTE_ERR_INVALID_ARGUMENT);
  a.dy = nullptr;
  EXPECT_EQ(nvte_explain("dropout_backward", &exec, &a, text, sizeof text), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "nvte_explain: dropout_backward: dy is missing (NULL)");
}

TEST_F(Dispatch, NestedCallsNameTheOperator) {
  a.dy = nullptr;
  EXPECT_EQ(call_op("dropout_backward", &exec, &a), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "dropout_backward: dy is missing (NULL)");
  EXPECT_EQ(call_op("nothing", &exec, &a), NVTE_ERR_NOT_FOUND);
}

TEST_F(Dispatch, RegisteringChecksTheTable) {
  EXPECT_EQ(nvte_backend_register(&kBackend), NVTE_OK) << "the same table again is no error";
  nvte_backend other = kBackend;
  EXPECT_EQ(nvte_backend_register(&other), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(error(), "nvte_backend_register: a back end named 'test' is registered already");
  other.name = "other";
  other.abi_version = 7;
  EXPECT_EQ(nvte_backend_register(&other), NVTE_ERR_VERSION);
  EXPECT_EQ(error(), "nvte_backend_register: backend was built for ABI version 7, this libte speaks version 0");
  other = kBackend;
  other.struct_size = 4;
  EXPECT_EQ(nvte_backend_register(&other), NVTE_ERR_VERSION);
  EXPECT_EQ(nvte_backend_register(nullptr), NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(nvte_backend_remove("nothing"), NVTE_ERR_NOT_FOUND);
}

// bugs.md I01: a device whose plug-in is not there is an answer, not a crash; the message says where it was looked for.
TEST(Devices, I01_AnAbsentPlugInIsNamedWithThePathsTried) {
  ASSERT_EQ(nvte_config_set("backend.path", "/nowhere:/neither"), NVTE_OK);
  nvte_exec exec = NVTE_EXEC_INIT;
  exec.device = {kDLROCM, 0};
  int32_t n = 9;
  for (int twice = 0; twice < 2; twice++) {
    EXPECT_EQ(nvte_device_count(kDLROCM, &n), NVTE_ERR_UNSUPPORTED);
    EXPECT_EQ(n, 0);
    EXPECT_NE(error().find("plug-in not found, tried /nowhere/libte_hip.so, /neither/libte_hip.so, "), std::string::npos) << error();
  }
  EXPECT_EQ(nvte_device_count(kDLHexagon, &n), NVTE_ERR_UNSUPPORTED);
  EXPECT_EQ(nvte_device_count(kDLCPU, &n), NVTE_OK);
  EXPECT_EQ(n, 1);
  ASSERT_EQ(nvte_config_set("backend.path", nullptr), NVTE_OK);
}

#ifdef TE_PLUGINS
std::string plug_in(const char *name) { return std::string(TE_PLUGINS) + "/" + name + ".so"; }

TEST(PlugIn, LoadsChoosesAndIsLoadedOnce) {
  ASSERT_EQ(nvte_backend_load(plug_in("demo_plugin").c_str()), NVTE_OK) << error();
  ASSERT_EQ(nvte_backend_load(plug_in("demo_plugin").c_str()), NVTE_OK) << error();
  const char *names[4];
  size_t n = 4;
  ASSERT_EQ(nvte_op_implementations("dropout_backward", kDLCPU, names, &n), NVTE_OK);
  ASSERT_EQ(n, 2u);
  EXPECT_STREQ(names[0], "demo");
  Owned dy(kF32, {16}), mask(kU8, {2}), dx(kF32, {16});
  for (int i = 0; i < 16; i++) dy.f()[i] = (float)i;
  nvte_dropout_backward_args a = NVTE_DROPOUT_BACKWARD_ARGS_INIT;
  a.dy = dy;
  a.mask = mask;
  a.dx = dx;
  ASSERT_EQ(nvte_dropout_backward(nullptr, &a), NVTE_OK) << error();
  EXPECT_EQ(dx.f()[15], 15.f) << "the mask says drop; demo copies";
  char text[256];
  a.p = 0.25f;
  ASSERT_EQ(nvte_explain("dropout_backward", nullptr, &a, text, sizeof text), NVTE_OK);
  EXPECT_STREQ(text, "dropout_backward on cpu:0: runs cpu; refused: demo: p must be 0 here");
  // an error of its own
  Owned dy13(kF32, {13}), dx13(kF32, {13});
  a.p = 0;
  a.dy = dy13;
  a.dx = dx13;
  EXPECT_EQ(nvte_dropout_backward(nullptr, &a), NVTE_ERR_DEVICE);
  EXPECT_EQ(error(), "nvte_dropout_backward: thirteen is too many");
  ASSERT_EQ(nvte_backend_remove("demo"), NVTE_OK);
  n = 4;
  ASSERT_EQ(nvte_op_implementations("dropout_backward", kDLCPU, names, &n), NVTE_OK);
  EXPECT_EQ(n, 1u);
  ASSERT_EQ(nvte_backend_load(plug_in("demo_plugin").c_str()), NVTE_OK) << "and again after removal";
  ASSERT_EQ(nvte_backend_remove("demo"), NVTE_OK);
}

TEST(PlugIn, RefusalsHaveReasons) {
  EXPECT_EQ(nvte_backend_load(plug_in("demo_old_plugin").c_str()), NVTE_ERR_VERSION);
  EXPECT_NE(error().find("demo_old_plugin.so was built for ABI version 7, this libte speaks version 0"), std::string::npos) << error();
  EXPECT_EQ(nvte_backend_load(plug_in("demo_sulky_plugin").c_str()), NVTE_ERR_UNSUPPORTED);
  EXPECT_NE(error().find("cannot serve: not today"), std::string::npos) << error();
  EXPECT_EQ(nvte_backend_load(plug_in("no_entry_plugin").c_str()), NVTE_ERR_NOT_FOUND);
  EXPECT_NE(error().find("has no symbol nvte_backend_entry"), std::string::npos) << error();
  EXPECT_EQ(nvte_backend_load("/no/such/file.so"), NVTE_ERR_NOT_FOUND);
  EXPECT_EQ(nvte_backend_load(TE_PLUGINS), NVTE_ERR_NOT_FOUND) << "a folder";
  EXPECT_EQ(nvte_backend_load(nullptr), NVTE_ERR_INVALID_ARGUMENT);
}

TEST(PlugIn, I08_ThreadsLoadAndRemoveWhileOthersCall) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; round++) {
        if (t == 0) {
          wrong += nvte_backend_load(plug_in("demo_plugin").c_str()) != NVTE_OK;
        } else {
          Owned dy(kF32, {24}), mask(kU8, {3}), dx(kF32, {24});
          memset(mask.memory.data(), 0xff, 3);
          for (int i = 0; i < 24; i++) dy.f()[i] = (float)(i + t);
          nvte_dropout_backward_args a = NVTE_DROPOUT_BACKWARD_ARGS_INIT;
          a.dy = dy;
          a.mask = mask;
          a.dx = dx;
          wrong += nvte_dropout_backward(nullptr, &a) != NVTE_OK || dx.f()[23] != (float)(23 + t);
        }
      }
    });
  for (auto &t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(nvte_backend_remove("demo"), NVTE_OK);
}
#endif

// bugs.md I08: 16 threads x 1000 calls of mixed shapes; equal results.
TEST(Calls, I08_SixteenThreads) {
  const auto run = [](int64_t n, uint8_t *mask_out) {
    Owned x(kF32, {n}), rng(kI64, {2}), y(kF32, {n}), mask(kU8, {(n + 7) / 8});
    rng.as<int64_t>()[0] = n;
    for (int64_t i = 0; i < n; i++) x.f()[i] = 1;
    nvte_dropout_forward_args a = NVTE_DROPOUT_FORWARD_ARGS_INIT;
    a.x = x;
    a.rng_state = rng;
    a.y = y;
    a.mask = mask;
    a.p = 0.5f;
    if (nvte_dropout_forward(nullptr, &a) != NVTE_OK) return -1.f;
    memcpy(mask_out, mask.memory.data(), (size_t)(n + 7) / 8);
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += y.f()[i];
    return sum;
  };
  const int64_t sizes[] = {1, 7, 64, 1000, 20000};
  std::vector<std::vector<uint8_t>> masks;
  std::vector<float> sums;
  for (int64_t n : sizes) {
    masks.emplace_back((size_t)(n + 7) / 8);
    sums.push_back(run(n, masks.back().data()));
    ASSERT_GE(sums.back(), 0.f) << error();
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; t++)
    threads.emplace_back([&, t] {
      std::vector<uint8_t> mask(2500);
      for (int i = 0; i < 1000; i++) {
        const size_t k = (size_t)(i * 7 + t) % (i % 50 ? 4 : 5);
        wrong += run(sizes[k], mask.data()) != sums[k] || memcmp(mask.data(), masks[k].data(), masks[k].size()) != 0;
      }
    });
  for (auto &t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// decisions.md 1: whatever the caller's floating-point environment, it is fixed inside and the same afterwards.
TEST(Calls, TheFloatingPointEnvironmentIsSetAndRestored) {
  static uint64_t inside;
  const nvte_implementation row = {sizeof(nvte_implementation), "dropout_backward", "look", 99, 0, nullptr, nullptr,
                                   [](const nvte_exec *, const void *) -> nvte_status { return inside = platform::float_control(), NVTE_OK; }};
  const nvte_backend b = {sizeof(nvte_backend), NVTE_ABI_VERSION, kDLCPU, "look", &row, 1, nullptr, nullptr};
  ASSERT_EQ(nvte_backend_register(&b), NVTE_OK);
  Owned dy(kF32, {16}), mask(kU8, {2}), dx(kF32, {16});
  nvte_dropout_backward_args a = NVTE_DROPOUT_BACKWARD_ARGS_INIT;
  a.dy = dy;
  a.mask = mask;
  a.dx = dx;
  const uint64_t before = platform::float_control();
#if defined(__x86_64__)
  const uint64_t odd = 0xffe2;  // FTZ, DAZ, round to zero, some sticky flags
#else
  const uint64_t odd = (uint64_t)1 << 24;  // FZ
#endif
  platform::set_float_control(odd);
  const nvte_status s = nvte_dropout_backward(nullptr, &a);
  const uint64_t after = platform::float_control();
  a.dy = nullptr;
  const nvte_status bad = nvte_dropout_backward(nullptr, &a);
  const uint64_t after_bad = platform::float_control();
  platform::set_float_control(before);
  EXPECT_EQ(s, NVTE_OK);
  EXPECT_EQ(bad, NVTE_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(inside, platform::kFixedFloat);
  EXPECT_EQ(after, odd);
  EXPECT_EQ(after_bad, odd);
  ASSERT_EQ(nvte_backend_remove("look"), NVTE_OK);
}

TEST(Calls, TraceIsOneLineACall) {
  static std::vector<std::string> lines;
  lines.clear();
  nvte_log_set([](int32_t level, const char *m, void *) { if (level == 0) lines.push_back(m); }, nullptr);
  ASSERT_EQ(nvte_config_set("trace", "1"), NVTE_OK);
  Owned dy(kF32, {2, 8}), mask(kU8, {2}), dx(kF32, {2, 8});
  nvte_dropout_backward_args a = NVTE_DROPOUT_BACKWARD_ARGS_INIT;
  a.dy = dy;
  a.mask = mask;
  a.dx = dx;
  EXPECT_EQ(nvte_dropout_backward(nullptr, &a), NVTE_OK);
  a.p = -1;
  EXPECT_EQ(nvte_dropout_backward(nullptr, &a), NVTE_ERR_INVALID_ARGUMENT);
  ASSERT_EQ(nvte_config_set("trace", nullptr), NVTE_OK);
  EXPECT_EQ(nvte_dropout_backward(nullptr, &a), NVTE_ERR_INVALID_ARGUMENT);
  nvte_log_set(nullptr, nullptr);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "nvte_dropout_backward on cpu:0 dy=f32[2, 8] mask=u8[2] dx=f32[2, 8] -> cpu");
  EXPECT_EQ(lines[1], "nvte_dropout_backward on cpu:0: NVTE_ERR_INVALID_ARGUMENT: p must be >= 0, got -1");
}

}  // namespace
}  // namespace te::test
