#include "echelon/verify/model_forms.h"

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/models/family.h"

namespace echelon {
namespace {

using Sizes = ModelForm::Sizes;

std::uint64_t width(const ModelOptions& model) { return std::uint64_t(model.width); }
std::uint64_t positions(const ModelOptions& model) {
  return std::uint64_t(model.context) * width(model);
}

Sizes nothing(const ModelOptions&) { return {}; }

// Weight and bias of both norms; c_attn, c_fc and both c_proj with biases; those of c_proj are
// whole. The products of a BERT have the same sizes.
Sizes gpt2_block(const ModelOptions& model, std::uint64_t t) {
  const auto h = width(model);
  return {
      h, h, h, h, 3 * h * h / t, 3 * h / t, 4 * h * h / t, 4 * h / t, h * h / t, h, 4 * h * h / t,
      h};
}
Sizes gpt2_embedding(const ModelOptions& model) { return {positions(model)}; }
Sizes layer_norm(const ModelOptions& model, std::uint64_t) { return {width(model), width(model)}; }
std::uint64_t layer_norm_rows(const ModelOptions& model) { return 2 * width(model); }
std::uint64_t two_layer_norms_rows(const ModelOptions& model) { return 4 * width(model); }
// Queries and values share one A, since they are one matrix in the file.
ModelForm::Adapted adapt_gpt2(const ModelOptions& model, std::uint64_t t) {
  const auto h = width(model), r = std::uint64_t(model.lora.rank);
  return {{h * r, 2 * h * r / t, 4 * h * r / t, r * h}, h * r + r * h};
}
void shrink_gpt2(ModelOptions&, std::int64_t) {}

// Both norms; queries with keys and values, their projection, gate with up, and down.
Sizes llama_block(const ModelOptions& model, std::uint64_t t) {
  const auto h = width(model), head = h / std::uint64_t(model.heads),
             keys = std::uint64_t(model.llama.kv_heads) * head,
             ffn = std::uint64_t(model.llama.ffn);
  return {h, h, h * (h + 2 * keys) / t, h * h / t, 2 * h * ffn / t, h * ffn / t};
}
Sizes rms_norm(const ModelOptions& model, std::uint64_t) { return {width(model)}; }
std::uint64_t rms_norm_rows(const ModelOptions& model) { return width(model); }

ModelForm::Adapted adapt_llama(const ModelOptions& model, std::uint64_t t) {
  const auto h = std::uint64_t(model.width), r = std::uint64_t(model.lora.rank),
             keys = std::uint64_t(model.llama.kv_heads) * (h / std::uint64_t(model.heads)),
             ffn = std::uint64_t(model.llama.ffn);
  return {{h * 2 * r, r * (h + keys) / t, ffn * r / t, r * h}, h * 2 * r + r * h};
}

// Two queries per key if that divides, and rotary positions of which some are scaled.
void shrink_llama(ModelOptions& model, std::int64_t tensor) {
  model.llama.kv_heads = model.heads % (2 * tensor) == 0 ? model.heads / 2 : model.heads;
  model.llama.ffn = 6 * model.heads;
  model.llama.rope_base = 100;
  model.llama.rope_factor = 8;
  model.llama.rope_context = 16;
}

// Queries and values have an A each.
ModelForm::Adapted adapt_bert(const ModelOptions& model, std::uint64_t t) {
  const auto h = width(model), r = std::uint64_t(model.lora.rank);
  return {{h * 2 * r, r * 2 * h / t, 4 * h * r / t, r * h}, h * 2 * r + r * h};
}

// Positions, token types of a BERT, and a norm.
Sizes bert_embedding(const ModelOptions& model) {
  Sizes all = {positions(model), width(model), width(model)};
  if (model.bert.token_types > 0)
    all.push_back(std::uint64_t(model.bert.token_types) * width(model));
  return all;
}

// A product with its bias, a norm, and the biases of the logits.
Sizes masked_head(const ModelOptions& model, std::uint64_t t) {
  const auto h = width(model);
  return {h * h, h, h, h, (std::uint64_t(model.vocab) + t - 1) / t};
}
std::uint64_t masked_head_rows(const ModelOptions& model) {
  const auto h = width(model);
  return h * h + 3 * h;
}

// Two products with biases, of which every rank has all.
Sizes class_head(const ModelOptions& model, std::uint64_t) {
  const auto h = width(model), labels = std::uint64_t(model.task.labels);
  return {h * h, h, labels * h, labels};
}
std::uint64_t class_head_rows(const ModelOptions&) { return 0; }

void shrink_masked_bert(ModelOptions& model, std::int64_t) {
  model.task.name = ModelTask::mlm;
  model.task.mask = 0.4;
}

// A DistilBERT, so that both forms of an encoder are in the matrix.
void shrink_class_bert(ModelOptions& model, std::int64_t) {
  model.task.name = ModelTask::classify;
  model.task.labels = 3;
  model.bert.token_types = 0;
}

}  // namespace

const std::vector<ModelForm>& model_forms() {
  static const std::vector<ModelForm> all = {
      {.name = "gpt2",
       .family = "gpt2",
       .task = ModelTask::causal,
       .embedding = gpt2_embedding,
       .block = gpt2_block,
       .head = layer_norm,
       .loss_over_vocabulary = true,
       .rows_of_block = two_layer_norms_rows,
       .rows_of_head = layer_norm_rows,
       .adapted = adapt_gpt2,
       .ends_with_norm = false,
       .shrink = shrink_gpt2},
      {.name = "llama",
       .family = "llama",
       .task = ModelTask::causal,
       .embedding = nothing,
       .block = llama_block,
       .head = rms_norm,
       .loss_over_vocabulary = true,
       .rows_of_block = layer_norm_rows,  // two norms of one vector each
       .rows_of_head = rms_norm_rows,
       .adapted = adapt_llama,
       .ends_with_norm = false,
       .shrink = shrink_llama},
      {.name = "bert",
       .family = "bert",
       .task = ModelTask::mlm,
       .embedding = bert_embedding,
       .block = gpt2_block,
       .head = masked_head,
       .loss_over_vocabulary = true,
       .rows_of_block = two_layer_norms_rows,
       .rows_of_head = masked_head_rows,
       .adapted = adapt_bert,
       .ends_with_norm = true,
       .shrink = shrink_masked_bert},
      {.name = "bert classify",
       .family = "bert",
       .task = ModelTask::classify,
       .embedding = bert_embedding,
       .block = gpt2_block,
       .head = class_head,
       .loss_over_vocabulary = false,
       .rows_of_block = two_layer_norms_rows,
       .rows_of_head = class_head_rows,
       .adapted = adapt_bert,
       .ends_with_norm = true,
       .shrink = shrink_class_bert},
  };
  return all;
}

namespace {

template <class Is>
const ModelForm& first_form(const Is& is, const std::string& what) {
  const auto& all = model_forms();
  const auto found = std::find_if(all.begin(), all.end(), is);
  if (found == all.end()) throw Error("verify has no closed forms for the model family " + what);
  return *found;
}

}  // namespace

const ModelForm& form_of(const ModelOptions& model) {
  return first_form(
      [&](const ModelForm& form) {
        return model.family == form.family && task_of(model) == form.task;
      },
      model.family);
}

const ModelForm& form_named(const std::string& name) {
  return first_form([&](const ModelForm& form) { return name == form.name; }, name);
}

}  // namespace echelon
