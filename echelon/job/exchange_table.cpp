#include "echelon/job/exchange_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "echelon/base/bytes.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// What a row is called: "gradients 2", "gather 4", "push 1".
std::string name_of_row(Purpose purpose, Operation operation, int part) {
  std::string name = to_string(purpose);
  if (operation == Operation::reduce_scatter) name = "scatter";
  if (operation == Operation::all_gather) name = "gather";
  if (purpose == Purpose::activations) name = operation == Operation::send ? "send" : "receive";
  return part < 0 ? name : fmt::format("{} {}", name, part);
}

double ms(double seconds) { return seconds * 1e3; }

// Without decimals from a second on, so that a line fits.
std::string ms_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.2f}", ms(seconds)) : fmt::format("{:.0f}", ms(seconds));
}

// Five of these stand in one line.
std::string short_ms_text(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.2f}", ms(seconds)) : fmt::format("{:.0f}", ms(seconds));
}

// "gather 1 x2": two in a step.
std::string name_in_step(const std::string& name, std::int64_t times, std::int64_t exchanges) {
  if (exchanges == 0 || times <= exchanges) return name;
  return fmt::format("{} x{:.3g}", name, double(times) / double(exchanges));
}

std::string time_text(double seconds) { return seconds > 0 ? ms_text(seconds) + " ms" : "-"; }

}  // namespace

ExchangeTable::ExchangeTable(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}

void ExchangeTable::add(const StepReport& step) {
  if (!std::exchange(stepped_, true)) return;
  ++steps_;
  seconds_ += step.seconds;
  compute_ += step.times.compute;
  exposed_ += step.times.exposed;
  hidden_ += step.times.hidden;
  update_ += step.times.update;
}

ExchangeTable::Row& ExchangeTable::row_of(const Exchanged& one) {
  const auto [place, is_new] = order_.try_emplace(std::tuple(one.purpose, one.operation, one.part),
                                                  std::int64_t(order_.size()));
  return rows_[{place->second, one.purpose, one.operation, one.part}];
}

void ExchangeTable::add(const ExchangeReport& report) {
  if (!std::exchange(exchanged_, true)) return;
  ++exchanges_;
  for (const Exchanged& one : report.exchanges) {
    if (one.purpose == Purpose::loss) continue;
    Row& row = row_of(one);
    const double ran = seconds_of(one.span.end - one.span.begin);
    row.bytes = one.bytes;
    row.here = one.here;
    row.seconds += ran;
    row.waited += one.waited;
    row.hidden += std::max(0.0, ran - one.waited);
    ++row.times;
  }
  count_sent(report.sent);
  predict_waiting(report);
}

void ExchangeTable::count_sent(const std::vector<Ledger::Entry>& sent) {
  for (auto& [key, row] : rows_) {
    const auto& [order, purpose, operation, part] = key;
    if (row.here) continue;
    if (purpose == Purpose::pull) {  // the server counts what it sends
      row.algorithm = Algorithm::direct;
      row.link = LinkKind::tcp;
      row.known = true;
    }
    const std::string tag = tag_of({.purpose = purpose, .part = part, .told_apart = part >= 0});
    for (const auto& entry : sent) {
      if (entry.tag != tag || entry.operation != operation || entry.calls + entry.bytes == 0)
        continue;
      row.algorithm = entry.algorithm;
      row.link = entry.link;
      row.known = true;
      row.sent += entry.bytes;
    }
    const bool collective = operation != Operation::send && operation != Operation::receive;
    if (collective && row.known)
      row.predicted = ranks_->predicted(operation, row.algorithm, row.bytes);
  }
}

// Exchanges run one after the other: each begins when it is ready and the one before it has ended.
void ExchangeTable::predict_waiting(const ExchangeReport& report) {
  Clock::time_point backward{}, last{}, predicted{};
  for (const auto& one : report.actions)
    if (one.action.kind == Action::Kind::backward) backward = std::max(backward, one.end);
  for (const Exchanged& one : report.exchanges) {
    if (one.purpose != Purpose::gradients || one.operation != Operation::all_reduce) continue;
    last = std::max(last, one.span.end);
    const auto time = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(row_of(one).predicted));
    predicted = std::max(predicted, one.asked) + time;
  }
  after_ += std::max(0.0, seconds_of(last - backward));
  predicted_after_ += std::max(0.0, seconds_of(predicted - backward));
}

std::string ExchangeTable::text() const {
  const double steps = double(std::max<std::int64_t>(1, steps_));
  const double other = std::max(0.0, seconds_ - compute_ - exposed_ - update_);
  std::string text = fmt::format("mean step {} ms: {} computing, {} waiting, {} update, {} other\n",
                                 short_ms_text(seconds_ / steps), short_ms_text(compute_ / steps),
                                 short_ms_text(exposed_ / steps), short_ms_text(update_ / steps),
                                 short_ms_text(other / steps));
  text += fmt::format("{:<14} {:>10}  {:<18} {:<6} {:>9} {:>9} {:>6}\n", "exchange", "size",
                      "algorithm", "link", "predicted", "measured", "hidden");
  for (const auto& [key, row] : rows_) {
    const auto& [order, purpose, operation, part] = key;
    const double times = double(std::max<std::int64_t>(1, row.times));
    const bool known = row.known;
    text += fmt::format("{:<14} {:>10}  {:<18} {:<6} {:>9} {:>9} {:>4.0f} %\n",
                        name_in_step(name_of_row(purpose, operation, part), row.times, exchanges_),
                        human_bytes(row.bytes), known ? name(row.algorithm) : "-",
                        known      ? name(row.link)
                        : row.here ? "here"
                                   : "-",
                        time_text(row.predicted), time_text(row.seconds / times),
                        row.seconds > 0 ? 100 * row.hidden / row.seconds : 0.0);
  }
  return text;
}

std::string ExchangeTable::json() const {
  const double steps = double(std::max<std::int64_t>(1, steps_));
  const double exchanges = double(std::max<std::int64_t>(1, exchanges_));
  auto rows = nlohmann::ordered_json::array();
  for (const auto& [key, row] : rows_) {
    const auto& [order, purpose, operation, part] = key;
    const double times = double(std::max<std::int64_t>(1, row.times));
    const bool known = row.known;
    rows.push_back({{"name", name_of_row(purpose, operation, part)},
                    {"purpose", to_string(purpose)},
                    {"operation", name(operation)},
                    {"part", part},
                    {"bytes", row.bytes},
                    {"algorithm", known ? name(row.algorithm) : ""},
                    {"link", known      ? name(row.link)
                             : row.here ? "here"
                                        : ""},
                    {"times", row.times},
                    {"sent", row.sent},
                    {"predicted_ms", ms(row.predicted)},
                    {"measured_ms", ms(row.seconds / times)},
                    {"waited_ms", ms(row.waited / times)},
                    {"hidden", row.seconds > 0 ? row.hidden / row.seconds : 0.0}});
  }
  const nlohmann::ordered_json all = {
      {"rank", ranks_->rank()},
      {"steps", steps_},
      {"step_ms", ms(seconds_ / steps)},
      {"compute_ms", ms(compute_ / steps)},
      {"waited_ms", ms(exposed_ / steps)},
      {"hidden_ms", ms(hidden_ / steps)},
      {"update_ms", ms(update_ / steps)},
      {"after_backward_ms", ms(after_ / exchanges)},
      {"after_backward_predicted_ms", ms(predicted_after_ / exchanges)},
      {"exchanges", rows}};
  return all.dump(2) + "\n";
}

}  // namespace echelon
