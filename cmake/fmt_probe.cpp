// Uses what our sources use of fmt, so that configuring a build finds out if fmt.cpp does not fit
// the version.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  std::string text =
      fmt::format("{:>{}} {:.3f} {} {:#x}", argv[0], argc, 0.5 * argc, 0.1f * argc, argc);
  text += fmt::format("{} {:L}", fmt::join(std::vector<double>(argc), ","), 0.5 * argc);
  text += fmt::to_string(0.25 * argc) + fmt::to_string(0.25f * argc);
  fmt::format_to(std::back_inserter(text), "{:.{}g} {}", 0.1L * argc, argc, std::vector<int>(argc));
  fmt::format_to(std::back_inserter(text), "{:%F %T}", fmt::gmtime(std::time_t(argc)));
  fmt::print(stderr, "{}\n", text);
  fmt::print("{}\n", text);
}
