// Weights as Hugging Face writes them: a folder with config.json and model.safetensors, of any
// family ("model_type" in config.json says which). Read with the names of a saved model with its
// output layer (GPT2LMHeadModel, …) or of the bare model, written with the former.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "echelon/models/options.h"
#include "echelon/nn/stack.h"

namespace echelon {

// The model that the folder's config.json describes. InvalidArgument where it is none that we
// build.
ModelOptions read_model_options(const std::filesystem::path& folder);

// The folder's weights for a stack of that model. Names, shapes and types are all checked here,
// before any value is read: Corrupt where the file is broken, InvalidArgument where it does not
// fit.
ValueSource read_weights(const std::filesystem::path& folder, const ModelOptions& options,
                         const Stack& stack);

// With model.init the weights decide on the family and the sizes: `model` becomes theirs. Throws
// InvalidArgument where one of the keys that a user has `given` says otherwise; the context may,
// where the family has no parameters for positions.
void resolve_model(ModelOptions& model, const std::vector<std::string>& given);

// Throws InvalidArgument where the folder's weights were trained on tokens that are not the bytes
// of text. Weights of ours say that they are ("echelon_tokeniser": "bytes" in config.json); others
// must have a vocabulary of 256, and no tokeniser beside them.
void require_byte_tokens(const std::filesystem::path& folder);

// What a model's tokens are.
enum class Tokens { bytes, others };

// Writes such a folder, in `type`: fp32, or fp64 for an fp64 model. `value` gives a whole
// parameter's values in any type and on any device; it is asked once for each, in the stack's
// order.
void write_weights(const std::filesystem::path& folder, const ModelOptions& options,
                   const Stack& stack, at::ScalarType type,
                   const std::function<at::Tensor(const Parameter&)>& value,
                   Tokens tokens = Tokens::others);

}  // namespace echelon
