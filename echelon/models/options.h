#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/base/options.h"
#include "echelon/models/bert/options.h"
#include "echelon/models/llama/options.h"
#include "echelon/models/lora_options.h"
#include "echelon/models/task.h"
#include "echelon/nn/recompute.h"

namespace echelon {

struct ModelOptions;

// The name and the own options of every registered family (family.h), in the order of the registry.
std::vector<std::string> family_names();
void add_family_fields(ModelOptions& options, Fields& fields);

// A model: its family and its sizes. The defaults are the default job: about a million parameters.
struct ModelOptions {
  std::string family = "gpt2";
  std::int64_t layers = 3;
  std::int64_t width = 160;
  std::int64_t heads = 5;
  std::int64_t vocab = 256;
  std::int64_t context = 64;
  bool tied = true;
  double dropout = 0;
  Recompute recompute = Recompute::none;
  std::string init = "";
  LlamaOptions llama = {};
  BertOptions bert = {};
  LoraOptions lora = {};
  TaskOptions task = {};  // the section "task"

  void fields(Fields& f) {
    f.add("family", family, "architecture; with model.init, that of the weights",
          {.choices = family_names()});
    f.add(
        "layers", layers, "transformer blocks",
        {.minimum = 1, .maximum = 1e6, .known_as = {"n_layer", "num_layers", "num_hidden_layers"}});
    f.add("width", width, "size of the residual stream",
          {.minimum = 1, .maximum = 1e7, .known_as = {"n_embd", "hidden_size", "d_model", "dim"}});
    f.add(
        "heads", heads, "attention heads; must divide the width",
        {.minimum = 1, .maximum = 1e6, .known_as = {"n_head", "num_heads", "num_attention_heads"}});
    f.add("vocab", vocab, "token values; text needs 256, one for each byte",
          {.minimum = 2, .maximum = 1e9, .known_as = {"vocab_size"}});
    f.add("context", context, "longest sequence, and the length trained on",
          {.minimum = 1,
           .maximum = 1e9,
           .unit = "tokens",
           .known_as = {"seq_len", "block_size", "n_positions", "max_seq_len"}});
    f.add("tied", tied, "the output layer uses the embedding's weights");
    f.add("dropout", dropout,
          "share of the embedding's and of each branch's outputs that training sets to zero; if "
          "not given, a BERT in model.init determines it",
          {.minimum = 0, .maximum = 0.99});
    f.add(
        "recompute", recompute,
        "what backward computes again to save memory; selective: norms and GELU or SwiGLU, full: whole blocks");
    f.add("init", init,
          "folder with weights in Hugging Face's format to start from; empty: random");
    add_family_fields(*this, f);
    f.section("lora", lora);
  }
};

}  // namespace echelon
