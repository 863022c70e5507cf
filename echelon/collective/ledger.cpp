#include "echelon/collective/ledger.h"

#include <nlohmann/json.hpp>

namespace echelon {

void Ledger::add(Operation operation, std::string_view tag, Algorithm algorithm, LinkKind link,
                 std::uint64_t bytes, std::uint64_t calls) {
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const Entry& entry) {
    return entry.operation == operation && entry.algorithm == algorithm && entry.link == link &&
           entry.tag == tag;
  };
  if (last_ >= entries_.size() || !fits(entries_[last_])) {
    for (last_ = 0; last_ < entries_.size() && !fits(entries_[last_]);) ++last_;
    if (last_ == entries_.size())
      entries_.push_back({operation, std::string(tag), algorithm, link});
  }
  entries_[last_].calls += calls;
  entries_[last_].bytes += bytes;
}

std::vector<Ledger::Entry> Ledger::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<Ledger::Entry> Ledger::since(const std::vector<Entry>& before) const {
  auto all = entries();
  for (std::size_t i = 0; i < before.size(); ++i) {
    all[i].calls -= before[i].calls;
    all[i].bytes -= before[i].bytes;
  }
  return all;
}

void Ledger::add(const std::vector<Entry>& again) {
  for (const auto& entry : again)
    if (entry.calls > 0)
      add(entry.operation, entry.tag, entry.algorithm, entry.link, entry.bytes, entry.calls);
}

std::uint64_t Ledger::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& entry : entries()) sum += entry.bytes;
  return sum;
}

std::uint64_t Ledger::bytes(LinkKind link) const {
  std::uint64_t sum = 0;
  for (const auto& entry : entries()) sum += entry.link == link ? entry.bytes : 0;
  return sum;
}

void Ledger::restore(std::vector<Entry> entries) {
  const std::lock_guard lock(mutex_);
  entries_ = std::move(entries);
  last_ = 0;
}

std::string Ledger::json(int rank) const {
  nlohmann::ordered_json all = {
      {"rank", rank}, {"bytes", bytes()}, {"entries", nlohmann::ordered_json::array()}};
  for (const auto& entry : entries())
    all["entries"].push_back({{"operation", name(entry.operation)},
                              {"tag", entry.tag},
                              {"algorithm", name(entry.algorithm)},
                              {"link", name(entry.link)},
                              {"calls", entry.calls},
                              {"bytes", entry.bytes}});
  return all.dump(2) + "\n";
}

}  // namespace echelon
