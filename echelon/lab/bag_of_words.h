// The baseline of the lab: which words a text has and how often, and not their order. Multinomial
// logistic regression over word counts, at the optimum of a convex problem:
//
//   minimise over W: mean over texts of -log softmax(W counts)[label] + (penalty / 2) |W|^2
//
// A classifier that beats it has learnt something about how words are combined.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace echelon {

struct LabelledText {
  std::string_view text;  // words apart by blanks
  int label = 0;          // from 0
};

struct BagOfWords {
  double accuracy = 0;   // on the validation texts
  double objective = 0;  // what was minimised
  double gradient = 0;   // its norm where the search ended
  int steps = 0;
};

// Throws InvalidArgument if there are no texts, or a label is negative or beyond 65535.
BagOfWords bag_of_words(std::span<const LabelledText> training,
                        std::span<const LabelledText> validation, double penalty = 1e-5);

}  // namespace echelon
