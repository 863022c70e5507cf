// All model families, one line each.
#include "echelon/models/bert/bert.h"
#include "echelon/models/family.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/models/llama/llama.h"

namespace echelon {

std::span<const Family* const> families() {
  static constexpr const Family* all[] = {
      &gpt2_family,
      &llama_family,
      &bert_family,
  };
  return all;
}

}  // namespace echelon
