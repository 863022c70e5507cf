#include "echelon/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "echelon/base/error.h"

namespace echelon {

namespace {

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error(with_errno("cannot make a pipe for a rank's output"));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const auto& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

// Binds the calling thread to the CPUs of a rank. A forked child inherits the binding.
class Bound {
 public:
  explicit Bound(const CpuList& cpus) : bound_(!cpus.empty()) {
    if (!bound_) return;
    before_ = allowed_cpus();
    bind_to_cpus(cpus);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  ~Bound() {
    if (bound_) bind_to_cpus(before_);
  }

 private:
  bool bound_;
  CpuList before_;
};

// Everything the child needs, prepared before the fork: after it, only async-signal-safe calls are
// allowed.
struct Child {
  pid_t parent;
  int input, out, err, failed;
  char* const* program;
  char* const* environment;
};

[[noreturn]] void run_program(const RankStart& start, const Child& child) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != child.parent) ::_exit(1);  // the parent died before it could be watched
  if (child.input >= 0) ::dup2(child.input, STDIN_FILENO);
  if (child.out >= 0) ::dup2(child.out, STDOUT_FILENO);
  if (child.err >= 0) ::dup2(child.err, STDERR_FILENO);
  for (const int left_open : {start.listener, start.reports})
    if (left_open >= 0) ::fcntl(left_open, F_SETFD, 0);
  ::setrlimit(RLIMIT_NOFILE, &start.files);
  start.signals.give_back_in_child();
  ::execvpe(child.program[0], child.program, child.environment);
  const int error = errno;
  [[maybe_unused]] const auto told = ::write(child.failed, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

RankStarted start_rank(const RankStart& start) {
  RankStarted started;
  Pipe out, err;
  if (start.pipes) {
    out = make_pipe();
    err = make_pipe();
    for (const auto* end : {&out.read, &err.read}) ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  Pipe failed = make_pipe();  // a successful exec closes it
  Descriptor nothing;
  if (!start.input) {
    nothing = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) throw Error(with_errno("cannot open /dev/null"));
  }
  const auto lines = environment_of(start.setup);
  const auto environment = pointers(lines);
  const auto program = pointers(start.program);
  const Child child{::getpid(),         nothing.get(),  out.write.get(),   err.write.get(),
                    failed.write.get(), program.data(), environment.data()};
  {
    const Bound bound(start.setup.cpus);
    started.pid = ::fork();
  }
  if (started.pid == 0) run_program(start, child);
  if (started.pid < 0)
    throw Error(with_errno(fmt::format("cannot start rank {}", start.setup.rank)));
  ::setpgid(started.pid, started.pid);  // parent and child both call it, so neither has to wait
  failed.write = Descriptor();
  while (::read(failed.read.get(), &started.error, sizeof started.error) < 0 && errno == EINTR) {
  }
  if (started.error != 0) ::waitpid(started.pid, nullptr, 0);
  started.out = std::move(out.read);
  started.err = std::move(err.read);
  return started;
}

std::string describe_end(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with {}", WEXITSTATUS(status));
  return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                     ::strsignal(WTERMSIG(status)));
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace echelon
