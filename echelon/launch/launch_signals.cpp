#include "echelon/launch/launch_signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "echelon/base/error.h"

namespace echelon {

namespace {

constexpr int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

LaunchSignals::LaunchSignals() {
  sigemptyset(&taken_);
  // A blocked signal is never ignored: it would be read from the descriptor.
  for (const int signal : passed_on)
    if (!is_ignored(signal)) sigaddset(&taken_, signal);
  sigaddset(&taken_, SIGCHLD);
  sigset_t blocked = taken_;
  sigaddset(&blocked, SIGTTOU);  // writing to the terminal must not stop the supervisor
  ::pthread_sigmask(SIG_BLOCK, &blocked, &mask_before_);

  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &pipe_before_);
  action.sa_handler = SIG_DFL;  // an ignored SIGCHLD would leave no child to wait for
  ::sigaction(SIGCHLD, &action, &child_before_);
}

LaunchSignals::~LaunchSignals() {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

Descriptor LaunchSignals::open() const {
  Descriptor signals(::signalfd(-1, &taken_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) throw Error(with_errno("cannot wait for signals"));
  return signals;
}

std::optional<int> LaunchSignals::next(const Descriptor& signals) {
  signalfd_siginfo info{};
  while (::read(signals.get(), &info, sizeof info) != sizeof info)
    if (errno != EINTR) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void LaunchSignals::give_back_in_child() const {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  // A signal that is pending when they are unblocked below must end the child, not run a handler
  // that is about to vanish.
  for (const int signal : passed_on)
    if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace echelon
