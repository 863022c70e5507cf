#include "echelon/collective/link_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include "echelon/base/file.h"
#include "echelon/collective/link_watch.h"
#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Figures measured(std::int64_t seconds_ago = 0) {
  Figures figures{{2e-6, 3e-10}, {4e-5, 5e-9}, 6e-11, true};
  figures.measured = now() - seconds_ago;
  figures.spread = 1.2;
  return figures;
}

class LinkCaches : public testing::Test {
 protected:
  LinkCaches() {
    if (const char* set = std::getenv("ECHELON_CACHE")) before_ = set;
    setenv("ECHELON_CACHE", folder_.path().c_str(), 1);
  }
  ~LinkCaches() override {
    before_ ? setenv("ECHELON_CACHE", before_->c_str(), 1) : unsetenv("ECHELON_CACHE");
  }
  ScratchFolder folder_;

 private:
  std::optional<std::string> before_;
};

// Outside of the fixture: the folder that tools/own_cache.cpp gives to the whole program.
TEST(LinkCacheOfTheTests, IsNotTheUsers) {
  const char* const folder = std::getenv("ECHELON_CACHE");
  ASSERT_NE(folder, nullptr);
  const auto name = std::filesystem::path(folder).filename().string();
  EXPECT_TRUE(name.starts_with("echelon_test.")) << folder;
  EXPECT_TRUE(std::filesystem::is_directory(folder)) << folder;
}

TEST_F(LinkCaches, GiveBackWhatWasMeasuredOverTheSameLinks) {
  const LinkCache cache("2 x a at 10.0.0.1 (eth0, 1000 Mbit/s)");
  EXPECT_FALSE(cache.read());
  cache.write(measured(7200));
  const auto kept = cache.read();
  ASSERT_TRUE(kept);
  EXPECT_TRUE(kept->reused);
  EXPECT_NEAR(kept->age(), 7200, 5);
  EXPECT_EQ(kept->tcp.beta, 5e-9);
  EXPECT_FALSE(LinkCache("2 x a at 10.0.0.1 (eth0, 10000 Mbit/s)").read()) << "another speed";
  EXPECT_FALSE(LinkCache("2 x a at 10.0.0.2 (eth0, 1000 Mbit/s)").read()) << "another address";
  cache.discard();
  EXPECT_FALSE(cache.read());
}

TEST_F(LinkCaches, ForgetAfterADay) {
  const LinkCache cache("links");
  cache.write(measured(25 * 3600));
  EXPECT_FALSE(cache.read());
}

TEST_F(LinkCaches, KeepNothingThatWasMeasuredUnderLoad) {
  const LinkCache cache("links");
  cache.write(measured());
  Figures busy = measured();
  busy.spread = 2.5;
  cache.write(busy);
  EXPECT_FALSE(cache.read()) << "neither the busy ones nor those before, which no longer hold";
}

TEST_F(LinkCaches, MeasureAgainWhereTheFileIsBroken) {
  const LinkCache cache("links");
  cache.write(measured());
  const auto names = folder_.names();
  ASSERT_EQ(names.size(), 1u);
  for (const char* text : {"", "no json", "{}", "{\"links\": 3}"}) {
    write_file(folder_ / names[0], text);
    EXPECT_FALSE(cache.read()) << text;
  }
}

constexpr std::size_t large = LinkWatch::large;

bool survives(const std::vector<double>& times_as_long, std::size_t bytes = large,
              Operation operation = Operation::all_reduce) {
  const LinkCache cache("links");
  cache.write(measured());
  LinkWatch watch(cache, *cache.read());
  for (const double ratio : times_as_long) watch.saw(operation, bytes, ratio * 0.01, 0.01);
  return cache.read().has_value();
}

TEST_F(LinkCaches, LoseFiguresThatTheFirstOperationsContradict) {
  EXPECT_FALSE(survives(std::vector<double>(LinkWatch::enough, 200.0)));
  EXPECT_FALSE(survives(std::vector<double>(LinkWatch::enough, 0.1))) << "a faster link";
}

TEST_F(LinkCaches, KeepFiguresThatOneOperationBearsOut) {
  std::vector<double> late(LinkWatch::enough, 200.0);  // a rank that comes late
  late[3] = 1.3;
  EXPECT_TRUE(survives(late));
  EXPECT_TRUE(survives(std::vector<double>(LinkWatch::enough - 1, 200.0))) << "too few to tell";
  EXPECT_TRUE(survives(std::vector<double>(LinkWatch::enough, 200.0), large - 1)) << "too small";
  EXPECT_TRUE(survives(std::vector<double>(LinkWatch::enough, 0.1), large, Operation::broadcast))
      << "its root waits for nobody";
}

}  // namespace
}  // namespace echelon
