// Low-rank adaptation of products (Hu et al., "LoRA", 2021). The matrix W of a product is frozen,
// and a product of two narrow ones is added to it:
//
//   y = x W + b + alpha / rank (x A) B,   A [in, rank], B [rank, out]
//
// A starts from a normal distribution and B from zero, so the model starts as it was. A layer needs
// no code for it: Linear asks the Stack for the adaptation of its product, declares A and B as
// "NAME.lora_A.weight" and "NAME.lora_B.weight" before its own parameters, and adds their part.
//
// A product can hold several matrices side by side (queries, keys and values). An adaptation covers
// some of their columns. Columns with the same factor share one A; the A of all factors are one
// parameter, [in, factors * rank], and the B of all columns are another, [rank, columns].
//
// Ranks that split the product by columns have the whole A and their columns of B. Split by rows,
// they have their rows of A and the whole B. The factor that is whole gets a part of its gradient
// on each rank, and these are summed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "echelon/nn/parameter.h"

namespace echelon {

// The adaptation of one product.
struct LowRank {
  // Columns of the product, within one of its matrices.
  struct Columns {
    std::int64_t begin, size;
    int factor;  // which A they use
  };
  std::int64_t rank = 0;
  double scale = 1;  // alpha / rank
  int factors = 1;
  std::vector<Columns> columns = {};  // in order

  std::int64_t width() const {
    std::int64_t sum = 0;
    for (const auto& one : columns) sum += one.size;
    return sum;
  }
};

struct LowRankPlan {
  std::map<std::string, LowRank> products;            // by name
  std::function<bool(const Parameter&)> also_trains;  // such as a new head; empty: nothing
};

inline bool is_low_rank(const Parameter& parameter) {
  return parameter.splits == Splits::low_rank_in || parameter.splits == Splits::low_rank_out;
}

inline std::string low_rank_a(const std::string& product) { return product + ".lora_A.weight"; }
inline std::string low_rank_b(const std::string& product) { return product + ".lora_B.weight"; }

}  // namespace echelon
