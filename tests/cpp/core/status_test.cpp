// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "api/guard.h"
#include "core/status.h"
#include "core/text.h"

namespace te {
namespace {

TEST(Status, NamesAndVersion) {
  EXPECT_STREQ(nvte_status_name(NVTE_OK), "NVTE_OK");
  EXPECT_STREQ(nvte_status_name(NVTE_ERR_WORKSPACE), "NVTE_ERR_WORKSPACE");
  EXPECT_STREQ(nvte_status_name(NVTE_ERR_UNSUPPORTED), "NVTE_ERR_UNSUPPORTED");
  EXPECT_STREQ(nvte_status_name(12345), "NVTE_ERR_UNKNOWN");
  EXPECT_EQ(nvte_version(), (uint32_t)(NVTE_VERSION_MAJOR << 16 | NVTE_VERSION_MINOR << 8 | NVTE_VERSION_PATCH));
}

TEST(Status, LastErrorIsPerThread) {
  fail(NVTE_ERR_INTERNAL, "mine %d", 1);
  std::string other = "unset";
  std::thread([&] {
    other = nvte_last_error();
    fail(NVTE_ERR_INTERNAL, "theirs");
  }).join();
  EXPECT_EQ(other, "");
  EXPECT_STREQ(nvte_last_error(), "mine 1");
}

TEST(Status, AMessageMayQuoteTheLastOneAndIsCut) {
  fail(NVTE_ERR_INTERNAL, "inner");
  fail(NVTE_ERR_INTERNAL, "outer: %s", last_error());
  EXPECT_STREQ(last_error(), "outer: inner");
  const std::string large(100000, 'x');
  EXPECT_EQ(fail(NVTE_ERR_IO, "%s", large.c_str()), NVTE_ERR_IO);
  EXPECT_EQ(std::string(last_error()), large.substr(0, std::string(last_error()).size()));
  EXPECT_GT(std::string(last_error()).size(), 1000u);
}

TEST(Guard, ExceptionsBecomeStatuses) {
  EXPECT_EQ(guard("nvte_f", []() -> nvte_status { throw std::bad_alloc(); }), NVTE_ERR_OUT_OF_MEMORY);
  EXPECT_STREQ(last_error(), "nvte_f: out of memory");
  EXPECT_EQ(guard("nvte_f", []() -> nvte_status { throw std::runtime_error("boo"); }), NVTE_ERR_INTERNAL);
  EXPECT_STREQ(last_error(), "nvte_f: unexpected exception: boo");
  EXPECT_EQ(guard("nvte_f", []() -> nvte_status { throw 3; }), NVTE_ERR_INTERNAL);
  EXPECT_EQ(guard("nvte_f", []() -> nvte_status { return fail(NVTE_ERR_IO, "bad"); }), NVTE_ERR_IO);
  EXPECT_STREQ(last_error(), "nvte_f: bad");
}

TEST(Text, IsBoundedAndNamesTypes) {
  char small[8];
  Text t(small, sizeof small);
  t.add("%s", "abcdefghijk").add("more");
  EXPECT_STREQ(t.c_str(), "abcdefg");
  EXPECT_EQ(t.length(), 7u);
  const int64_t shape[] = {2, 0, 5};
  EXPECT_STREQ(TextOf<64>().shape(shape, 3).c_str(), "[2, 0, 5]");
  EXPECT_STREQ(dtype_name({kDLBfloat, 16, 1}), "bf16");
  EXPECT_STREQ(dtype_name({kDLFloat8_e5m2fnuz, 8, 1}), "e5m2fnuz");
  EXPECT_STREQ(dtype_name({kDLFloat, 64, 1}), "f64");
  EXPECT_STREQ(dtype_name({kDLComplex, 64, 1}), "dtype{code 5, bits 64, lanes 1}");
  EXPECT_STREQ(device_name(kDLROCM), "rocm");
  EXPECT_STREQ(device_name(77), "device type 77");
}

}  // namespace
}  // namespace te
