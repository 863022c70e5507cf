// GPT with the GPT-2 architecture as a Stack: embedding, blocks, head. Parameters carry Hugging
// Face's names and layouts, so weights pass both ways without translation.
#pragma once

#include "echelon/nn/options.h"
#include "echelon/nn/stack.h"

namespace echelon {

// Throws InvalidArgument where the sizes do not fit together.
void check(const ModelOptions& options);

Stack gpt(const ModelOptions& options);

}  // namespace echelon
