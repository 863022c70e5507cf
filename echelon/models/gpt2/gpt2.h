// GPT-2 as a Stack: embedding, blocks, head. Parameters have Hugging Face's names and layouts, so
// weights are read and written without conversion.
#pragma once

#include "echelon/models/family.h"

namespace echelon {

extern const Family gpt2_family;

Stack gpt(const ModelOptions& options);
SplitPlan gpt_plan(const ModelOptions& options);

}  // namespace echelon
