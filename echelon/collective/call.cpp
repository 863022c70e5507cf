#include "echelon/collective/call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/options.h"

namespace echelon {
namespace {

constexpr std::array operations = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                   "reduce",     "gather",         "scatter",    "all_to_all",
                                   "barrier",    "send",           "receive"};

bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
         operation == Operation::reduce;
}

bool has_root(Operation operation) {
  return operation == Operation::broadcast || operation == Operation::reduce ||
         operation == Operation::gather || operation == Operation::scatter;
}

}  // namespace

const char* name(Operation operation) { return operations.at(std::size_t(operation)); }

std::uint64_t signature(const Call& call, Algorithm algorithm) {
  return std::uint64_t(call.operation) | std::uint64_t(algorithm) << 8 |
         std::uint64_t(call.type) << 16 |
         std::uint64_t(reduces(call.operation) ? std::uint64_t(call.op) + 1 : 0) << 24 |
         std::uint64_t(has_root(call.operation) ? std::uint32_t(call.root) + 1 : 0) << 32;
}

std::string describe(std::uint64_t signature, std::size_t count) {
  const auto field = [&](int shift) { return std::size_t(signature >> shift & 0xff); };
  const std::size_t root = std::size_t(signature >> 32);
  if (field(0) >= operations.size() || field(8) >= all_names<Algorithm>.size() ||
      field(16) > std::size_t(DataType::boolean) || field(24) > std::size_t(ReduceOp::product) + 1)
    return "something unknown";
  std::string text = operations[field(0)];
  if (Operation(field(0)) == Operation::barrier) return text;
  if (field(24)) text += fmt::format(" ({})", name(ReduceOp(field(24) - 1)));
  text += fmt::format(" of {} {}", count, name(DataType(field(16))));
  if (root) text += fmt::format(", root {}", root - 1);
  if (Algorithm(field(8)) != Algorithm::automatic)
    text += fmt::format(", by {}", name_of(Algorithm(field(8))));
  return text;
}

std::string describe_bytes(std::uint64_t signature, std::size_t bytes) {
  const std::size_t type = signature >> 16 & 0xff;
  return describe(signature,
                  bytes / (type <= std::size_t(DataType::boolean) ? size_of(DataType(type)) : 1));
}

std::string disagreement(const std::string& who, std::uint64_t theirs, std::size_t their_bytes,
                         int rank, std::uint64_t mine, std::size_t my_bytes) {
  return fmt::format("ranks disagree: {} called {}, this rank (rank {}) {}", who,
                     describe_bytes(theirs, their_bytes), rank, describe_bytes(mine, my_bytes));
}

std::string describe(const Call& call, Algorithm algorithm) {
  const std::size_t count = call.count > 0 ? call.count : total(call.counts);
  const std::string text = describe(signature(call, algorithm), count);
  return call.tag.empty() ? text : fmt::format("{}, tag \"{}\"", text, call.tag);
}

std::size_t total(std::span<const std::size_t> counts) {
  std::size_t sum = 0;
  for (const auto count : counts) sum += count;
  return sum;
}

std::vector<std::size_t> bounds_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> bounds = {0};
  for (const auto count : counts) bounds.push_back(bounds.back() + count);
  return bounds;
}

}  // namespace echelon
