// Text from a model whose tokens are bytes, one byte after another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "echelon/nn/stack.h"

namespace echelon {

struct GenerateOptions {
  std::int64_t tokens = 400;
  double temperature = 0.8;  // 0: always the likeliest
  std::int64_t top = 40;     // only among the likeliest so many; 0: all
  std::uint64_t seed = 1;
};

// Continues `prompt` (which must not be empty); the model sees the last `context` bytes. Each new
// byte is also handed to `show` as it comes; false from it ends the text. Same seed, same text.
std::string generate(Stack& stack, std::int64_t context, std::string_view prompt,
                     const GenerateOptions& options, const std::function<bool(char)>& show = {});

}  // namespace echelon
