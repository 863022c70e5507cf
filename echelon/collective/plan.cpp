#include "echelon/collective/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/file.h"

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

Plan Plan::read(const std::filesystem::path& file) { return parse(read_file(file), file.string()); }

Plan Plan::parse(const std::string& json, const std::string& file) {
  try {
    auto all = nlohmann::json::parse(json);
    if (all.contains("communication")) all = nlohmann::json(all["communication"]);
    if (!all.contains("figures"))
      throw Corrupt(fmt::format(
          "{} has no figures of links: it is of a run on one rank, or of another backend", file));
    Plan plan;
    plan.figures = Figures::parse(all.at("figures").dump(), file);
    const auto& shape = all.at("shape");
    plan.shape = {shape.at("ranks").get<int>(), shape.at("hosts").get<int>(),
                  shape.at("local").get<int>()};
    for (int op = 0; op < operations; ++op) {
      std::vector<Choice> choices;
      for (const auto& choice : all.at("choices").at(name(Operation(op))))
        choices.push_back({choice.at("up_to_bytes").get<std::size_t>(),
                           parse_algorithm(choice.at("algorithm").get<std::string>())});
      if (choices.empty())
        throw Corrupt(fmt::format("{}: no choice for {}", file, name(Operation(op))));
      plan.choices.push_back(std::move(choices));
    }
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw Corrupt(fmt::format("{} is no plan: {}", file, error.what()));
  } catch (const InvalidArgument& error) {
    throw Corrupt(fmt::format("{}: {}", file, error.what()));
  }
}

}  // namespace echelon
