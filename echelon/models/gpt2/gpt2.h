// GPT with the GPT-2 architecture as a Stack: embedding, blocks, head. Parameters carry Hugging
// Face's names and layouts, so weights pass both ways without translation.
#pragma once

#include "echelon/models/family.h"

namespace echelon {

extern const Family gpt2_family;

Stack gpt(const ModelOptions& options);
SplitPlan gpt_plan(const ModelOptions& options);

}  // namespace echelon
