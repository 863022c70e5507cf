// Algorithms that send messages, as tables: for each step, what a rank sends to whom and what it
// does with what it receives. One executor (messenger.h) runs them all.
//
// A lane is a sequence of steps that runs by itself; a bidirectional ring has two. Within a lane,
// sends go in order and receives go in order, each as far ahead of the other as the data allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "echelon/collective/call.h"

namespace echelon {

enum class Buffer : std::uint8_t { in, out, scratch };

// Elements of a buffer.
struct Piece {
  Buffer buffer = Buffer::out;
  std::size_t begin = 0, count = 0;

  bool overlaps(const Piece& other) const {
    return buffer == other.buffer && begin < other.begin + other.count &&
           other.begin < begin + count;
  }
};

struct Step {
  int to = -1;  // -1: sends nothing
  Piece send = {};
  int from = -1;  // -1: receives nothing
  Piece receive = {};
  // What is received is combined with `with` before it is stored; `received_first` orders the two,
  // so that both sides of an exchange compute the same.
  bool combine = false;
  Piece with = {};
  bool received_first = false;
  // An average's division, by the rank that completes a sum.
  bool finish = false;
};

struct Schedule {
  std::vector<std::vector<Step>> lanes;
  std::size_t scratch = 0;     // elements
  bool starts_in_out = false;  // `out` must hold a copy of `in` before the first step
  bool finish_here = false;    // this rank divides for an average itself, at the end
  // Vectors of all ranks wait in scratch (one's own: this piece of `in`), and are summed in the
  // order of the ranks at the end.
  bool sum_scratch = false;
  Piece own = {};
};

// The steps of `rank` among `size` ranks. The algorithm must suit the operation: InvalidArgument
// otherwise, naming those that do.
Schedule make_schedule(const Call& call, Algorithm algorithm, int rank, int size);

// Those that suit, the default first.
std::vector<Algorithm> message_algorithms(Operation operation);

// Bounds of `parts` pieces of a vector, the first ones an element longer.
std::vector<std::size_t> even_parts(std::size_t count, int parts);

}  // namespace echelon
