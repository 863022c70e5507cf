#include "echelon/net/host.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "echelon/base/error.h"
#include "echelon/base/folder.h"
#include "echelon/base/random.h"

namespace echelon {

namespace {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Files in /proc and /sys report no size to map or read by, and are often absent.
std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// A CPU set of the kernel, as large as the machine needs.
struct CpuSet {
  explicit CpuSet(int cpus) : bytes(CPU_ALLOC_SIZE(cpus)), set(CPU_ALLOC(cpus), free_set) {
    CPU_ZERO_S(bytes, set.get());
  }
  static void free_set(cpu_set_t* set) { CPU_FREE(set); }

  std::size_t bytes;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set;
};

// cpu.max is "QUOTA PERIOD" in microseconds, or "max PERIOD" without a quota.
std::optional<double> quota_of(const std::filesystem::path& group) {
  std::istringstream text(first_line(group / "cpu.max"));
  double quota = 0, period = 0;
  if (text >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

}  // namespace

std::string host_id() {
  if (const char* given = std::getenv("ECHELON_HOST_ID"); given && *given) return given;
  std::error_code ignored;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", ignored);
  return fmt::format("{:016x}", derive_key(0, machine_id() + " " + network.string()));
}

std::string machine_id() {
  const std::string kernel = first_line("/proc/sys/kernel/random/boot_id");
  return kernel.empty() ? host_name() : kernel;
}

std::string full_host_name() {
  const std::string name = host_name();
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return name;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  return found->ai_canonname ? found->ai_canonname : name;
}

std::string cpu_text(const CpuList& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return text;
}

CpuList parse_cpus(const std::string& text) {
  constexpr int most = 1 << 20;
  CpuList cpus;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    const char* end = range.data() + range.size();
    const auto [rest, failed] = std::from_chars(range.data(), end, first);
    if (failed != std::errc() || first < 0) continue;
    int last = first;
    if (rest != end && *rest == '-') std::from_chars(rest + 1, end, last);
    for (int cpu = first; cpu <= std::min(last, most) && cpus.size() < most; ++cpu)
      cpus.push_back(cpu);
  }
  return cpus;
}

CpuList allowed_cpus() {
  // The kernel rejects a set smaller than its own.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    const CpuSet allowed(capacity);
    if (::sched_getaffinity(0, allowed.bytes, allowed.set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    CpuList cpus;
    for (int cpu = 0; cpu < capacity; ++cpu)
      if (CPU_ISSET_S(cpu, allowed.bytes, allowed.set.get())) cpus.push_back(cpu);
    return cpus;
  }
  CpuList all(std::max(1u, std::thread::hardware_concurrency()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return all;
}

int core_quota(const std::filesystem::path& cgroups, const std::filesystem::path& own_group) {
  std::optional<double> least;
  std::ifstream groups(own_group);
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // the line of cgroup version 2
    auto group = (cgroups / line.substr(4)).lexically_normal();
    // A quota applies to all groups below it. Paths outside the folder ("/..": another namespace)
    // end at its root.
    for (;; group = group.parent_path()) {
      if (const auto quota = quota_of(group)) least = std::min(least.value_or(*quota), *quota);
      if (group == cgroups || group == group.parent_path()) break;
    }
  }
  return least ? std::clamp(static_cast<int>(std::min(*least, 1e6)), 1, 1 << 20) : 0;
}

int cores(const std::filesystem::path& cgroups, const std::filesystem::path& own_group) {
  const int allowed = std::max(1, static_cast<int>(allowed_cpus().size()));
  const int quota = core_quota(cgroups, own_group);
  return quota > 0 ? std::min(allowed, quota) : allowed;
}

std::vector<CpuList> numa_nodes(const CpuList& allowed, const std::filesystem::path& folder) {
  std::map<int, CpuList> nodes;  // by the node's number
  std::error_code missing;
  for (const auto& [name, is_folder, is_file, is_link] : list_folder(folder, missing)) {
    int number = 0;
    if (!name.starts_with("node") ||
        std::from_chars(name.data() + 4, name.data() + name.size(), number).ptr !=
            name.data() + name.size())
      continue;
    CpuList ours;
    for (const int cpu : parse_cpus(first_line(folder / name / "cpulist")))
      if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) ours.push_back(cpu);
    if (!ours.empty()) nodes[number] = std::move(ours);
  }
  if (nodes.empty()) return {allowed};
  std::vector<CpuList> lists;
  for (auto& [number, cpus] : nodes) lists.push_back(std::move(cpus));
  return lists;
}

void bind_to_cpus(const CpuList& cpus) {
  if (cpus.empty() || *std::min_element(cpus.begin(), cpus.end()) < 0)
    throw InvalidArgument(fmt::format("cannot run on the CPUs [{}]: give one or more, from 0",
                                      fmt::join(cpus, ", ")));
  const CpuSet wanted(*std::max_element(cpus.begin(), cpus.end()) + 1);
  for (const int cpu : cpus) CPU_SET_S(cpu, wanted.bytes, wanted.set.get());
  if (::sched_setaffinity(0, wanted.bytes, wanted.set.get()) == 0) return;
  const bool not_ours = errno == EINVAL;
  const auto message =
      with_errno(fmt::format("cannot run on the CPUs [{}] alone", fmt::join(cpus, ", ")));
  if (not_ours) throw InvalidArgument(message + "; none of them is ours");
  throw Error(message);
}

}  // namespace echelon
