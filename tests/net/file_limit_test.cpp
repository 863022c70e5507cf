#include "echelon/net/file_limit.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "echelon/net/endpoint.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

// A soft limit of so many files while it lives.
class SoftLimit {
 public:
  explicit SoftLimit(rlim_t files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{files, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
  }
  ~SoftLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  rlim_t hard() const { return before_.rlim_max; }

 private:
  rlimit before_{};
};

rlim_t soft_limit() {
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  return now.rlim_cur;
}

TEST(FileLimit, CountsWhatIsOpen) {
  const std::size_t before = open_files();
  const Descriptor one(open("/dev/null", O_RDONLY)), two(open("/dev/null", O_RDONLY));
  EXPECT_EQ(open_files(), before + 2);
}

TEST(FileLimit, IsRaisedByEveryRank) {
  const SoftLimit limit(100);
  NetOptions net;
  net.heap = 16 << 20;
  const Endpoint alone(0, 1, "127.0.0.1", net, a_token(), [](const std::string& info, Deadline) {
    return std::vector<std::string>{info};
  });
  EXPECT_EQ(soft_limit(), limit.hard());
}

TEST(FileLimit, RefusesAJobThatNeedsMoreAndSaysHowMany) {
  const SoftLimit limit(100);
  const std::size_t open_now = open_files();
  EXPECT_EQ(outcome([&] { require_files(100 - open_now, "a job of 9 ranks"); }), "done");
  const auto refused = outcome([&] { require_files(101 - open_now, "a job of 9 ranks"); });
  EXPECT_EQ(refused, "InvalidArgument") << refused;
  EXPECT_TRUE(refused.message.starts_with(
      "a job of 9 ranks needs 101 open files in this process, and the limit is 100: raise the hard "
      "limit (ulimit -Hn 101"))
      << refused;
}

}  // namespace
}  // namespace echelon
