#include "echelon/launch/process_tree.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>

namespace echelon {

namespace {

struct Process {
  pid_t pid;
  char state;
};

// Living processes, by parent.
std::multimap<pid_t, Process> processes() {
  std::multimap<pid_t, Process> by_parent;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return by_parent;
  while (const dirent* entry = ::readdir(folder.get())) {
    const auto pid = static_cast<pid_t>(std::atoi(entry->d_name));
    if (pid <= 0) continue;
    std::ifstream file(std::string("/proc/") + entry->d_name + "/stat");
    std::string stat;
    std::getline(file, stat);
    // "PID (name) STATE PARENT …", where the name may contain anything.
    const auto name_end = stat.rfind(')');
    char state = 0;
    int parent = 0;
    if (name_end == std::string::npos ||
        std::sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) != 2)
      continue;  // it has ended meanwhile
    if (state != 'Z' && state != 'X') by_parent.emplace(parent, Process{pid, state});
  }
  return by_parent;
}

void take_exit_codes(const std::vector<pid_t>& spared) {
  if (spared.empty()) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return;
  }
  // Some children are not ours to wait for: only look at what ended.
  siginfo_t ended{};
  while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
    if (std::find(spared.begin(), spared.end(), ended.si_pid) != spared.end()) return;
    ::waitpid(ended.si_pid, nullptr, WNOHANG);
    ended = {};
  }
}

}  // namespace

std::vector<pid_t> children() {
  const auto by_parent = processes();
  const auto [begin, end] = by_parent.equal_range(::getpid());
  std::vector<pid_t> found;
  for (auto child = begin; child != end; ++child) found.push_back(child->second.pid);
  return found;
}

std::vector<pid_t> descendants(const std::vector<pid_t>& spared) {
  const auto by_parent = processes();
  std::vector<pid_t> found{::getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = by_parent.equal_range(found[i]);
    for (auto child = begin; child != end; ++child)
      if (std::find(spared.begin(), spared.end(), child->second.pid) == spared.end())
        found.push_back(child->second.pid);
  }
  found.erase(found.begin());
  return found;
}

bool is_stopped(pid_t pid) {
  const auto by_parent = processes();
  std::vector<pid_t> tree{pid};
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const auto [begin, end] = by_parent.equal_range(tree[i]);
    for (auto child = begin; child != end; ++child) tree.push_back(child->second.pid);
  }
  return std::any_of(by_parent.begin(), by_parent.end(), [&](const auto& one) {
    const auto& [parent, process] = one;
    return (process.state == 'T' || process.state == 't') &&
           std::find(tree.begin(), tree.end(), process.pid) != tree.end();
  });
}

bool end_descendants(Deadline deadline, const std::vector<pid_t>& spared) {
  // Repeats until none is left: a process may fork while the list is made, and when a process dies,
  // its children become ours.
  auto pause = std::chrono::microseconds(200);
  while (true) {
    const auto found = descendants(spared);
    for (const pid_t pid : found) ::kill(pid, SIGKILL);
    take_exit_codes(spared);
    if (found.empty()) return true;
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
}

}  // namespace echelon
