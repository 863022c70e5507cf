#include "echelon/launch/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "echelon/base/error.h"
#include "echelon/base/terminal.h"
#include "echelon/launch/process_tree.h"
#include "echelon/net/file_limit.h"

namespace echelon {

namespace {

using namespace std::chrono_literals;

// After SIGKILL, only the kernel can keep a process alive.
constexpr auto kill_time = 1s;
// For a reader of our output that has stopped reading.
constexpr auto flush_time = 500ms;

std::string why_not_run(const std::string& program, int error) {
  const bool there = program.find('/') != std::string::npos && ::access(program.c_str(), F_OK) == 0;
  if (error == ENOENT && there)
    return fmt::format("cannot run {}: the interpreter named in its first line is not there",
                       program);
  return fmt::format("cannot run {}: {}", program, std::strerror(error));
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options, JobSetup job, const LaunchSignals& signals,
                       Descriptor launcher)
    : options_(options),
      job_(std::move(job)),
      launch_signals_(signals),
      launcher_(std::move(launcher)),
      signals_(signals.open()),
      errors_(err_, options.prefix && options.nproc > 1, options.alike) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!terminal::path().empty()) out_.share(live_);
  if (!terminal::path().empty() && ::isatty(STDERR_FILENO)) err_.share(live_);
}

int Supervisor::run() {
  try {
    start();
    while (running_ > 0) wait_for_something();
  } catch (const std::exception& error) {
    say(error.what());
    exit_code_ = 1;
  }
  // Also ends processes left behind by ranks that ended well.
  if (!end_descendants(Deadline::in(kill_time)))
    say("the system holds processes of the job that were killed; they are left behind");
  for (auto& rank : ranks_)
    for (auto& stream : rank.streams) stream.finish();
  errors_.show_all();
  if (culprit_) report(*culprit_);
  if (!verdict_.empty()) say(verdict_);
  // Failures of expendable ranks do not count, unless there were no other ranks.
  if (exit_code_ == 0 && !ranks_.empty() && forgiven_.size() == ranks_.size())
    exit_code_ = exit_code_of(forgiven_.front()->status);
  out_.write_all(Deadline::in(flush_time));
  err_.write_all(Deadline::in(flush_time));
  return exit_code_;
}

void Supervisor::start() {
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    if (error)
      throw Error(
          fmt::format("cannot make the folder {}: {}", options_.log_dir.string(), error.message()));
  }
  const rlimit files = raise_file_limit();
  const std::size_t each = options_.log_dir.empty() ? 2 : 3;  // two pipes and a log
  require_files(std::size_t(options_.nproc) * each + 16,
                fmt::format("launching {} ranks", options_.nproc));
  for (int i = 0; i < options_.nproc; ++i) {
    if (start_rank_of(i, files)) continue;
    kill_all("");
    break;
  }
  // From now on only rank 0 holds it: once rank 0 is gone, connections are refused instead of
  // waiting.
  job_.listener = Descriptor();
}

bool Supervisor::start_rank_of(int local_rank, const rlimit& files) {
  RankSetup setup = rank_setup(options_, job_, local_rank);
  setup.variables["ECHELON_LAUNCHER_FD"] = reports_.variable();
  Rank& rank = ranks_.emplace_back();
  rank.rank = setup.rank;
  if (!options_.log_dir.empty()) {
    const auto file = options_.log_dir / fmt::format("rank-{}.log", rank.rank);
    rank.log = Descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!rank.log) throw Error(with_errno(fmt::format("cannot open {}", file.string())));
  }
  const bool several = options_.nproc > 1;
  auto started = start_rank({.program = options_.program,
                             .setup = setup,
                             .signals = launch_signals_,
                             .files = files,
                             .pipes = several || rank.log,
                             .input = rank.rank == 0 && !::isatty(STDIN_FILENO),
                             .listener = rank.rank == 0 ? job_.listener.get() : -1,
                             .reports = reports_.rank_fd()});
  if (started.error != 0) {
    say(why_not_run(options_.program.front(), started.error));
    exit_code_ = started.error == ENOENT || started.error == ENOTDIR ? 127 : 126;
    ranks_.pop_back();
    return false;
  }
  rank.pid = started.pid;
  ++running_;
  const bool shown = rank.rank == 0 || !options_.quiet_others;
  const std::string prefix = several && options_.prefix ? fmt::format("[{}] ", rank.rank) : "";
  if (started.out) {
    rank.streams.emplace_back(std::move(started.out), shown ? &out_ : nullptr, rank.log.get(),
                              prefix, rank.last, rank.rank, nullptr);
    rank.streams.emplace_back(std::move(started.err), shown ? &err_ : nullptr, rank.log.get(),
                              prefix, rank.last, rank.rank, several ? &errors_ : nullptr);
  }
  return true;
}

