// Decides which rank failed first. Ranks of a job fail together: one dies, ranks that talk to it
// lose it, and ranks that talk to those lose them in turn. The launcher sees ends in any order, and
// ranks tell it whom they blame (launcher_report.h). It blames, in this order:
//
//   0  a rank that a signal killed
//   1  a rank that failed and blames no one
//   2  the rank that a failed rank blames, unless that rank fails by itself within a moment; then
//      it is case 0 or 1
//
// A rank that exits as interrupted has not failed: the others are asked to end as well, and take
// the time they need.
//
// The failure of an expendable rank ends no other rank, unless it failed because of a rank that the
// job needs: one that it blames, or one that is stopped. Nor does it hold a job up: it is killed
// some time after the others have ended.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "echelon/launch/process_tree.h"
#include "echelon/launch/supervisor.h"

namespace echelon {
namespace {

std::string process(int rank, pid_t pid) { return fmt::format("rank {} (pid {})", rank, pid); }

constexpr const char* is_stopped_text = "is stopped (by kill -STOP, Ctrl-Z or a debugger)";

}  // namespace

void Supervisor::judge() {
  if (terminating_) return;  // the others follow the first
  if (!failed_.empty()) judge_failed();
  if (!terminating_) end_stragglers();
}

bool Supervisor::is_interrupted(int status) const {
  if (WIFEXITED(status)) return WEXITSTATUS(status) == exit_interrupted;
  const int signal = WTERMSIG(status);
  return options_.takes_interrupts && (signal == SIGINT || signal == SIGTERM || signal == SIGHUP);
}

void Supervisor::judge_failed() {
  take_interruption();
  if (stop_signal_ != 0) return judge_stopped();
  forgive_expendable();
  if (failed_.empty()) return;
  const Rank& first = **std::min_element(
      failed_.begin(), failed_.end(),
      [&](const Rank* a, const Rank* b) { return innocence(*a) < innocence(*b); });
  if (innocence(first) == 2 && running_ > 0 && !judge_at_.expired()) return;
  blame(first);
  failed_.clear();
  terminate(exit_code_of(first.status));
}

// Someone else has asked a rank to end. Ranks that have already agreed to end are unaffected.
void Supervisor::take_interruption() {
  if (stop_signal_ != 0 || std::none_of(failed_.begin(), failed_.end(), [&](const Rank* rank) {
        return is_interrupted(rank->status);
      }))
    return;
  stop_signal_ = SIGTERM;
  ask_to_end(SIGTERM);
}

// Ranks that were asked to end may do so in their own way and time. Some then fail because another
// rank ended before them, which is not reported. Any other failure is, and sets the exit code.
void Supervisor::judge_stopped() {
  for (const Rank* rank : std::exchange(failed_, {})) {
    const int code = is_interrupted(rank->status) ? exit_interrupted : exit_code_of(rank->status);
    const bool asked = code == exit_interrupted || code == 128 + stop_signal_;
    if (asked || code == exit_after_lost_peer) {
      if (!asked) errors_.drop_of(rank->rank);
      if (exit_code_ == 0 || (asked && exit_code_ == exit_after_lost_peer)) exit_code_ = code;
      continue;
    }
    if (!stop_failed_) exit_code_ = code;
    stop_failed_ = true;
    errors_.show_all();
    report(*rank);
  }
}

void Supervisor::forgive_expendable() {
  for (const Rank* rank : std::vector<const Rank*>(failed_)) {
    if (is_needed(*rank) || waited_for_needed(*rank)) continue;
    errors_.show_all();
    report(*rank);
    forgiven_.push_back(rank);
    std::erase(failed_, rank);
  }
}

const Supervisor::Rank* Supervisor::stopped_needed() const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& one) {
    return one.running && is_needed(one) && is_stopped(one.pid);
  });
  return found != ranks_.end() ? &*found : nullptr;
}

// Whether the rank failed because of one that the job needs. A blamed rank that ended well does not
// count.
bool Supervisor::waited_for_needed(const Rank& rank) const {
  if (WIFSIGNALED(rank.status)) return false;
  if (stopped_needed()) return true;
  const auto blamed = blames_.find(rank.rank);
  const Rank* other = blamed != blames_.end() ? local(blamed->second.other) : nullptr;
  return other && is_needed(*other) && (other->running || other->status != 0);
}

