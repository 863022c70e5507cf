// One collective operation as data: what is asked, of which memory, by when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/collective/algorithm.h"
#include "echelon/collective/type.h"
#include "echelon/net/health.h"

namespace echelon {

enum class Operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  receive,
};
const char* name(Operation operation);

// Which operation of which group something is part of; who is told when a wait in it lasts; and
// what this rank called last, operation n at n mod the length, to compare with what others tell.
struct Place {
  Health::Wait wait = {};
  std::span<const int> tell = {};
  std::span<const Health::Wait> recent = {};
};

struct Call {
  Operation operation = Operation::barrier;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  // Elements of the vector that is reduced, broadcast or reduced to a root.
  std::size_t count = 0;
  // Elements of each rank's piece: reduce_scatter, all_gather, gather, scatter. For all_to_all,
  // what goes to each rank; `back` is what comes from each.
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> back = {};
  int root = 0;
  std::string_view tag = {};
  Deadline deadline = Deadline::never();
  Place place = {};  // the call of the group that this is, or is part of

  std::size_t bytes() const { return count * size_of(type); }
};

// Elements of pieces: in all, and where each begins (and the last one ends).
std::size_t total(std::span<const std::size_t> counts);
std::vector<std::size_t> bounds_of(std::span<const std::size_t> counts);

// What must be equal on all ranks, in one word; and in words for people.
std::uint64_t signature(const Call& call, Algorithm algorithm);
std::string describe(std::uint64_t signature, std::size_t count);
std::string describe_bytes(std::uint64_t signature, std::size_t bytes);
// "ranks disagree: NAME called THEIRS, this rank (rank R) MINE"
std::string disagreement(const std::string& who, std::uint64_t theirs, std::size_t their_bytes,
                         int rank, std::uint64_t mine, std::size_t my_bytes);
std::string describe(const Call& call, Algorithm algorithm);  // with its tag

}  // namespace echelon
