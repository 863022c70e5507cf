#include "echelon/job/sync_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echelon/base/bytes.h"
#include "echelon/base/file.h"
#include "echelon/comm/texts.h"

namespace echelon {
namespace {

double ms(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// How a bucket was sent, by the ledger: its tag names the bucket.
struct Way {
  Algorithm algorithm = Algorithm::automatic;
  std::uint64_t bytes = 0;
};

Way way_of(const std::vector<Ledger::Entry>& added, int bucket) {
  Way way;
  for (const auto& entry : added) {
    if (entry.tag != fmt::format("gradients {}", bucket) || entry.calls + entry.bytes == 0)
      continue;
    way.algorithm = entry.algorithm;
    way.bytes += entry.bytes;
  }
  return way;
}

}  // namespace

std::string receivers(Algorithm algorithm, int rank, int size) {
  const int right = (rank + 1) % size, left = (rank + size - 1) % size;
  switch (algorithm) {
    case Algorithm::ring:
      return fmt::format("to rank {}", right);
    case Algorithm::bidirectional_ring:
      return right == left ? fmt::format("to rank {}", right)
                           : fmt::format("to ranks {} and {}", left, right);
    case Algorithm::recursive_doubling:
    case Algorithm::rabenseifner: {
      std::string partners;
      for (int step = 1; step < size; step *= 2)
        partners += fmt::format("{}{}", partners.empty() ? "" : ", ", rank ^ step);
      const bool even = (size & (size - 1)) == 0;
      return even ? fmt::format("to rank{} {}", size > 2 ? "s" : "", partners) : "to its partners";
    }
    case Algorithm::shared:
    case Algorithm::shared_direct:
      return "of the others', read and written in shared memory";
    case Algorithm::hierarchical:
      return "within this host and to its partner on each other host";
    default:
      return "to all others";
  }
}

SyncTrace::SyncTrace(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {
  ranks_->barrier({.tag = "trace", .blocking = true}).wait();
  start_ = std::chrono::steady_clock::now();
  seen_ = ranks_->ledger().entries();
}

void SyncTrace::keep(const std::string& event, Line line, Time begin, Time end,
                     const std::string& detail) {
  const nlohmann::ordered_json one = {{"name", event},
                                      {"ph", "X"},
                                      {"ts", ms(begin - start_) * 1e3},
                                      {"dur", ms(end - begin) * 1e3},
                                      {"pid", ranks_->rank()},
                                      {"tid", static_cast<int>(line)},
                                      {"args", {{"detail", detail}}}};
  events_ += (events_.empty() ? "" : ",\n") + one.dump();
}

std::string SyncTrace::step(const ExchangeReport& report, const Executor& executor) {
  const auto number = report.step;
  const auto actions = report.actions;
  const auto added = ranks_->ledger().since(seen_);
  seen_ = ranks_->ledger().entries();
  if (actions.empty()) return {};
  Time backward = actions.front().begin, end = backward;
  bool begun = false;
  for (const auto& one : actions) {
    if (one.action.kind != Action::Kind::backward) continue;
    if (!begun) backward = one.begin;
    begun = true;
    end = std::max(end, one.end);
  }
  const bool kept = ++steps_ <= most_steps;
  const bool waited = report.data_end > report.data_begin;
  if (kept && waited)
    keep("wait for data", Line::data, report.data_begin, report.data_end,
         fmt::format("step {}: its batch was not there yet", number));
  std::string lines;  // each begins with the newline of the one before
  int buckets = 0;
  for (const auto& one : actions) {
    const std::string what = to_string(one.action);
    if (one.action.kind != Action::Kind::reduce) {
      if (kept) keep(what, Line::computing, one.begin, one.end, fmt::format("step {}", number));
      continue;
    }
    ++buckets;
    const auto& bucket = executor.shape().buckets[std::size_t(one.action.bucket)];
    const Way way = way_of(added, one.action.bucket);
    const auto size = std::uint64_t(bucket.numel()) * executor.element_size();
    const std::string how = fmt::format("{} by {}: {} {}", human_bytes(size), name(way.algorithm),
                                        human_bytes(way.bytes),
                                        receivers(way.algorithm, ranks_->rank(), ranks_->size()));
    const double after = ms(one.end - end);
    lines += fmt::format("\n  bucket {}  {:<70} {:>7.2f} … {:>7.2f} ms{}", one.action.bucket, how,
                         ms(one.begin - backward), ms(one.end - backward),
                         after > 0 ? fmt::format(", {:.2f} after backward", after) : "");
    if (kept)
      keep(what, Line::reducing, one.begin, one.end, fmt::format("step {}: {}", number, how));
  }
  const auto& times = executor.times();
  return (steps_ == 1 ? "the times of a bucket are from the beginning of its step's backward\n"
                      : "") +
         fmt::format(
             "step {}  backward {:.2f} ms, {} bucket{}; of reducing {:.2f} ms hidden, {:.2f} ms waited "
             "for{}",
             number, ms(end - backward), buckets, buckets == 1 ? "" : "s", times.hidden * 1e3,
             times.exposed * 1e3,
             waited ? fmt::format("; {:.2f} ms for data", ms(report.data_end - report.data_begin))
                    : std::string()) +
         lines;
}

void SyncTrace::write(const std::filesystem::path& path) {
  const auto all = gather_texts(*ranks_, events_, "trace");
  if (ranks_->rank() != 0) return;
  std::string events;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto call = [&](const char* what, Line line, const std::string& by) {
      const nlohmann::ordered_json one = {{"name", what},
                                          {"ph", "M"},
                                          {"pid", r},
                                          {"tid", static_cast<int>(line)},
                                          {"args", {{"name", by}}}};
      events += (events.empty() ? "" : ",\n") + one.dump();
    };
    call("process_name", Line::computing, fmt::format("rank {}", r));
    call("thread_name", Line::computing, "computing");
    call("thread_name", Line::reducing, "reducing");
    call("thread_name", Line::data, "waiting for data");
    if (!all[r].empty()) events += ",\n" + all[r];
  }
  write_file(path, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events + "\n]}\n");
}

}  // namespace echelon
