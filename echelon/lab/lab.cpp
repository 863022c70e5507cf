#include "echelon/lab/lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/in_folder.h"
#include "echelon/base/one_line.h"
#include "echelon/base/toml_text.h"
#include "echelon/comm/gpu.h"
#include "echelon/data/text.h"
#include "echelon/job/report.h"
#include "echelon/lab/bag_of_words.h"
#include "echelon/lab/lab_job.h"
#include "echelon/lab/linked_hosts.h"
#include "echelon/lab/material.h"
#include "echelon/lab/shared_options.h"
#include "echelon/lab/sweep.h"
#include "echelon/lab/word_vocabulary.h"
#include "echelon/launch/launcher.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/memory.h"
#include "echelon/plan/memory_forecast.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::uint64_t seed = 1;
constexpr std::size_t validation_sentences = 2000;
constexpr double mib = 1 << 20;

struct Size {
  int layers, width, heads, vocab, context;
  std::int64_t pretraining, steps, batch;
  const char *pretraining_rate, *rate;
};
// The shape of distilbert-base-uncased, and one for two CPU cores.
constexpr Size distilbert = {6, 768, 12, 30522, 512, 2000, 2000, 32, "1e-4", "5e-5"};
constexpr Size small = {3, 128, 4, 4096, 64, 1500, 3000, 32, "5e-4", "5e-4"};
constexpr const char* weight_decay = "0.01";

constexpr const char* unlabelled = "text/sentences.txt";  // for pre-training

struct Strategy {
  const char *key, *title, *row;  // `row` has room in a table of memory
  LabSettings settings;
};
const std::array<Strategy, 3>& strategies() {
  static const std::array<Strategy, 3> all = {{
      {"data_parallel", "data parallel", "data parallel", {}},
      {"zero3", "ZeRO-3", "ZeRO-3", {{"parallel.zero", "3"}}},
      {"servers", "parameter servers", "servers", {{"server.count", "2"}}},
  }};
  return all;
}

ordered_json or_null(std::optional<double> number) {
  return number ? ordered_json(*number) : ordered_json();
}

std::string warm_up(std::int64_t steps) { return fmt::format("{}", steps / 8); }

class Lab {
 public:
  Lab(const LabOptions& options, const std::string& program, const std::atomic<bool>& stop)
      : options_(options), size_(options.real_shape ? distilbert : small), stop_(stop) {
    how_.program = program;
    how_.ranks = options.ranks;
    how_.stop = &stop_;
  }

  void run() {
    check();
    make_folder();
    try {
      look_at_data();
      prepare_encoder();
      fine_tune();
      sweep_buckets();
    } catch (const JobFailed& failed) {
      keep_results(/*say_so=*/failed.exit_code != exit_without_reader);
      throw;
    } catch (const std::exception&) {
      keep_results(/*say_so=*/true);
      throw;
    }
    write_results();
    show_results();
  }

 private:
  void check();
  void make_folder();
  void look_at_data();
  void prepare_encoder();
  void fine_tune();
  void sweep_buckets();
  ordered_json results() const;
  void write_results() const;
  void keep_results(bool say_so) const;
  void show_results();

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  std::size_t validated() const { return material_.texts.size() - material_.training; }
  std::optional<double> bag_of_words_held_out() const {
    if (material_.held_out == 0) return {};
    return bag_of_words_.accuracy(validated() - material_.held_out);
  }
  void begin_part(const char* title) {
    if (stop_.load()) throw JobFailed{exit_interrupted};
    fmt::print("\n{}. {}\n\n", ++parts_, title);
  }
  void say(std::string_view label, const std::string& text) const {
    fmt::print("{}", report_line(label, text));
    std::fflush(stdout);
  }
  void run(const LabJob& job, const LabJob::Run& how) const {
    fmt::print("$ {}\n", job.command(how));
    job.run(how);
    fmt::print("\n");
  }
  bool on_gpu() const { return shared_.options.train.device == DeviceKind::cuda; }
  LabJob::Run fine_tuning_run() const;
  LabJob encoder_job() const;
  LabJob fine_tuning_job(const Strategy& strategy) const;
  std::vector<const Strategy*> strategies_here() const;
  LabSettings fine_tuning() const;
  LabSettings sweep_settings() const;

