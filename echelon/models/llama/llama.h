// Llama (Touvron et al., "LLaMA", 2023; Llama 2 and 3 are of the same kind) as a Stack: embedding,
// blocks, head. Norms are RMS norms, positions rotary, the hidden layer SwiGLU; several queries can
// share a key and a value (model.kv_heads); nothing has a bias.
//
// Two products take one input each: queries, keys and values are one parameter
// (self_attn.qkv_proj), gate and up another (mlp.gate_up_proj), with matrices as [in, out]. Hugging
// Face's LlamaForCausalLM keeps them apart and as [out, in]: reading and writing a folder
// translates (llama_folder.cpp).
#pragma once

#include "echelon/models/family.h"

namespace echelon {

extern const Family llama_family;

// Sizes with what 0 stands for filled in.
struct LlamaSizes {
  explicit LlamaSizes(const ModelOptions& options);

  std::int64_t heads, kv_heads, head_width, ffn;

  std::int64_t all_heads() const { return heads + 2 * kv_heads; }  // of queries, keys, values
};

Stack llama(const ModelOptions& options);
SplitPlan llama_plan(const ModelOptions& options);

// The folder of Hugging Face; see Family.
ModelOptions read_llama_config(const FolderConfig& config);
std::string write_llama_config(const ModelOptions& options);
std::vector<WeightPart> llama_weights(const ModelOptions& options, const Parameter& parameter);

}  // namespace echelon
