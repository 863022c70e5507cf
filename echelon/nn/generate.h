// Generates text, byte by byte, from a model whose tokens are bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "echelon/nn/stack.h"

namespace echelon {

struct GenerateOptions {
  std::int64_t tokens = 400;
  double temperature = 0.8;  // 0: always the most likely byte
  std::int64_t top = 40;     // sample only from this many most likely bytes; 0: from all
  std::uint64_t seed = 1;
};

// Continues `prompt`, which must not be empty. The model sees the last `context` bytes. Passes each
// new byte to `show` as it is generated; if `show` returns false, generation ends. The same seed
// gives the same text.
std::string generate(Stack& stack, std::int64_t context, std::string_view prompt,
                     const GenerateOptions& options, const std::function<bool(char)>& show = {});

}  // namespace echelon
