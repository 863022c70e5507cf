#include "echelon/lab/linked_hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "echelon/base/descriptor.h"
#include "echelon/base/error.h"
#include "echelon/base/folder.h"

extern char** environ;

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr const char* prefix = "echelon-lab-";
constexpr const char* device = "ech0";
constexpr const char* addresses[] = {"10.214.0.1", "10.214.0.2"};
constexpr int port = 29400;  // free: nothing else runs on these hosts

struct Ended {
  int status = 0;  // of wait(); -1: the program could not be started
  std::string said;
};

// Runs a program of the system to its end, which takes milliseconds. It has a process group of its
// own, so that Ctrl-C does not end it half-way.
Ended run(std::vector<std::string> words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
  Descriptor reading(ends[0]), writing(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), 2);
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  const int failed =
      ::posix_spawnp(&child, pointers[0], &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  writing = {};
  if (failed) return {-1, fmt::format("{}: {}", words[0], std::strerror(failed))};
  Ended ended;
  char buffer[512];
  for (ssize_t n; (n = ::read(reading.get(), buffer, sizeof buffer)) != 0;) {
    if (n > 0) ended.said.append(buffer, std::size_t(n));
    if (n < 0 && errno != EINTR) break;
  }
  while (::waitpid(child, &ended.status, 0) < 0 && errno == EINTR) {
  }
  while (!ended.said.empty() && std::isspace(static_cast<unsigned char>(ended.said.back())))
    ended.said.pop_back();
  return ended;
}

void must(const std::vector<std::string>& words) {
  const Ended ended = run(words);
  if (ended.status == 0) return;
  throw InvalidArgument(fmt::format("network namespaces do not work here: {}: {}",
                                    fmt::join(words, " "),
                                    ended.said.empty() ? "failed" : ended.said));
}

bool is_mounted(const fs::path& path) {
  std::error_code none;
  return fs::exists(path, none) && run({"mountpoint", "-q", path.string()}).status == 0;
}

// The first 'ip netns add' mounts /run/netns. This fails, as it should, while there are namespaces.
void unmount() { ::umount2("/run/netns", 0); }

// Removes the namespaces of processes that no longer run, and /run/netns if no others are left.
void remove_leftovers() {
  std::error_code none;
  bool found = false;
  for (const auto& entry : list_folder("/run/netns", none)) {
    const std::string& name = entry.name;
    if (!name.starts_with(prefix)) continue;
    pid_t owner = 0;
    const char* const begin = name.data() + std::strlen(prefix);
    std::from_chars(begin, name.data() + name.size(), owner);
    if (owner <= 0 || ::kill(owner, 0) == 0 || errno != ESRCH) continue;
    run({"ip", "netns", "delete", name});
    found = true;
  }
  if (found) unmount();
}

}  // namespace

LinkedHosts::NoBrokenPipe::NoBrokenPipe() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &before_);
}

LinkedHosts::NoBrokenPipe::~NoBrokenPipe() { ::sigaction(SIGPIPE, &before_, nullptr); }

LinkedHosts::LinkedHosts() {
  if (::geteuid() != 0) throw InvalidArgument("network namespaces need root");
  remove_leftovers();
  mounted_ = is_mounted("/run/netns");
  for (int i = 0; i < 2; ++i) names_[std::size_t(i)] = fmt::format("{}{}-{}", prefix, getpid(), i);
  const auto& [one, other] = names_;
  try {
    for (const auto& name : names_) must({"ip", "netns", "add", name});
    must({"ip", "link", "add", device, "netns", one, "type", "veth", "peer", "name", device,
          "netns", other});
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string network = fmt::format("{}/24", addresses[i]);
      must({"ip", "-n", names_[i], "addr", "add", network, "dev", device});
      must({"ip", "-n", names_[i], "link", "set", device, "up"});
      must({"ip", "-n", names_[i], "link", "set", "lo", "up"});
      // In a chroot they can be made, but not entered.
      must({"ip", "netns", "exec", names_[i], "true"});
    }
    limit(1e9);
  } catch (...) {
    remove();
    throw;
  }
}

LinkedHosts::~LinkedHosts() { remove(); }

void LinkedHosts::remove() const noexcept {
  try {
    for (const auto& name : names_) run({"ip", "netns", "delete", name});
  } catch (const std::exception&) {
  }
  if (!mounted_) unmount();
}

// Bursts of at most a millisecond, and a queue of 200 ms.
void LinkedHosts::limit(double bits_per_second) {
  const auto burst = std::max<std::int64_t>(16 << 10, std::int64_t(bits_per_second / 8 / 1000));
  for (const auto& name : names_)
    must({"ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf",
          "rate", fmt::format("{:.0f}bit", bits_per_second), "burst", fmt::format("{}", burst),
          "latency", "200ms"});
}

std::vector<std::string> LinkedHosts::spread(std::vector<std::string> program) const {
  const std::string name = fmt::format("{}{}-", prefix, getpid());
  const std::string script = fmt::format(
      "exec ip netns exec {}$RANK env -u ECHELON_RENDEZVOUS -u ECHELON_RENDEZVOUS_FD "
      "MASTER_ADDR={} MASTER_PORT={} LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \"$0\" \"$@\"",
      name, addresses[0], port);
  std::vector<std::string> words = {"sh", "-c", script};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

}  // namespace echelon
