// Measured figures and chosen algorithms, stored in plan.json under "communication":
//
//   {"figures": {…}, "shape": {"ranks": 4, "hosts": 2, "local": 2},
//    "choices": {"all_reduce": [{"up_to_bytes": 4096, "algorithm": "recursive_doubling"}, …], …}}
//
// A job with a given plan measures nothing: groups of the plan's shape use its choices, other
// groups choose by its figures. On one host the path of an all-reduce depends on the figures and on
// the kind of its buffers, and every path gives the same bits. So the same plan gives the same
// bits.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "echelon/collective/cost.h"

namespace echelon {

struct Plan {
  Figures figures;
  Shape shape;
  std::vector<std::vector<Choice>> choices;  // by operation, all_reduce … barrier

  static Plan make(const Figures& figures, const Shape& shape);
  std::string json() const;
  // Reads a plan.json with a "communication" part, or that part alone. Throws Corrupt.
  static Plan read(const std::filesystem::path& file);
  static Plan parse(const std::string& json, const std::string& where);
  // Throws InvalidArgument for a choice that is impossible for the shape.
  void check() const;
};

}  // namespace echelon
