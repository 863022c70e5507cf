#include "echelon/nn/gpt.h"

#include <fmt/format.h>

#include <memory>

#include "echelon/base/error.h"
#include "echelon/base/options_section.h"
#include "echelon/nn/gpt_block.h"
#include "echelon/nn/gpt_embedding.h"
#include "echelon/nn/gpt_head.h"

namespace echelon {

void check(const ModelOptions& options) {
  check_section("model", options);
  if (options.width % options.heads != 0) {
    std::int64_t fewer = options.heads;
    while (options.width % fewer != 0) --fewer;
    throw InvalidArgument(
        fmt::format("model.heads = {} does not divide model.width = {}: set model.heads={}",
                    options.heads, options.width, fewer));
  }
  // Far beyond any machine, and far below where counts of bytes overflow.
  const double width = static_cast<double>(options.width);
  const double parameters = 12.0 * static_cast<double>(options.layers) * width * width +
                            static_cast<double>(2 * options.vocab + options.context) * width;
  if (parameters > 1e15) {
    throw InvalidArgument(fmt::format(
        "a model of {:.0e} parameters fits no machine; give smaller model.width, model.layers, "
        "model.vocab or model.context",
        parameters));
  }
}

Stack gpt(const ModelOptions& options) {
  check(options);
  Stack stack;
  stack.add(std::make_unique<GptEmbedding>(options));
  for (int i = 0; i < options.layers; ++i) stack.add(std::make_unique<GptBlock>(options, i));
  stack.add(std::make_unique<GptHead>(options));
  stack.recompute(options.recompute == "full"        ? Recompute::full
                  : options.recompute == "selective" ? Recompute::selective
                                                     : Recompute::none);
  return stack;
}

}  // namespace echelon
