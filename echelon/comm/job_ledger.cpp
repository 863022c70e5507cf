#include "echelon/comm/job_ledger.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "echelon/comm/communicator.h"

namespace echelon {
namespace {

using nlohmann::ordered_json;

ordered_json own_entries(Communicator& ranks) {
  ordered_json operations = ordered_json::array();
  for (const auto& entry : ranks.ledger().entries())
    operations.push_back({{"rank", ranks.rank()},
                          {"operation", name(entry.operation)},
                          {"tag", entry.tag},
                          {"algorithm", name(entry.algorithm)},
                          {"link", name(entry.link)},
                          {"calls", entry.calls},
                          {"bytes", entry.bytes}});
  return operations;
}

}  // namespace

std::string job_ledger(Communicator* ranks) {
  ordered_json operations = ordered_json::array();
  if (ranks != nullptr) {
    const std::string mine = own_entries(*ranks).dump();
    const at::Tensor length = at::empty({1}, at::kLong);
    length.fill_(std::int64_t(mine.size()));
    const at::Tensor lengths = at::empty({ranks->size()}, at::kLong);
    ranks->all_gather(lengths, length, {.tag = "ledger", .blocking = true}).wait();
    std::vector<std::size_t> counts(std::size_t(ranks->size()));
    std::int64_t all = 0;
    for (int r = 0; r < ranks->size(); ++r) {
      counts[std::size_t(r)] = std::size_t(lengths.data_ptr<std::int64_t>()[r]);
      all += lengths.data_ptr<std::int64_t>()[r];
    }
    const at::Tensor text = at::empty({std::int64_t(mine.size())}, at::kByte),
                     texts = at::empty({all}, at::kByte);
    std::memcpy(text.data_ptr(), mine.data(), mine.size());
    ranks->all_gather(texts, text, {.tag = "ledger", .blocking = true}, counts).wait();
    const char* at = static_cast<const char*>(texts.const_data_ptr());
    for (const std::size_t count : counts) {
      for (const auto& entry : ordered_json::parse(at, at + count)) operations.push_back(entry);
      at += count;
    }
  }
  std::uint64_t sent = 0;
  for (const auto& entry : operations) sent += entry["bytes"].get<std::uint64_t>();
  return ordered_json({{"world", ranks ? ranks->size() : 1},
                       {"sent_bytes", sent},
                       {"operations", operations}})
             .dump(2) +
         "\n";
}

}  // namespace echelon
