#include "echelon/base/process_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
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
  const int file = ::open((folder / "pages").c_str(), O_RDONLY);
  void* const pages = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const auto before = anonymous_bytes();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < size; i += 4096) sum += static_cast<const unsigned char*>(pages)[i];
  EXPECT_EQ(sum, size / 4096 * 'x');
  EXPECT_LE(anonymous_bytes(), before + tolerance);
  ::munmap(pages, size);
  ::close(file);
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

// Whether the system was asked for huge pages at this address.
bool has_huge_page_advice(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream mappings("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(mappings, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2)
      here = begin <= wanted && wanted < end;
    else if (here && line.starts_with("VmFlags:"))
      return line.find(" hg") != std::string::npos;
  }
  return false;
}

// In a process of its own: it holds for the whole of it.
TEST_F(ProcessMemory, IsKeptInHugePagesThatCostNothingUntilTheyAreUsed) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
    GTEST_SKIP() << "a system without huge pages";
  if (read_file("/proc/sys/vm/overcommit_memory").starts_with("2"))
    GTEST_SKIP() << "a system that promises no more memory than it has";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [] {
    const auto before = anonymous_bytes();
    keep_freed_memory();
    if (anonymous_bytes() > before + tolerance) std::exit(2);
    char* const block = static_cast<char*>(std::malloc(size));
    explicit_bzero(block, size);  // a memset before a free is left out
    if (!has_huge_page_advice(block + size / 2)) std::exit(3);
    std::free(block);
    std::exit(anonymous_bytes() >= before + size - tolerance ? 0 : 4);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace echelon
