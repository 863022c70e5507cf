// Llama (Touvron et al., "LLaMA", 2023; Llama 2 and 3 have the same architecture) as a Stack:
// embedding, blocks, head. It has RMS norms, rotary positions, SwiGLU and no biases. Several
// queries can share a key and a value (model.kv_heads).
//
// Queries, keys and values are one parameter (self_attn.qkv_proj), and gate and up are another
// (mlp.gate_up_proj), with matrices as [in, out]. Hugging Face's LlamaForCausalLM stores them
// separately and as [out, in]; reading and writing a folder converts them (llama_folder.cpp).
#pragma once

#include "echelon/models/family.h"

namespace echelon {

extern const Family llama_family;

// Sizes, with zeros replaced by their defaults.
struct LlamaSizes {
  explicit LlamaSizes(const ModelOptions& options);

  std::int64_t heads, kv_heads, head_width, ffn;

  std::int64_t all_heads() const { return heads + 2 * kv_heads; }  // of queries, keys, values
};

Stack llama(const ModelOptions& options);
SplitPlan llama_plan(const ModelOptions& options);

// The Hugging Face folder; see Family.
ModelOptions read_llama_config(const FolderConfig& config);
std::string write_llama_config(const ModelOptions& options);
std::vector<WeightPart> llama_weights(const ModelOptions& options, const Parameter& parameter);

}  // namespace echelon
