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

}  // namespace

const std::vector<ModelForm>& model_forms() {
  static const std::vector<ModelForm> all = {
      {"gpt2", 2, true, gpt2_products, shrink_gpt2},
  };
  return all;
}

const ModelForm& form_of(const ModelOptions& model) {
  for (const auto& form : model_forms())
    if (model.family == form.family) return form;
  throw Error("verify has no closed forms of the model family " + model.family);
}

}  // namespace echelon
