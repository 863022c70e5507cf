// Gives every test program a cache folder of its own, so that tests neither read nor change the
// link figures in the user's ~/.cache/echelon. Linked into every test program; child processes
// inherit the variable.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

class OwnCache : public testing::Environment {
 public:
  void SetUp() override {
    folder_.emplace();
    ::setenv("ECHELON_CACHE", folder_->path().c_str(), 1);
  }
  void TearDown() override { folder_.reset(); }

 private:
  std::optional<ScratchFolder> folder_;
};

[[maybe_unused]] const auto* const own_cache = testing::AddGlobalTestEnvironment(new OwnCache);

}  // namespace
}  // namespace echelon
