// The cost of collectives, by the formulas of the literature, and the choice of the cheapest
// algorithm.
//
//   alpha  latency of a message in seconds (shared memory: of a barrier)
//   beta   seconds per byte
//   gamma  seconds to reduce a byte
//
// For n bytes among p ranks on m hosts of g ranks each, lg the logarithm to base 2:
//
//   ring                2(p-1) alpha + 2((p-1)/p) n beta + ((p-1)/p) n gamma
//   bidirectional ring  the same: one full-duplex network card is already full with a one-way ring
//   recursive doubling  lg p (alpha + n beta + n gamma)
//   Rabenseifner        2 lg p alpha + 2((p-1)/p) n beta + ((p-1)/p) n gamma
//   direct              (p-1)(alpha + n beta + n gamma); on several hosts (p-1)(alpha + n gamma) +
//                       g(p-g) n beta across + (g-1) n beta inside
//   hierarchical        inside 2(g-1) alpha + 2((g-1)/g) n beta + ((g-1)/g) n gamma,
//                       across 2(m-1) alpha + 2((m-1)/m) n beta + ((m-1)/m)(n/g) gamma
//   shared, direct      alpha + n beta + (p-1) n (beta + gamma)
//   shared              registered buffers: 2 alpha + ((p-1)/p) n (beta + gamma), since nobody
//                       waits for what is written to others; private ones, which are staged:
//                       2 alpha + 2 n beta + ((p-1)/p) n (beta + gamma)
//
// On several hosts the g ranks of a host share one network card: what k of them send across at the
// same time counts k times. Where every rank sends b bytes to every other (direct, servers beside
// the workers, all_to_all), g(p-g) b cross each card; the rest stays inside.
//
// Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH" (2005); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "echelon/base/json_reader.h"
#include "echelon/collective/call.h"

namespace echelon {

struct LinkFigures {
  double alpha = 0, beta = 0;
};

struct Figures {
  LinkFigures shared{1e-6, 1e-10};
  LinkFigures tcp{3e-5, 1e-9};
  double gamma = 1e-10;
  bool single_copy = false;  // reading private buffers of neighbours in place beats staging

  std::int64_t measured = 0;  // time in seconds since 1970; 0: default values
  double spread = 1;          // ratio of slow to fast times of a message
  bool reused = false;        // an earlier job measured them
  double age() const;         // seconds since they were measured

  std::string json() const;
  static Figures parse(const std::string& json, const std::string& where);  // throws Corrupt
  static Figures read(const JsonReader& json);                              // throws Corrupt
};

// On one host, the sizes from which direct is not the cheapest: for registered and private buffers.
struct SharedCrossings {
  std::size_t registered, staged;
};
SharedCrossings shared_crossings(int ranks, const Figures& figures);

struct Shape {
  int ranks = 1;
  int hosts = 1;
  int local = 1;  // the smallest number of ranks on a host
  bool operator==(const Shape&) const = default;
  std::string text() const;  // "4 ranks on 2 hosts"
};

// Where the vectors of an operation lie: in any memory, or in Group::allocate's.
enum class BufferKind { any, registered };

// Seconds of one operation on `bytes` (of the whole vector; all_to_all: of one rank's input).
double cost(Operation operation, Algorithm algorithm, std::size_t bytes, const Shape& shape,
            const Figures& figures, BufferKind buffers = BufferKind::any);

// The algorithms that are possible for the shape.
std::vector<Algorithm> candidates(Operation operation, const Shape& shape);

// The algorithm for sizes up to and including `bytes`.
struct Choice {
  std::size_t bytes;
  Algorithm algorithm;
};
std::vector<Choice> choose(Operation operation, const Shape& shape, const Figures& figures);

}  // namespace echelon
