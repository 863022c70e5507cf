#include "echelon/verify/model_forms.h"

#include "echelon/base/error.h"

namespace echelon {
namespace {

using Sizes = std::vector<std::uint64_t>;

// c_attn, c_fc and both c_proj, with biases; those of c_proj are whole.
Sizes gpt2_products(const ModelOptions& model, std::uint64_t t) {
  const auto h = std::uint64_t(model.width);
  return {3 * h * h / t, 3 * h / t, 4 * h * h / t, 4 * h / t, h * h / t, h, 4 * h * h / t, h};
}

void shrink_gpt2(ModelOptions&, std::int64_t) {}

// Queries with keys and values, their projection, gate with up, and down.
Sizes llama_products(const ModelOptions& model, std::uint64_t t) {
  const auto h = std::uint64_t(model.width), head = h / std::uint64_t(model.heads),
             keys = std::uint64_t(model.llama.kv_heads) * head,
             ffn = std::uint64_t(model.llama.ffn);
  return {h * (h + 2 * keys) / t, h * h / t, 2 * h * ffn / t, h * ffn / t};
}

// Two queries per key if that divides, and rotary positions of which some are scaled.
void shrink_llama(ModelOptions& model, std::int64_t tensor) {
  model.llama.kv_heads = model.heads % (2 * tensor) == 0 ? model.heads / 2 : model.heads;
  model.llama.ffn = 6 * model.heads;
  model.llama.rope_base = 100;
  model.llama.rope_factor = 8;
  model.llama.rope_context = 16;
}

}  // namespace

const std::vector<ModelForm>& model_forms() {
  static const std::vector<ModelForm> all = {
      {"gpt2", 2, true, gpt2_products, shrink_gpt2},
      {"llama", 1, false, llama_products, shrink_llama},
  };
  return all;
}

const ModelForm& form_of(const ModelOptions& model) {
  for (const auto& form : model_forms())
    if (model.family == form.family) return form;
  throw Error("verify has no closed forms for the model family " + model.family);
}

}  // namespace echelon
