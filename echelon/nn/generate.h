// Generates tokens from a model that predicts the next one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/nn/stack.h"

namespace echelon {

struct GenerateOptions {
  std::int64_t tokens = 400;
  double temperature = 0.8;  // 0: always the most likely token
  std::int64_t top = 40;     // sample only from this many most likely tokens; 0: from all
  std::uint64_t seed = 1;
};

// Continues `prompt`, which must not be empty, with tokens below `vocab`. The model sees the last
// `context` tokens. Passes each new token to `show` as it is generated; if `show` returns false,
// generation ends. The same seed gives the same tokens.
std::vector<std::int64_t> generate(Stack& stack, std::int64_t context,
                                   std::span<const std::int64_t> prompt, std::int64_t vocab,
                                   const GenerateOptions& options,
                                   const std::function<bool(std::int64_t)>& show = {});

// The same for a model whose tokens are bytes.
std::string generate(Stack& stack, std::int64_t context, std::string_view prompt,
                     const GenerateOptions& options, const std::function<bool(char)>& show = {});

}  // namespace echelon