// Whether only expendable ranks are left. If a machine has no others, one that ended well shows
// that the job is over.
bool Supervisor::is_over() const {
  bool ended = false;
  for (const auto& rank : ranks_) {
    if (rank.running && is_needed(rank)) return false;
    ended |=
        !rank.running && (rank.status == 0 || (is_needed(rank) && is_interrupted(rank.status)));
  }
  return running_ > 0 && ended;
}

void Supervisor::end_stragglers() {
  if (!is_over()) return;
  if (!leave_by_) leave_by_ = Deadline::in(options_.leave);
  if (!leave_by_->expired()) return;
  errors_.show_all();
  for (const auto& rank : ranks_)
    if (rank.running)
      say(fmt::format("{} {}; the job has ended without it, and it was killed",
                      process(rank.rank, rank.pid),
                      is_stopped(rank.pid) ? is_stopped_text : "still runs"));
  kill_all("");
}

Deadline Supervisor::next_look() const {
  if (terminating_) return kill_at_;
  if (!failed_.empty()) return judge_at_;
  return leave_by_.value_or(Deadline::never());
}

int Supervisor::innocence(const Rank& rank) const {
  if (WIFSIGNALED(rank.status)) return 0;
  return WEXITSTATUS(rank.status) != exit_after_lost_peer && !blames_.contains(rank.rank) ? 1 : 2;
}

const Supervisor::Rank* Supervisor::local(int rank) const {
  const auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& one) { return one.rank == rank; });
  return found != ranks_.end() ? &*found : nullptr;
}

// Sets the final message: from the rank that failed to the rank that it blames, which may blame
// another, as far as is known here.
void Supervisor::blame(const Rank& failed) {
  const Rank* culprit = &failed;
  std::set<int> seen;
  while (!WIFSIGNALED(culprit->status) && blames_.contains(culprit->rank) &&
         seen.insert(culprit->rank).second) {
    const auto& report = blames_.at(culprit->rank);
    const Rank* other = local(report.other);
    if (other == nullptr) {
      verdict_ = fmt::format("{} failed first, as {} says", report.name,
                             process(culprit->rank, culprit->pid));
      break;
    }
    culprit = other;
  }
  culprit_ = culprit;
  if (!culprit->running && culprit->status != 0) {
    // For programs that do not say which rank they waited for.
    if (const Rank* stopped = stopped_needed();
        stopped && verdict_.empty() && !WIFSIGNALED(culprit->status))
      verdict_ = fmt::format("{} {}; the others may have waited for it",
                             process(stopped->rank, stopped->pid), is_stopped_text);
    return;
  }
  culprit_ = culprit->running ? nullptr : &failed;
  verdict_ = fmt::format("{} {}; {}, which waited for it, {}", process(culprit->rank, culprit->pid),
                         !culprit->running          ? "had ended before"
                         : is_stopped(culprit->pid) ? is_stopped_text
                                                    : "did not come in time",
                         process(failed.rank, failed.pid), describe_end(failed.status));
}

void Supervisor::report(const Rank& rank) {
  const auto& lines = rank.last.lines();
  const bool shown = rank.rank == 0 || !options_.quiet_others;
  const bool explained = shown && !lines.empty() && FinalErrors::is_one(lines.back());
  std::vector<int> alike;  // ranks that failed in the same way
  for (const auto& one : ranks_)
    if (&one == &rank || (explained && !one.running && one.status == rank.status &&
                          !one.last.lines().empty() && one.last.lines().back() == lines.back()))
      alike.push_back(one.rank);
  const std::string who = alike.size() == 1 ? fmt::format("rank {} (pid {})", rank.rank, rank.pid)
                          : std::ssize(alike) == options_.nproc * options_.nodes
                              ? fmt::format("all {} ranks", alike.size())
                              : fmt::format("ranks {}", rank_ranges(alike));
  std::string text = fmt::format("{} {}", who, describe_end(rank.status));
  if (!lines.empty() && options_.nproc > 1 && !explained) {
    text += "; its last lines:";
    for (const auto& line : lines) text += "\n  " + line;
  }
  if (rank.log && alike.size() == 1)
    text += fmt::format("\nAll it printed is in {}",
                        (options_.log_dir / fmt::format("rank-{}.log", rank.rank)).string());
  else if (rank.log)
    text += fmt::format("\nAll that they printed is in {}", options_.log_dir.string());
  say(text);
}

}  // namespace echelon
