#include "echelon/collective/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/json_reader.h"

namespace echelon {
namespace {
constexpr int operations = int(Operation::barrier) + 1;
}

Plan Plan::make(const Figures& figures, const Shape& shape) {
  Plan plan{figures, shape, {}};
  for (int op = 0; op < operations; ++op)
    plan.choices.push_back(choose(Operation(op), shape, figures));
  return plan;
}

std::string Plan::json() const {
  nlohmann::ordered_json all;
  all["figures"] = nlohmann::ordered_json::parse(figures.json());
  all["shape"] = {{"ranks", shape.ranks}, {"hosts", shape.hosts}, {"local", shape.local}};
  for (int op = 0; op < operations; ++op)
    for (const auto& choice : choices[std::size_t(op)])
      all["choices"][name(Operation(op))].push_back(
          {{"up_to_bytes", choice.bytes}, {"algorithm", name(choice.algorithm)}});
  return all.dump(2) + "\n";
}

void Plan::check() const {
  for (int op = 0; op < operations; ++op) {
    const auto allowed = candidates(Operation(op), shape);
    for (const auto& choice : choices[std::size_t(op)])
      if (std::find(allowed.begin(), allowed.end(), choice.algorithm) == allowed.end())
        throw InvalidArgument(fmt::format("the plan chooses {} for {}, which {} cannot do",
                                          name(choice.algorithm), name(Operation(op)),
                                          shape.text()));
  }
}

Plan Plan::read(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(file))
    throw InvalidArgument(fmt::format(
        "there is no file {} to read a plan from: give a run's plan.json", file.string()));
  return parse(read_file(file), file.string());
}

Plan Plan::parse(const std::string& json, const std::string& file) {
  auto all = JsonReader::parse(json, file);
  if (all.has("communication")) all = all.at("communication");
  if (!all.has("figures"))
    throw Corrupt(fmt::format(
        "{} has no figures of links: it is of a run on one rank, or of another backend", file));
  constexpr std::int64_t most = 1 << 20;
  Plan plan;
  plan.figures = Figures::read(all.at("figures"));
  const auto shape = all.at("shape");
  plan.shape = {int(shape.at("ranks").integer(1, most)), int(shape.at("hosts").integer(1, most)),
                int(shape.at("local").integer(0, most))};
  for (int op = 0; op < operations; ++op) {
    const auto entries = all.at("choices").at(name(Operation(op))).items();
    if (entries.empty())
      throw Corrupt(fmt::format("{}: no choice for {}", file, name(Operation(op))));
    std::vector<Choice> choices;
    for (const auto& entry : entries) {
      choices.push_back({entry.at("up_to_bytes").count(), Algorithm::automatic});
      if (choices.size() > 1 && choices.back().bytes <= choices[choices.size() - 2].bytes)
        throw Corrupt(fmt::format("{}: the choices for {} do not go up in up_to_bytes", file,
                                  name(Operation(op))));
      try {
        choices.back().algorithm = from_name<Algorithm>(entry.at("algorithm").text());
      } catch (const InvalidArgument& error) {
        throw Corrupt(fmt::format("{}: {}", file, error.what()));
      }
    }
    plan.choices.push_back(std::move(choices));
  }
  return plan;
}

}  // namespace echelon
