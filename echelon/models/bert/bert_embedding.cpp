#include "echelon/models/bert/bert_embedding.h"

namespace echelon {
namespace {

enum Saved : std::size_t { tokens_in, sum, mean, rstd };

at::Tensor rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

}  // namespace

BertEmbedding::BertEmbedding(const ModelOptions& options)
    : options_(options), names_(options), drop_(options.dropout, names_.body + "embeddings") {}

void BertEmbedding::declare(Declaration& declaration) {
  const auto d = options_.width;
  words_.declare(declaration, names_.words, options_.vocab, d, 0.02);
  positions_.declare(declaration, names_.positions, options_.context, d, 0.02);
  if (options_.bert.token_types > 0)
    types_.declare(declaration, names_.token_types, options_.bert.token_types, d, 0.02);
  norm_.declare(declaration, names_.embedding_norm, d, options_.bert.norm_epsilon);
}

at::Tensor BertEmbedding::forward(const at::Tensor& tokens, Pass& pass) {
  const at::Tensor x = words_.forward(tokens);
  positions_.add_to(x, pass);
  if (options_.bert.token_types > 0) types_.add_to(x, pass);
  auto norm = norm_.forward(rows(x));
  if (pass.keeps()) pass.saved = {tokens, x, norm.mean, norm.rstd};
  return drop_.forward(norm.y.view_as(x), pass);
}

at::Tensor BertEmbedding::backward(const at::Tensor& grad_output, Pass& pass) {
  const auto& s = pass.saved;
  const at::Tensor grad_normed = rows(drop_.backward(grad_output, pass));
  const at::Tensor grad =
      norm_.backward(grad_normed, rows(s[sum]), s[mean], s[rstd]).view_as(s[sum]);
  if (options_.bert.token_types > 0) types_.backward(grad, pass);
  positions_.backward(grad, pass);
  words_.backward(grad, s[tokens_in]);
  return {};
}

}  // namespace echelon
