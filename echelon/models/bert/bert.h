// BERT (Devlin et al., "BERT", 2019) and DistilBERT (Sanh et al., 2019) as a Stack: embedding,
// blocks, and a head for masked words or for classification. Attention sees both directions, norms
// come after the residual sums. DistilBERT is a BERT without token types, and with another
// classification head.
//
// Queries, keys and values are one parameter (attention.self.qkv, attention.qkv_lin), with matrices
// as [in, out]. Hugging Face's models store them separately and as [out, in]; reading and writing a
// folder converts them (bert_folder.cpp).
#pragma once

#include <array>
#include <string>

#include "echelon/models/family.h"

namespace echelon {

extern const Family bert_family;

// Sizes, with zeros replaced by their defaults.
struct BertSizes {
  explicit BertSizes(const ModelOptions& options);

  std::int64_t ffn;
  bool distilled;  // a DistilBERT
};

// Names of parameters, which are Hugging Face's except for the fused ones: "bert.encoder.layer.3.",
// "attention.self.qkv" and so on.
struct BertNames {
  explicit BertNames(const ModelOptions& options);

  std::string block(std::int64_t index) const;

  std::string body, words, positions, token_types, embedding_norm;
  const char *qkv, *project, *norm1, *expand, *contract, *norm2;    // within a block
  const char *transform, *transform_norm, *decoder, *decoder_bias;  // head for masked words
  std::string pooler;  // classification head: in a DistilBERT "pre_classifier"
  const char* classifier = "classifier";
};

// What the file calls the queries, keys and values.
inline std::array<const char*, 3> bert_qkv(bool distilled) {
  return distilled ? std::array{"q_lin", "k_lin", "v_lin"} : std::array{"query", "key", "value"};
}

Stack bert(const ModelOptions& options);
SplitPlan bert_plan(const ModelOptions& options);

// The Hugging Face folder; see Family.
ModelOptions read_bert_config(const FolderConfig& config);
std::string write_bert_config(const ModelOptions& options);
std::vector<WeightPart> bert_weights(const ModelOptions& options, const Parameter& parameter);

}  // namespace echelon
