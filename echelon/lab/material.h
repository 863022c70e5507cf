// The texts of the lab: sentences that it makes, or a folder with files like those of SST-2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "echelon/lab/bag_of_words.h"

namespace echelon {

struct Material {
  std::vector<std::string> texts;  // those to train on, then those to validate
  std::vector<int> labels;
  std::size_t training = 0;              // texts to train on
  std::size_t held_out = 0;              // the last ones: of held-out pairs (sentences.h)
  std::vector<std::string> label_names;  // by number

  std::vector<LabelledText> part(std::size_t begin, std::size_t end) const;
  std::vector<LabelledText> to_train_on() const { return part(0, training); }
  std::vector<LabelledText> to_validate() const { return part(training, texts.size()); }
  std::vector<LabelledText> held_out_texts() const {
    return part(texts.size() - held_out, texts.size());
  }
  std::string training_text() const;  // a line each
};

Material made_material(std::uint64_t seed, std::size_t training, std::size_t validation);

// train.tsv and dev.tsv, each with the columns "sentence" and "label". Throws InvalidArgument or
// Corrupt, with file and line.
Material read_material(const std::filesystem::path& folder);

// Writes both files in the same format, and held_out.tsv if there are held-out texts: those that
// dev.tsv ends with.
void write_material(const std::filesystem::path& folder, const Material& material);

}  // namespace echelon
