// What was measured and chosen, as it stands in plan.json under "communication":
//
//   {"figures": {…}, "shape": {"ranks": 4, "hosts": 2, "local": 2},
//    "choices": {"all_reduce": [{"up_to_bytes": 4096, "algorithm": "recursive_doubling"}, …], …}}
//
// A job that is given a plan measures nothing: groups of the plan's shape take its choices as they
// are, others choose by its figures. On one host the path of an all-reduce follows from the figures
// and from where the buffers lie, and every path gives the same bits. Same plan, same bits.
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
  // The "communication" of a run's plan.json, or that part alone. Throws Corrupt.
  static Plan read(const std::filesystem::path& file);
  static Plan parse(const std::string& json, const std::string& where);
  // Throws InvalidArgument for a choice that cannot work on the shape.
  void check() const;
};

}  // namespace echelon
