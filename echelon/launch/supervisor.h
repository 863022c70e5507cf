// The parent of the ranks: starts them, forwards their output and signals, and ends them. It runs
// in a process of its own; the launcher and this process watch each other (launcher.cpp).
#pragma once

#include <sys/types.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/launch/launch_signals.h"
#include "echelon/launch/rank_output.h"
#include "echelon/launch/rank_process.h"
#include "echelon/launch/rank_setup.h"
#include "echelon/launch/report_pipe.h"

namespace echelon {

class Supervisor {
 public:
  // `launcher` is a socket whose other end closes when the launcher dies.
  Supervisor(const LaunchOptions& options, JobSetup job, const LaunchSignals& signals,
             Descriptor launcher);

  // Returns the exit code of the launch. No descendant is left then.
  int run();

 private:
  struct Rank {
    int rank = 0;
    pid_t pid = 0;
    bool running = true;
    int status = 0;  // as returned by wait
    Descriptor log;
    LastLines last;
    std::deque<RankOutput> streams;  // standard output and error; none when it shares ours
  };

  void start();
  bool start_rank_of(int local_rank, const rlimit& files);
  void wait_for_something();
  void take_signals();
  void take_ended();
  void take_reports();
  void pass_on(int signal);
  void pass_to_ranks(int signal);
  void ask_to_end(int signal);

  // Which rank failed first, and whether that ends the others (supervisor_verdict.cpp).
  void judge();
  void judge_failed();
  void judge_stopped();
  void take_interruption();
  void forgive_expendable();
  int innocence(const Rank& rank) const;
  void blame(const Rank& failed);
  const Rank* local(int rank) const;
  bool is_interrupted(int status) const;
  bool is_needed(const Rank& rank) const { return !expendable_.contains(rank.rank); }
  const Rank* stopped_needed() const;
  bool waited_for_needed(const Rank& rank) const;

  // Expendable ranks after the others have ended (supervisor_verdict.cpp).
  bool is_over() const;
  void end_stragglers();
  Deadline next_look() const;

  void terminate(int exit_code);
  void kill_all(const char* why);
  void say(const std::string& message);
  void report(const Rank& rank);

  // How long to wait, after ranks failed because of another, for the end of that rank, which may
  // still be freeing its memory.
  static constexpr std::chrono::seconds culprit_time{1};

  const LaunchOptions& options_;
  JobSetup job_;
  const LaunchSignals& launch_signals_;
  Descriptor launcher_, signals_;
  LiveLine live_;
  Outlet out_{1}, err_{2};
  std::deque<Rank> ranks_;  // a deque: its elements do not move
  FinalErrors errors_;
  ReportPipe reports_;
  std::set<int> expendable_;                  // as reported by these ranks
  std::map<int, ReportPipe::Report> blames_;  // the rank that a rank blames
  std::vector<const Rank*> failed_;           // not yet judged
  std::vector<const Rank*> forgiven_;         // expendable ones that failed
  const Rank* culprit_ = nullptr;             // the rank that failed first; reported last
  std::string verdict_;                       // the message after that
  Deadline judge_at_ = Deadline::in(Deadline::Clock::duration::max());
  std::optional<Deadline> leave_by_;  // set once only expendable ranks are left
  int running_ = 0;
  int exit_code_ = 0;         // of the first failure
  int stop_signal_ = 0;       // the last signal that was forwarded to end the ranks
  bool stop_failed_ = false;  // a rank that was asked to end failed instead
  std::optional<Deadline::Clock::time_point> interrupted_at_;  // the first Ctrl-C
  bool terminating_ = false;
  Deadline kill_at_ = Deadline::in(Deadline::Clock::duration::max());
};

}  // namespace echelon
