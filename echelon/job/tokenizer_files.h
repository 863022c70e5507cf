// The tokeniser of a job beside the weights that it writes, so that the folder is complete for
// `echelon generate` and for transformers' AutoTokenizer.
#pragma once

#include <filesystem>

#include "echelon/data/tokenizer/tokenizer.h"
#include "echelon/models/weights_folder.h"

namespace echelon {

// For config.json. `bytes` counts if there is no tokeniser.
TokenNotes token_notes(const Tokenizer* tokenizer, bool bytes);

// Copies its files, and what transformers keeps beside them.
void copy_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);

}  // namespace echelon