  const LabOptions& options_;
  const Size size_;
  const std::atomic<bool>& stop_;
  LabJob::Run how_;  // every job
  SharedOptions shared_;
  Material material_;
  std::optional<InFolder> within_;  // options_.folder
  int parts_ = 0;
  std::string encoder_, data_ = "data";  // folders
  BagOfWords bag_of_words_;
  struct Trained {
    const Strategy* strategy;
    LabJob job;
    std::optional<double> held_out;  // accuracy on held-out pairs
  };
  std::vector<Trained> trained_;  // jobs that have finished
  std::vector<SweepPoint> points_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// Everything that a caller gives, before anything is made. Paths must hold from within the folder.
void Lab::check() {
  shared_ = shared_options(options_.set);
  how_.set = shared_.assignments;
  if (fs::exists(options_.folder))
    throw InvalidArgument(fmt::format("{} exists; choose another folder for the lab with --out",
                                      options_.folder.string()));
  if (!options_.model.empty()) {
    if (!fs::exists(options_.model / "config.json"))
      throw InvalidArgument(fmt::format(
          "--model {}: there is no config.json; give a folder of a DistilBERT or a BERT, as "
          "transformers saves one",
          options_.model.string()));
    for (const auto& [given, option] : {std::pair(options_.pretraining > 0, "--pretraining"),
                                        std::pair(options_.real_shape, "--shape distilbert")})
      if (given)
        throw InvalidArgument(
            fmt::format("{} is for the encoder that the lab makes, and --model gives another; "
                        "leave one of them out",
                        option));
    const ModelOptions model = read_model_options(options_.model);
    const auto tasks = family_of(model).tasks;
    if (std::find(tasks.begin(), tasks.end(), ModelTask::classify) == tasks.end())
      throw InvalidArgument(
          fmt::format("--model {}: a model of family {} cannot classify; give a DistilBERT or a "
                      "BERT",
                      options_.model.string(), model.family));
    encoder_ = fs::absolute(options_.model).lexically_normal().string();
  }
  if (!options_.data.empty()) {
    for (const char* name : {"train.tsv", "dev.tsv"})
      if (!fs::exists(options_.data / name))
        throw InvalidArgument(
            fmt::format("--data {}: there is no {}; give a folder with the files of SST-2",
                        options_.data.string(), name));
    material_ = read_material(options_.data);
    data_ = fs::absolute(options_.data).lexically_normal().string();
  }
  if (on_gpu()) {
    const int gpus = count_gpus_in_child();
    if (gpus == 0)
      throw InvalidArgument("--set train.device=cuda: there is no GPU that this echelon can use");
    if (shared_.options.comm.backend == Backend::nccl && gpus < how_.ranks)
      throw InvalidArgument(fmt::format(
          "--set comm.backend=nccl: NCCL needs a GPU for each of {} ranks, and there is {}; leave "
          "it out, and the ranks share it",
          how_.ranks, gpus));
  }
  if (options_.model.empty()) {
    encoder_job().check(how_);
    encoder_ = encoder_job().weights().string();
  }
  for (const Strategy* strategy : strategies_here())
    fine_tuning_job(*strategy).check(fine_tuning_run());
}

void Lab::make_folder() {
  try {
    fs::create_directories(options_.folder);
    within_.emplace(options_.folder);
  } catch (const fs::filesystem_error& error) {
    throw InvalidArgument(
        fmt::format("cannot make {}: {}", options_.folder.string(), error.code().message()));
  }
}

void Lab::look_at_data() {
  begin_part("The data");
  const bool made = options_.data.empty();
  if (made) {
    material_ = made_material(seed, std::size_t(options_.sentences), validation_sentences);
    write_material(data_, material_);
  }
  say("data",
      fmt::format("{} sentences to train on, {} to validate, {}", material_.training, validated(),
                  made ? "made by a grammar: nobody wrote or rated them. Half of those to validate "
                         "combine a pattern of sentence with a way to praise or blame that no "
                         "training sentence combines"
                       : "from " + data_));
  for (std::size_t i = 0; i < std::min<std::size_t>(4, material_.training); ++i) {
    const auto& label = material_.label_names.at(std::size_t(material_.labels[i]));
    say(fmt::format("  {:<9} ", one_line(label)), one_line(material_.texts[i]));
  }
  bag_of_words_ = bag_of_words(material_.to_train_on(), material_.to_validate());
  say("words", fmt::format("{:.1f} % right by counting words alone (logistic regression{})",
                           100 * bag_of_words_.accuracy(),
                           bag_of_words_.converged ? ", at its optimum" : ""));
  if (!options_.model.empty()) return;
  const TextSplit code = open_text("stdlib", 0, 1);
  std::string text(std::size_t(code.training->size()), '\0');
  code.training->read(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  const std::string sentences = material_.training_text();
  fs::create_directories(fs::path(unlabelled).parent_path());
  write_file(unlabelled, sentences);
  const std::array<std::string_view, 2> texts = {sentences, text};
  const auto tokens = word_vocabulary(texts, std::size_t(size_.vocab));
  write_word_vocabulary("tokenizer", tokens);
  say("tokens",
      fmt::format("{} words and characters, of these sentences and of the default job's text",
                  tokens.size()));
}

LabJob Lab::encoder_job() const {
  const auto steps = options_.pretraining > 0 ? options_.pretraining : size_.pretraining;
  return LabJob("encoder", {{"model.family", toml_string("bert")},
                            {"model.bert.token_types", "0"},
                            {"model.layers", fmt::format("{}", size_.layers)},
                            {"model.width", fmt::format("{}", size_.width)},
                            {"model.heads", fmt::format("{}", size_.heads)},
                            {"model.context", fmt::format("{}", size_.context)},
                            {"task.name", toml_string("mlm")},
                            {"data.mix", fmt::format("[\"stdlib=1\", \"{}=1\"]", unlabelled)},
                            {"data.tokenizer", toml_string("tokenizer")},
                            {"train.steps", fmt::format("{}", steps)},
                            {"train.batch", fmt::format("{}", size_.batch)},
                            {"train.validate_every", fmt::format("{}", steps)},
                            {"optim.rate", size_.pretraining_rate},
                            {"optim.warmup", warm_up(steps)},
                            {"optim.decay", weight_decay}});
}

void Lab::prepare_encoder() {
  begin_part("The encoder");
  if (!options_.model.empty()) return say("encoder", encoder_);
  say("encoder",
      "a DistilBERT that learns to fill in hidden words: one half are lines of Python's standard "
      "library, which echelon train uses by default, the other half the sentences to train on, "
      "without their labels");
  run(encoder_job(), how_);
}

// Gradients are not clipped: each strategy adds up their norm in another order, and nothing else
// would differ between the three.
LabSettings Lab::fine_tuning() const {
  const auto steps = options_.steps > 0 ? options_.steps : size_.steps;
  return {{"model.init", toml_string(encoder_)},
          {"task.name", toml_string("classify")},
          {"data.source", toml_string(data_ + "/train.tsv")},
          {"data.validation_source", toml_string(data_ + "/dev.tsv")},
          {"train.steps", fmt::format("{}", steps)},
          {"train.batch", fmt::format("{}", size_.batch)},
          {"train.validate_every", fmt::format("{}", steps)},
          {"optim.rate", options_.model.empty() ? size_.rate : distilbert.rate},
          {"optim.warmup", warm_up(steps)},
          {"optim.decay", weight_decay},
          {"optim.clip", "0"}};
}

LabSettings Lab::sweep_settings() const {
  return {{"model.family", toml_string("bert")},
          {"model.bert.token_types", "0"},
          {"task.name", toml_string("classify")},
          {"data.source", toml_string(data_ + "/train.tsv")},
          {"data.validation_source", toml_string(data_ + "/dev.tsv")},
          {"data.tokenizer", toml_string(options_.model.empty() ? "tokenizer" : encoder_)}};
}

std::vector<const Strategy*> Lab::strategies_here() const {
  std::vector<const Strategy*> here;
  for (const Strategy& strategy : strategies())
    if (!on_gpu() || std::string_view(strategy.key) != "servers") here.push_back(&strategy);
  return here;
}

LabJob Lab::fine_tuning_job(const Strategy& strategy) const {
  LabSettings settings = fine_tuning();
  settings.insert(settings.end(), strategy.settings.begin(), strategy.settings.end());
  return LabJob(strategy.key, settings);
}

LabJob::Run Lab::fine_tuning_run() const {
  LabJob::Run how = how_;
  how.trace = how.ranks > 1 && !on_gpu();
  return how;
}

void Lab::fine_tune() {
  begin_part("Fine-tuning on two workers");
  if (on_gpu())
    say("on a GPU", "no tables of exchanges, no parameter servers and no sweep: they are for CPUs");
  for (const Strategy* strategy : strategies_here()) {
    fmt::print("{}\n", strategy->title);
    const LabJob job = fine_tuning_job(*strategy);
    run(job, fine_tuning_run());
    trained_.push_back({strategy, job, {}});
    if (material_.held_out == 0) continue;
    const std::string held_out = data_ + "/held_out.tsv";
    fmt::print("$ {}\n", job.evaluation(held_out));
    trained_.back().held_out = job.accuracy_on(held_out, how_);
    if (const auto accuracy = trained_.back().held_out)
      say("held out", fmt::format("{:.1f} % of {} sentences with new pairs\n", 100 * *accuracy,
                                  material_.held_out));
  }
}

void Lab::sweep_buckets() {
  if (!options_.sweep || on_gpu()) return;
  begin_part("Bucket size and bandwidth");
  std::optional<LinkedHosts> hosts;
  try {
    hosts.emplace();
  } catch (const InvalidArgument& impossible) {
    return say("skipped", impossible.what());
  }
  say("hosts",
      "two network namespaces with a throttled link, one rank on each. A step waits for its "
      "gradients after backward: predicted from the link's measured alpha and beta, and measured.");
  sweep(sweep_settings(), how_, *hosts, points_);
  for (const auto& path : write_sweep_pictures(points_))
    say("picture", (options_.folder / path).string());
}

ordered_json Lab::results() const {
  ordered_json results = {{"bag_of_words_accuracy", bag_of_words_.accuracy()},
                          {"bag_of_words_held_out_accuracy", or_null(bag_of_words_held_out())}};
  ordered_json by_strategy = ordered_json::object();
  for (const auto& [strategy, job, held_out] : trained_) {
    ordered_json ranks = ordered_json::array();
    for (const auto& [rank, use] : job.memory_at_peak()) {
      ordered_json kinds;
      for (std::size_t i = 0; i < memory_kind_names.size(); ++i)
        kinds[memory_kind_names[i]] = use.bytes[i];
      ranks.push_back({{"rank", rank}, {"tensors_at_peak_bytes", kinds}});
    }
    const bool traced = fine_tuning_run().trace;
    by_strategy[strategy->key] = {
        {"accuracy", or_null(job.number("val_accuracy"))},
        {"held_out_accuracy", or_null(held_out)},
        {"f1", or_null(job.number("val_f1"))},
        {"bytes", job.sent_bytes()},
        {"step_ms", or_null(job.number("step_ms"))},
        {"memory", ranks},
        {"exchanges", traced ? ordered_json::parse(job.exchanges()) : ordered_json()},
        {"run", (options_.folder / job.folder()).string()}};
  }
  results["strategies"] = by_strategy;
  results["validated"] = validated();
  results["sweep"] = ordered_json::array();
  for (const auto& one : points_)
    results["sweep"].push_back({{"megabits", one.megabits},
                                {"bucket_mib", one.bucket_mib},
                                {"buckets", one.buckets},
                                {"step_ms", one.step_ms},
                                {"compute_ms", one.compute_ms},
                                {"waited_ms", one.waited_ms},
                                {"predicted_ms", one.predicted_ms}});
  results["seconds"] = seconds();
  return results;
}

void Lab::write_results() const {
  const std::string text = results().dump(2) + "\n";
  write_file("lab.json", text);
  if (!options_.summary.empty()) write_file(options_.summary, text);
}

// Those of the strategies that have finished, when something else fails.
void Lab::keep_results(bool say_so) const {
  if (trained_.empty()) return;
  try {
    write_results();
  } catch (const std::exception& error) {
    if (say_so) say("lab", fmt::format("the results could not be kept: {}", error.what()));
    return;
  }
  if (say_so)
    say("lab", fmt::format("{} has the results of the jobs that finished",
                           (options_.folder / "lab.json").string()));
}

void Lab::show_results() {
  begin_part("Results");
  const auto percent = [](std::optional<double> share) {
    return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
  };
  fmt::print("{:<18} {:>9} {:>9} {:>12} {:>12}\n", "", "accuracy", "held out", "median step",
             "sent in all");
  fmt::print("{:<18} {:>9} {:>9}\n", "bag of words", percent(bag_of_words_.accuracy()),
             percent(bag_of_words_held_out()));
  for (const auto& [strategy, job, held_out] : trained_) {
    const auto step = job.number("step_ms");
    fmt::print("{:<18} {:>9} {:>9} {:>12} {:>12}\n", strategy->title,
               percent(job.number("val_accuracy")), percent(held_out),
               step ? fmt::format("{:.2f} ms", *step) : "-", human_bytes(job.sent_bytes()));
  }
  fmt::print("\n{}\n", memory_head());
  for (const auto& [strategy, job, held_out] : trained_)
    for (const auto& [rank, use] : job.memory_at_peak())
      fmt::print("{}\n", memory_row(fmt::format("{}, rank {}", strategy->row, rank), use));
  fmt::print("\n");
  say("lab", fmt::format("{:.0f} s in all; {} has the jobs, runs and numbers. docs/lab.md explains "
                         "them",
                         seconds(), options_.folder.string()));
}

}  // namespace

int run_lab(const LabOptions& given, const std::string& program, const std::atomic<bool>& stop) {
  LabOptions options = given;
  require_place_for(options.summary, "--json");
  if (!options.summary.empty()) options.summary = fs::absolute(options.summary);
  try {
    Lab(options, program, stop).run();
  } catch (const JobFailed& failed) {
    return failed.exit_code;
  }
  return 0;
}

}  // namespace echelon
