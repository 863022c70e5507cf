// Message-based algorithms as tables: for each step, what a rank sends to which rank, and what it
// does with the data that it receives. One executor (messenger.h) runs them all.
//
// A lane is an independent sequence of steps; a bidirectional ring has two. Within a lane, sends
// are in order and receives are in order, each as far ahead of the other as the data allows.
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
  // Received data is combined with `with` before it is stored; `received_first` orders the
  // operands, so that both sides of an exchange compute the same bits.
  bool combine = false;
  Piece with = {};
  bool received_first = false;
  // Divide for an average: set on the rank that completes a sum.
  bool finish = false;
};

struct Schedule {
  std::vector<std::vector<Step>> lanes;
  std::size_t scratch = 0;     // elements
  bool starts_in_out = false;  // `out` must hold a copy of `in` before the first step
  bool finish_here = false;    // this rank divides for an average at the end
  // The vectors of all ranks are collected in scratch (this rank's is a piece of `in`), and summed
  // in rank order at the end.
  bool sum_scratch = false;
  Piece own = {};
};

// The steps of `rank` among `size` ranks. Throws InvalidArgument, naming the possible algorithms,
// if the algorithm does not implement the operation.
Schedule make_schedule(const Call& call, Algorithm algorithm, int rank, int size);

// The algorithms that implement the operation, the default first.
std::vector<Algorithm> message_algorithms(Operation operation);

// Bounds of `parts` pieces of a vector; the first ones may be one element longer.
std::vector<std::size_t> even_parts(std::size_t count, int parts);

}  // namespace echelon
