#include "echelon/models/gpt2/gpt_embedding.h"

namespace echelon {

void GptEmbedding::declare(Declaration& declaration) {
  tokens_.declare(declaration, "transformer.wte", options_.vocab, options_.width, 0.02);
  positions_.declare(declaration, "transformer.wpe", options_.context, options_.width, 0.02);
}

at::Tensor GptEmbedding::forward(const at::Tensor& tokens, Pass& pass) {
  if (pass.keeps()) pass.saved = {tokens};
  const at::Tensor x = tokens_.forward(tokens);
  positions_.add_to(x, pass);
  return drop_.forward(x, pass);
}

at::Tensor GptEmbedding::backward(const at::Tensor& grad_dropped, Pass& pass) {
  const at::Tensor grad = drop_.backward(grad_dropped, pass);
  positions_.backward(grad, pass);
  tokens_.backward(grad, pass.saved[0]);
  return {};
}

}  // namespace echelon