void Supervisor::wait_for_something() {
  std::vector<pollfd> ready{
      {signals_.get(), POLLIN, 0}, {launcher_.get(), POLLIN, 0}, {reports_.fd(), POLLIN, 0}};
  const std::size_t first_stream = ready.size();
  std::vector<RankOutput*> streams;
  for (auto& rank : ranks_) {
    for (auto& stream : rank.streams) {
      if (stream.fd() < 0 || stream.held_back()) continue;
      ready.push_back({stream.fd(), POLLIN, 0});
      streams.push_back(&stream);
    }
  }
  const std::size_t outlets = ready.size();
  for (const auto* outlet : {&out_, &err_})
    if (outlet->waiting()) ready.push_back({outlet->fd(), POLLOUT, 0});

  const auto left = std::min(errors_.due().remaining(), next_look().remaining());
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  const int timeout = ms >= INT_MAX ? -1 : static_cast<int>(ms) + 1;
  if (::poll(ready.data(), ready.size(), timeout) < 0) {
    if (errno == EINTR) return;
    throw Error(with_errno("cannot wait for the ranks"));
  }
  if (ready[1].revents) return kill_all("");  // no one is left to tell
  // Reads output before signals, so that a rank's output comes before the news of its end.
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (ready[i + first_stream].revents) streams[i]->read_ready();
  if (outlets < ready.size()) {
    out_.write_ready();
    err_.write_ready();
  }
  if (ready[0].revents) take_signals();
  take_reports();  // after the news of an end: a rank reports before it ends
  judge();
  if (errors_.due().expired()) errors_.show_all();
  if (out_.broken() == EPIPE && !terminating_) terminate(128 + SIGPIPE);
  if (terminating_ && kill_at_.expired() && running_ > 0) kill_all("did not end and was killed");
}

void Supervisor::take_signals() {
  while (const auto signal = LaunchSignals::next(signals_)) {
    if (*signal == SIGCHLD) {
      take_ended();
    } else {
      pass_on(*signal);
    }
  }
}

void Supervisor::take_ended() {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    // Otherwise it is an orphan of some rank.
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& candidate) {
      return candidate.running && candidate.pid == pid;
    });
    if (rank == ranks_.end()) continue;
    rank->running = false;
    rank->status = status;
    --running_;
    for (auto& stream : rank->streams) stream.finish();
    if (status == 0) continue;
    if (failed_.empty()) judge_at_ = Deadline::in(culprit_time);
    failed_.push_back(&*rank);
  }
}

void Supervisor::take_reports() {
  for (const auto& report : reports_.read_ready()) {
    if (report.kind == ReportPipe::Report::Kind::expendable)
      expendable_.insert(report.rank);
    else
      blames_[report.rank] = report;
  }
}

void Supervisor::pass_to_ranks(int signal) {
  for (const auto& rank : ranks_)
    if (rank.running) ::kill(-rank.pid, signal);
}

// Also continues stopped ranks, which would not see the signal otherwise.
void Supervisor::ask_to_end(int signal) {
  pass_to_ranks(signal);
  pass_to_ranks(SIGCONT);
}

void Supervisor::pass_on(int signal) {
  if (signal == SIGINT) {
    // No one presses Ctrl-C twice within this time.
    constexpr auto one_keypress = std::chrono::milliseconds(200);
    const auto now = Deadline::Clock::now();
    if (interrupted_at_ && now - *interrupted_at_ < one_keypress) return;
    if (interrupted_at_) {
      exit_code_ = 128 + SIGINT;
      err_.put("echelon: interrupted again: the ranks are killed, and save nothing\n");
      return kill_all("");
    }
    interrupted_at_ = now;
  }
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) {
    stop_signal_ = signal;
    ask_to_end(signal);
  } else {
    // Ranks are not jobs of the shell, so they may ignore a request to stop.
    pass_to_ranks(signal == SIGTSTP ? SIGSTOP : signal);
  }
  if (signal == SIGINT && ::isatty(STDERR_FILENO))
    err_.put("echelon: waiting for the ranks to end; Ctrl-C again kills them\n");
}

void Supervisor::terminate(int exit_code) {
  if (exit_code_ == 0) exit_code_ = exit_code;
  terminating_ = true;
  kill_at_ = Deadline::in(options_.grace);
  ask_to_end(SIGTERM);
}

void Supervisor::kill_all(const char* why) {
  for (auto& rank : ranks_) {
    if (rank.running && *why) say(fmt::format("rank {} (pid {}) {}", rank.rank, rank.pid, why));
    rank.running = false;
  }
  running_ = 0;  // run() continues and ends all descendants
}

void Supervisor::say(const std::string& message) {
  err_.put(fmt::format("echelon: error: {}\n", message));
}

}  // namespace echelon
