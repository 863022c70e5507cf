#include "echelon/lab/lab_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "echelon/base/descriptor.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"
#include "echelon/base/shell_text.h"
#include "echelon/job/job.h"
#include "echelon/job/options.h"
#include "echelon/job/rules.h"
#include "echelon/launch/launcher.h"

namespace echelon {
namespace {

// The keys of a section together, sections in the order of their first keys.
std::string toml_of(const LabSettings& settings) {
  std::vector<std::string> sections;
  std::map<std::string, std::string> lines;
  for (const auto& [key, value] : settings) {
    const auto dot = key.rfind('.');
    const std::string section = key.substr(0, dot);
    if (!lines.contains(section)) sections.push_back(section);
    lines[section] += fmt::format("{} = {}\n", key.substr(dot + 1), value);
  }
  std::string text;
  for (const auto& section : sections)
    text += fmt::format("{}[{}]\n{}", text.empty() ? "" : "\n", section, lines[section]);
  return text;
}

// Standard output goes to /dev/null while this lives.
class Silence {
 public:
  Silence() : kept_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    const Descriptor nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    ::dup2(nothing.get(), STDOUT_FILENO);
  }
  ~Silence() { ::dup2(kept_.get(), STDOUT_FILENO); }

 private:
  Descriptor kept_;
};

// Runs `echelon WORDS` on all ranks and waits.
void run_echelon(const std::vector<std::string>& words, const LabJob::Run& how) {
  std::vector<std::string> program = {how.program};
  program.insert(program.end(), words.begin(), words.end());
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw JobFailed{exit_without_reader};
  if (how.stop && how.stop->load()) throw JobFailed{exit_interrupted};
  std::optional<Silence> silence;
  if (how.quiet) silence.emplace();
  bool interrupted = false;
  const int code = launch({.program = how.hosts ? how.hosts->spread(program) : program,
                           .nproc = how.ranks,
                           .rendezvous = {},
                           .log_dir = {},
                           .prefix = false,
                           .takes_interrupts = true,
                           .interrupted = &interrupted});
  if (code != 0) throw JobFailed{code};
  if (interrupted) throw JobFailed{exit_interrupted};
}

std::string command_of(const std::vector<std::string>& words) {
  std::string command = "echelon";
  for (const auto& word : words) command += " " + shell_word(word);
  return command;
}

std::optional<double> number_in(const std::filesystem::path& file, std::string_view key) {
  const auto json = JsonReader::parse(read_file(file), file.string());
  if (!json.has(key)) return {};
  return json.at(key).number(-1e300, 1e300);
}

}  // namespace

LabJob::LabJob(std::string name, const LabSettings& settings) : name_(std::move(name)) {
  for (const auto& [key, value] : settings) {
    const auto same = std::find_if(settings_.begin(), settings_.end(),
                                   [&key = key](const auto& one) { return one.first == key; });
    if (same == settings_.end())
      settings_.emplace_back(key, value);
    else
      same->second = value;
  }
  JobOptions options;
  read_toml(fields_of(options), toml_of(settings_), name_);
}

std::vector<std::string> LabJob::arguments(const Run& how) const {
  std::vector<std::string> words = {"train", options().string()};
  if (how.trace) words.insert(words.end(), {"--trace", "buckets"});
  for (const auto& set : how.set) words.insert(words.end(), {"--set", set});
  return words;
}

// A run with this name can be made once.
std::vector<std::string> LabJob::named_arguments(const Run& how) const {
  std::vector<std::string> words = arguments(how);
  words.insert(words.end(), {"--name", name_, "--json", summary().string()});
  return words;
}

std::string LabJob::command(const Run& how) const {
  const std::string command = command_of(arguments(how));
  return how.ranks > 1 ? fmt::format("{} --nproc {}", command, how.ranks) : command;
}

void LabJob::check(const Run& how) const {
  JobRequest request;
  const Fields fields = fields_of(request.options);
  request.given = read_toml(fields, toml_of(settings_), name_);
  for (const auto& set : how.set) request.given.push_back(set_option(fields, set));
  request.trace_buckets = how.trace;
  check_rules(request, how.ranks);
}

void LabJob::run(const Run& how) const {
  std::filesystem::create_directories(options().parent_path());
  write_file(options(), toml_of(settings_));
  run_echelon(named_arguments(how), how);
}

std::vector<std::string> LabJob::evaluation_arguments(const std::string& file) const {
  return {"evaluate", folder().string(), "--data", file};
}

std::string LabJob::evaluation(const std::string& file) const {
  return command_of(evaluation_arguments(file));
}

std::optional<double> LabJob::accuracy_on(const std::string& file, const Run& how) const {
  const auto scores = std::filesystem::path("jobs") / (name_ + "-scores.json");
  auto words = evaluation_arguments(file);
  words.insert(words.end(), {"--json", scores.string()});
  Run quiet = how;
  quiet.ranks = 1;
  quiet.quiet = true;
  run_echelon(words, quiet);
  return number_in(scores, "accuracy");
}

std::optional<double> LabJob::number(std::string_view key) const {
  return number_in(summary(), key);
}

std::uint64_t LabJob::sent_bytes() const {
  const auto path = folder() / "ledger.json";
  return JsonReader::parse(read_file(path), path.string()).at("sent_bytes").count();
}

std::string LabJob::exchanges() const { return read_file(folder() / "exchanges.json"); }

std::vector<std::pair<int, MemoryUse>> LabJob::memory_at_peak() const {
  const auto path = folder() / "memory.json";
  const auto json = JsonReader::parse(read_file(path), path.string());
  std::vector<std::pair<int, MemoryUse>> ranks;
  for (const auto& rank : json.at("ranks").items()) {
    const auto tensors = rank.at("tensors_at_peak_bytes");
    auto& [number, use] = ranks.emplace_back(int(rank.at("rank").integer(0, 1 << 20)), MemoryUse{});
    for (std::size_t i = 0; i < use.bytes.size(); ++i)
      use.bytes[i] = tensors.at(memory_kind_names[i]).count();
  }
  return ranks;
}

}  // namespace echelon
