#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

// The options of a Llama besides the sizes of every model.
struct LlamaOptions {
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  double norm_epsilon = 1e-5;
  double rope_base = 10000;
  double rope_factor = 1;
  double rope_low = 1;
  double rope_high = 4;
  std::int64_t rope_context = 8192;

  void fields(Fields& f) {
    f.add(
        "kv_heads", kv_heads,
        "llama: number of key and value heads; each is shared by model.heads / model.kv_heads query heads; 0: as many as heads",
        {.minimum = 0, .maximum = 1e6});
    f.add("ffn", ffn,
          "llama: width of the hidden layer; 0: 8/3 of model.width, rounded up to a multiple of 64",
          {.minimum = 0, .maximum = 1e8});
    f.add("norm_epsilon", norm_epsilon, "llama: added to the mean square in norms",
          {.minimum = 0, .maximum = 1});
    f.add("rope_base", rope_base, "llama: base of the rotary positions' wavelengths",
          {.minimum = 1, .maximum = 1e12});
    f.add("rope_factor", rope_factor,
          "llama: Llama 3's RoPE scaling factor for wavelengths beyond model.rope_context; 1: none",
          {.minimum = 0, .maximum = 1e6, .above_minimum = true});
    f.add("rope_low", rope_low,
          "llama: wavelengths above model.rope_context / this are scaled in full",
          {.minimum = 0, .maximum = 1e6, .above_minimum = true});
    f.add("rope_high", rope_high,
          "llama: wavelengths below model.rope_context / this are not scaled",
          {.minimum = 0, .maximum = 1e6, .above_minimum = true});
    f.add("rope_context", rope_context, "llama: context before RoPE scaling",
          {.minimum = 1, .maximum = 1e9, .unit = "tokens"});
  }
};

}  // namespace echelon
