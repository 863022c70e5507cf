// Fine-tunes an encoder for sentiment on any number of ranks, and prints what they exchange:
//
//   lab                              a small DistilBERT and sentences, both made here
//   lab MODEL TRAIN.tsv DEV.tsv      a folder of transformers, and files like those of SST-2
//
// Each --set KEY=VALUE after these sets an option of `echelon train`, such as parallel.zero=3.
#include <echelon/base/error.h>
#include <echelon/comm/communicator.h>
#include <echelon/data/labelled_texts.h>
#include <echelon/data/labels.h>
#include <echelon/data/record_texts.h>
#include <echelon/lab/material.h>
#include <echelon/lab/word_vocabulary.h>
#include <echelon/models/family.h>
#include <echelon/models/weights_folder.h>
#include <echelon/train/trainer.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace fs = std::filesystem;

// What every step exchanges, as `echelon train --trace buckets` shows it.
class ExchangeSums {
 public:
  void add(const echelon::ExchangeReport& report) {
    for (const echelon::Exchanged& one : report.exchanges) {
      if (one.purpose == echelon::Purpose::loss) continue;
      const std::chrono::duration<double> ran = one.span.end - one.span.begin;
      Sum& sum = sums_[{one.purpose, one.operation, one.part}];
      sum.bytes = one.bytes;
      sum.seconds += ran.count();
      sum.waited += std::min(one.waited, ran.count());
      ++sum.times;
    }
  }
  void print() const {
    for (const auto& [key, sum] : sums_)
      std::printf("%-16s %-15s %8.1f KiB %8.3f ms, %3.0f %% behind computation\n",
                  (to_string(std::get<0>(key)) + (" " + std::to_string(std::get<2>(key)))).c_str(),
                  echelon::name(std::get<1>(key)), double(sum.bytes) / 1024,
                  1e3 * sum.seconds / sum.times, 100 * (1 - sum.waited / sum.seconds));
  }

 private:
  struct Sum {
    std::size_t bytes = 0;
    double seconds = 0, waited = 0;
    int times = 0;
  };
  std::map<std::tuple<echelon::Purpose, echelon::Operation, int>, Sum> sums_;
};

// A file with the columns "sentence" and "label" as samples.
echelon::LabelledTexts samples(const echelon::Records& records, const echelon::Labels& labels,
                               const echelon::Tokenizer& tokenizer,
                               const echelon::ModelOptions& model) {
  std::vector<std::int64_t> all(std::size_t(records.size()));
  std::iota(all.begin(), all.end(), 0);
  auto encoded = echelon::encode_texts({.records = records,
                                        .tokenizer = tokenizer,
                                        .columns = {records.column("sentence")},
                                        .numbers = all,
                                        .context = model.context});
  return {std::move(encoded.texts),
          labels.read(records, records.column("label")),
          {.context = model.context,
           .padding = tokenizer.special().padding.value_or(0),
           .types = model.bert.token_types > 0}};
}

// Writes train.tsv, dev.tsv and the files of a tokeniser. They are the same on every rank.
void make_files(const fs::path& folder, std::int64_t vocab) {
  const echelon::Material material = echelon::made_material(/*seed=*/1, 20000, 1000);
  echelon::write_material(folder, material);
  const std::string text = material.training_text();
  const std::array<std::string_view, 1> texts = {text};
  echelon::write_word_vocabulary(folder, echelon::word_vocabulary(texts, std::size_t(vocab)));
}

int main(int argc, char** argv) try {
  const auto ranks = echelon::Communicator::world();
  const bool first = ranks->rank() == 0;
  const auto is_name = [&](int i) {
    return i < argc && !std::string_view(argv[i]).starts_with("-");
  };
  const bool given = is_name(1) && is_name(2) && is_name(3);

  echelon::TrainerOptions options{
      .train = {.steps = 800, .batch = 32},
      // Without clipping, two ranks compute the same bits in every layout.
      .optim = {.rate = given ? 5e-5 : 5e-4, .warmup = 100, .decay = 0.01, .clip = 0}};
  for (int i = given ? 4 : 1; i < argc; i += 2) {
    if (std::string_view(argv[i]) != "--set" || i + 1 == argc)
      throw echelon::InvalidArgument("usage: lab [MODEL TRAIN.tsv DEV.tsv] [--set KEY=VALUE]…");
    echelon::set_option(echelon::fields_of(options), argv[i + 1]);
  }

  echelon::ModelOptions model;
  const fs::path made = "lab-" + std::to_string(ranks->rank());
  if (given) {
    model = echelon::read_model_options(argv[1]);
  } else {
    model = {.family = "bert", .layers = 3, .width = 128, .heads = 4, .vocab = 1024, .context = 64};
    model.bert.token_types = 0;  // a DistilBERT
    make_files(made, model.vocab);
  }
  const echelon::Records train(given ? fs::path(argv[2]) : made / "train.tsv");
  const echelon::Records dev(given ? fs::path(argv[3]) : made / "dev.tsv");
  const auto labels = echelon::Labels::found_in(train, train.column("label"));
  model.task.name = echelon::ModelTask::classify;
  model.task.labels = labels.count();
  const auto tokenizer = echelon::Tokenizer::open(given ? fs::path(argv[1]) : made);
  const auto training = samples(train, labels, tokenizer, model);
  const auto validation = samples(dev, labels, tokenizer, model);

  echelon::Stack stack = echelon::family_of(model).build(model);
  echelon::Trainer trainer(stack, training, options, ranks);
  if (given) trainer.load(echelon::read_weights(argv[1], model, stack, echelon::random_values(1)));
  trainer.add_metric(echelon::classification_metric(model.task.labels));

  ExchangeSums exchanges;
  if (ranks->size() > 1) trainer.trace(true);
  trainer.on_event([&](const echelon::Event& event) {
    if (const auto* report = std::get_if<echelon::ExchangeReport>(&event)) exchanges.add(*report);
    const auto* step = std::get_if<echelon::StepReport>(&event);
    if (first && step && step->step % 100 == 0)
      std::printf("step %lld  loss %.4f\n", static_cast<long long>(step->step), step->loss);
  });
  trainer.run();

  const echelon::Evaluation seen = trainer.measure(validation, validation.size());
  const double accuracy = *echelon::find_score(seen.scores, "accuracy");
  if (first) {
    exchanges.print();
    std::printf("loss %.4f, accuracy %.1f %% on %lld sentences not seen before\n", seen.loss,
                100 * accuracy, static_cast<long long>(seen.samples));
  }
  return 0;
} catch (const echelon::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
