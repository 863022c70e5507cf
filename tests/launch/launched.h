// A launch in a process of its own, as a shell would start it: its output in files, its process to
// be signalled, and the processes of its ranks to be looked for.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/log.h"
#include "echelon/launch/launcher.h"
#include "tests/base/scratch_folder.h"

namespace echelon {

inline std::string contents(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Looks again and again, so that a test waits no longer than it must; false after ten seconds.
inline bool soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

// Living processes that have `word` as one of their arguments.
inline std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  DIR* folder = ::opendir("/proc");
  while (const dirent* entry = ::readdir(folder)) {
    const auto pid = static_cast<pid_t>(std::atoi(entry->d_name));
    if (pid <= 0) continue;
    const auto words = contents("/proc/" + std::to_string(pid) + "/cmdline");
    if (words.find('\0' + word + '\0') != std::string::npos) found.push_back(pid);
  }
  ::closedir(folder);
  return found;
}

// A time for `sleep` that no other process of this machine sleeps: a name to find it by.
inline std::string own_nap() {
  static int count = 0;
  return std::to_string(1000 + ++count) + "." + std::to_string(::getpid());
}

class Launched {
 public:
  // `prepare` runs in the launcher's process before the launch.
  explicit Launched(
      const LaunchOptions& options, const std::function<void()>& prepare = [] {}) {
    std::fflush(nullptr);  // what waits to be written is not the launcher's
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(::open((folder_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), 1);
    ::dup2(::open((folder_ / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), 2);
    int code = 1;
    try {
      prepare();
      code = launch(options);
    } catch (const std::exception& error) {
      log::error(error.what());
    }
    ::_exit(code);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // As a shell tells it.
  int exit_code() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  void signal(int number) { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  std::string out() const { return contents(folder_ / "out"); }
  std::string err() const { return contents(folder_ / "err"); }

  // True once standard output has `count` times `text`.
  bool says(const std::string& text, int count) const {
    return soon([&] {
      int seen = 0;
      const auto all = out();
      for (auto at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++seen;
      return seen >= count;
    });
  }

 private:
  ScratchFolder folder_;
  pid_t pid_ = 0;
};

inline LaunchOptions shell(int nproc, const std::string& script) {
  LaunchOptions options;
  options.nproc = nproc;
  options.program = {"/bin/sh", "-c", script};
  return options;
}

}  // namespace echelon
