#include "cli/ranks.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/base/options.h"
#include "echelon/collective/group.h"
#include "echelon/launch/environment.h"
#include "echelon/launch/launcher.h"
#include "echelon/net/host.h"

namespace echelon::cli {
std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\0', begin);
    words.push_back(text.substr(begin, end - begin));
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  if (words.empty()) throw Error("cannot read this process's command line (/proc/self/cmdline)");
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

int run_as_ranks(int world, const std::vector<std::string>& set,
                 const std::function<void(Group&)>& body) {
  RankOptions options;
  for (const auto& assignment : set) set_option(fields_of(options), assignment);
  if (options.comm.backend != Backend::native)
    throw InvalidArgument(
        fmt::format("comm.backend={} is for training: this measures Echelon's own links (native)",
                    name_of(options.comm.backend)));
  const JobEnvironment environment = read_environment();
  if (environment.world == 1 && world > 1)
    return launch({.program = own_command_line(),
                   .nproc = world,
                   .rendezvous = {},
                   .log_dir = {},
                   .prefix = false});
  log::set_rank(environment.rank);
  // As Open MPI does: a rank that moves between cores finds cold caches.
  if (const auto cpus = allowed_cpus();
      environment.local_world <= int(cpus.size()) && environment.local_world > 1)
    bind_to_cpus({cpus[std::size_t(environment.local_rank)]});
  body(*Group::world(Endpoint::join(environment, options.net), options.comm));
  return 0;
}

std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    std::size_t digits = 0;
    while (digits < word.size() && std::isdigit(static_cast<unsigned char>(word[digits]))) ++digits;
    const std::string unit = word.substr(digits);
    const std::size_t scale = unit.empty() || unit == "B"                    ? 1
                              : unit == "Ki" || unit == "KiB" || unit == "K" ? std::size_t{1} << 10
                              : unit == "Mi" || unit == "MiB" || unit == "M" ? std::size_t{1} << 20
                              : unit == "Gi" || unit == "GiB" || unit == "G" ? std::size_t{1} << 30
                                                                             : 0;
    const std::size_t number = digits && digits < 16 ? std::stoull(word.substr(0, digits)) : 0;
    if (scale == 0 || number == 0 || number > (std::size_t{1} << 40) / scale)
      throw InvalidArgument(
          fmt::format("\"{}\" is no size in bytes; give some like 64,4Ki,1Mi", word));
    sizes.push_back(number * scale);
    begin = end + 1;
  }
  return sizes;
}

}  // namespace echelon::cli
