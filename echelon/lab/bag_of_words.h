// The baseline of the lab: which words a text has and how often, and not their order. Multinomial
// logistic regression over word counts, at the optimum of a convex problem:
//
//   minimise over W: mean over texts of -log softmax(W counts)[label] + (penalty / 2) |W|^2
//
// A classifier that beats it has learnt something about how words are combined.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace echelon {

struct LabelledText {
  std::string_view text;  // words apart by blanks
  int label = 0;          // from 0
};

struct BagOfWords {
  std::vector<bool> right = {};  // for each validation text
  double objective = 0;          // what was minimised
  double gradient = 0;           // its norm where the search ended
  bool converged = false;        // the gradient is small enough
  int steps = 0;

  // The share of right labels among the validation texts from `begin` on.
  double accuracy(std::size_t begin = 0) const;
};

// Throws InvalidArgument if there are no texts, or a label is negative or beyond 65535.
BagOfWords bag_of_words(std::span<const LabelledText> training,
                        std::span<const LabelledText> validation, double penalty = 1e-5);

}  // namespace echelon
