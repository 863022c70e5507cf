#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

// The options of a BERT besides the sizes of every model.
struct BertOptions {
  std::int64_t ffn = 0;
  std::int64_t token_types = 2;
  double norm_epsilon = 1e-12;

  void fields(Fields& f) {
    f.add("ffn", ffn, "bert: width of the hidden layer; 0: 4 x model.width",
          {.minimum = 0, .maximum = 1e8, .known_as = {"intermediate_size"}});
    f.add("token_types", token_types,
          "bert: kinds of tokens, such as a pair's first and second text; 0: a DistilBERT, which "
          "has none",
          {.minimum = 0, .maximum = 1e6, .known_as = {"type_vocab_size"}});
    f.add("norm_epsilon", norm_epsilon, "bert: added to the variance in layer norms",
          {.minimum = 0, .maximum = 1});
  }
};

}  // namespace echelon
