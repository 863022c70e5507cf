#include "echelon/base/process_memory.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

constexpr std::uint64_t size = 64 << 20;
constexpr std::uint64_t tolerance =
    8 << 20;  // the kernel counts in batches; gtest allocates a little

// Anonymous pages straight from the kernel and back, whatever the allocator keeps.
class Pages {
 public:
  Pages()
      : start_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    std::memset(start_, 1, size);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(start_, size); }

 private:
  void* start_;
};

class ProcessMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (anonymous_bytes() == 0) GTEST_SKIP() << "/proc/self/status has no RssAnon here";
  }
};

TEST_F(ProcessMemory, CountsAnonymousPagesWhileTheyAreHeld) {
  const auto before = anonymous_bytes();
  {
    const Pages pages;
    EXPECT_GE(anonymous_bytes(), before + size - tolerance);
  }
  EXPECT_LE(anonymous_bytes(), before + tolerance);
}

TEST_F(ProcessMemory, DoesNotCountPagesOfFiles) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer keeps anonymous memory for every page that is touched";
#endif
  const ScratchFolder folder;
  write_file(folder / "pages", std::string(size, 'x'));
  const MappedFile file(folder / "pages");
  const auto before = anonymous_bytes();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < file.bytes().size(); i += 4096) {
    sum += std::to_integer<std::uint64_t>(file.bytes()[i]);
  }
  EXPECT_EQ(sum, size / 4096 * 'x');
  EXPECT_LE(anonymous_bytes(), before + tolerance);
}

TEST_F(ProcessMemory, PeakRemembersWhatWasFreed) {
  const PeakMemory peak;
  const auto before = peak.bytes();
  {
    const Pages pages;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a hundred samples
  }
  EXPECT_LE(anonymous_bytes(), before + tolerance);
  EXPECT_GE(peak.bytes(), before + size - tolerance);
}

TEST_F(ProcessMemory, PeakIncludesThisMoment) {
  const PeakMemory peak;
  const Pages pages;
  EXPECT_GE(peak.bytes(), size - tolerance);
}

}  // namespace
}  // namespace echelon
