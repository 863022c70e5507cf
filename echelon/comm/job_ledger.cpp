#include "echelon/comm/job_ledger.h"

#include <nlohmann/json.hpp>

#include "echelon/comm/communicator.h"
#include "echelon/comm/texts.h"

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

std::string job_ledger(Communicator* ranks, Extent extent) {
  ordered_json operations = ordered_json::array();
  if (ranks != nullptr) {
    const std::string mine = own_entries(*ranks).dump();
    for (const auto& text :
         extent == Extent::this_rank ? std::vector{mine} : gather_texts(*ranks, mine, "ledger"))
      for (const auto& entry : ordered_json::parse(text)) operations.push_back(entry);
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
