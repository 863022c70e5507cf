// Two processes, so that neither can die without the other cleaning up:
//
//   launcher     the process that called launch(). A shell, a terminal or a scheduler knows this
//                process. It passes signals on to the supervisor and waits for it.
//   supervisor   a fork of the launcher and the parent of the ranks. It has its own process group,
//                so that Ctrl-C arrives once, through the launcher.
//
// A socket pair connects them. The kernel closes an end when its process dies, however it dies. If
// the launcher is gone, the supervisor kills every descendant and ends. If the supervisor is gone,
// the kernel kills the ranks (PR_SET_PDEATHSIG); the launcher is a subreaper, inherits the
// processes that the ranks started, and kills them. Only if both are killed at once can a rank's
// own children survive.
#include "echelon/launch/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/launch/launch_signals.h"
#include "echelon/launch/process_tree.h"
#include "echelon/launch/rank_process.h"
#include "echelon/launch/rank_setup.h"
#include "echelon/launch/supervisor.h"

namespace echelon {

namespace {

using namespace std::chrono_literals;

// While this object exists, orphans below this process become its children.
class Subreaper {
 public:
  Subreaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }

 private:
  int before_ = 0;
};

// One of our descriptors must not become a rank's standard output because ours was closed.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", O_RDWR);
}

[[noreturn]] void supervise(const LaunchOptions& options, JobSetup job,
                            const LaunchSignals& signals, Descriptor launcher) {
  ::setpgid(0, 0);
  int exit_code = 1;
  try {
    exit_code = Supervisor(options, std::move(job), signals, std::move(launcher)).run();
  } catch (const std::exception& error) {
    log::error(error.what());
  }
  ::_exit(exit_code);
}

// Passes signals on until the supervisor has ended. Returns its status.
int watch(pid_t supervisor, const Descriptor& link, const Descriptor& signals, bool* interrupted) {
  while (true) {
    pollfd ready[] = {{signals.get(), POLLIN, 0}, {link.get(), POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR)
      throw Error(with_errno("cannot wait for the ranks"));
    while (const auto signal = LaunchSignals::next(signals)) {
      if (*signal == SIGCHLD) continue;
      const bool ends = *signal == SIGINT || *signal == SIGTERM || *signal == SIGHUP;
      if (ends && interrupted) *interrupted = true;
      ::kill(supervisor, *signal);
      if (*signal == SIGTSTP) ::raise(SIGSTOP);
    }
    if (!ready[1].revents) continue;
    int status = 0;
    while (::waitpid(supervisor, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  open_standard_streams();
  JobSetup job = job_setup(options);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(with_errno("cannot join the launcher and its supervisor"));
  Descriptor ours(ends[0]), theirs(ends[1]);

  const auto others = children();  // children of the calling program: not ours to end
  const Subreaper subreaper;
  const LaunchSignals launch_signals;
  const Descriptor signals = launch_signals.open();
  std::fflush(nullptr);
  const pid_t supervisor = ::fork();
  if (supervisor < 0) throw Error(with_errno("cannot start a process for the ranks"));
  if (supervisor == 0) {
    ours = Descriptor();
    supervise(options, std::move(job), launch_signals, std::move(theirs));
  }
  theirs = Descriptor();
  job.listener = Descriptor();

  const int status = watch(supervisor, ours, signals, options.interrupted);
  if (WIFSIGNALED(status)) {
    end_descendants(Deadline::in(1s), others);
    log::error(fmt::format("the parent of the ranks (pid {}) {}; they were ended", supervisor,
                           describe_end(status)));
  }
  return exit_code_of(status);
}

}  // namespace echelon
