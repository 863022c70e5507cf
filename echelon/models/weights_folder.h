// Weights as Hugging Face writes them: a folder with config.json and model.safetensors, of any
// family ("model_type" in config.json). Reads the names of a model with its output layer
// (GPT2LMHeadModel, …) and of the bare model; writes the former.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "echelon/models/options.h"
#include "echelon/nn/stack.h"

namespace echelon {

// The model that the folder's config.json describes, or the adapted model of an adapter's folder.
// Throws InvalidArgument if Echelon cannot build
// it.
ModelOptions read_model_options(const std::filesystem::path& folder);

// The folder's weights for a stack of that model. Checks all names, shapes and types before any
// value is read: throws Corrupt if the file is broken, InvalidArgument if it does not fit. Heads
// that the folder does not have get their values from `heads`; without it they are refused.
// Low-rank adaptations come from model.lora.init, or from `heads`. The folder may be that of an
// adapter, whose options name its model.
ValueSource read_weights(const std::filesystem::path& folder, const ModelOptions& options,
                         const Stack& stack, const ValueSource& heads = {});

// The values that training starts from: those of model.init, and random ones of this seed for what
// it does not have. Without model.init all are random.
ValueSource initial_values(const ModelOptions& options, const Stack& stack, std::uint64_t seed);

// The names of the heads that neither the folder nor the adapter of model.lora.init has, and that
// read_weights() takes from elsewhere: "pooler", "classifier".
std::vector<std::string> missing_heads(const std::filesystem::path& folder,
                                       const ModelOptions& options, const Stack& stack);

// With model.init the weights determine the family and the sizes, which are written to `model`.
// Throws InvalidArgument if a key that the user has `given` contradicts them. The context may
// differ if the family has no parameters for positions, and the task if it gets a new head. A given
// dropout replaces that of the folder.
void resolve_model(ModelOptions& model, const std::vector<std::string>& given);

// Throws InvalidArgument if the tokens of the folder's weights are not bytes of text. Echelon's own
// weights have "echelon_tokeniser": "bytes" in config.json; others must have a vocabulary of 256
// and no tokeniser files.
void require_byte_tokens(const std::filesystem::path& folder);
// Whether config.json says that they are bytes.
bool says_bytes(const std::filesystem::path& folder);

// What a model's tokens are.
enum class Tokens { bytes, others };

// What config.json says about them: pad_token_id, bos_token_id and eos_token_id where known.
struct TokenNotes {
  Tokens kind = Tokens::others;
  std::optional<std::int32_t> padding = {}, begin = {}, end = {};
  TokenNotes() = default;
  TokenNotes(Tokens tokens) : kind(tokens) {}
};

// Writes such a folder in `type`: fp32, or fp64 for an fp64 model. `value` returns the values of a
// whole parameter in any type and on any device; it is called once per parameter, in the order of
// the stack. Low-rank adaptations are added to their matrices (lora.h).
void write_weights(const std::filesystem::path& folder, const ModelOptions& options,
                   const Stack& stack, at::ScalarType type,
                   const std::function<at::Tensor(const Parameter&)>& value,
                   const TokenNotes& tokens = {});

}  // namespace echelon
