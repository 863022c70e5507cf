#include "echelon/lab/material.h"

#include <fmt/format.h>

#include <array>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/data/labels.h"
#include "echelon/data/records/records.h"
#include "echelon/lab/sentences.h"

namespace echelon {
namespace {

void add(Material& material, const Records& records, const Labels& labels) {
  const std::array columns = {records.column("sentence")};
  const auto numbers = labels.read(records, records.column("label"));
  for (std::int64_t i = 0; i < records.size(); ++i) {
    material.texts.push_back(records.read(i, columns)[0]);
    material.labels.push_back(numbers[std::size_t(i)]);
  }
}

std::string table(std::span<const LabelledText> texts) {
  std::string lines = "sentence\tlabel\n";
  for (const auto& one : texts) lines += fmt::format("{}\t{}\n", one.text, one.label);
  return lines;
}

}  // namespace

std::vector<LabelledText> Material::part(std::size_t begin, std::size_t end) const {
  std::vector<LabelledText> all;
  for (std::size_t i = begin; i < end; ++i) all.push_back({texts[i], labels[i]});
  return all;
}

std::string Material::training_text() const {
  std::string text;
  for (std::size_t i = 0; i < training; ++i) text += texts[i] + "\n";
  return text;
}

Material made_material(std::uint64_t seed, std::size_t training, std::size_t validation) {
  SentenceSet made = sentence_set(seed, training, validation);
  Material material;
  material.training = made.training.size();
  material.label_names = {"negative", "positive"};
  for (auto* part : {&made.training, &made.validation})
    for (auto& one : *part) {
      material.texts.push_back(std::move(one.text));
      material.labels.push_back(one.label);
    }
  for (const auto& one : made.validation) material.held_out += is_held_out(one.frame, one.form);
  return material;
}

Material read_material(const std::filesystem::path& folder) {
  const Records training(folder / "train.tsv"), validation(folder / "dev.tsv");
  const Labels labels = Labels::found_in(training, training.column("label"));
  Material material;
  material.training = std::size_t(training.size());
  material.label_names = labels.names();
  if (material.label_names.empty())
    for (std::int64_t i = 0; i < labels.count(); ++i)
      material.label_names.push_back(fmt::format("{}", i));
  add(material, training, labels);
  add(material, validation, labels);
  return material;
}

void write_material(const std::filesystem::path& folder, const Material& material) {
  std::filesystem::create_directories(folder);
  write_file(folder / "train.tsv", table(material.to_train_on()));
  write_file(folder / "dev.tsv", table(material.to_validate()));
  if (material.held_out > 0) write_file(folder / "held_out.tsv", table(material.held_out_texts()));
}

}  // namespace echelon
