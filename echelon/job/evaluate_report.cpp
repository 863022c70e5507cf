// What `echelon evaluate` prints and writes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "echelon/base/bytes.h"
#include "echelon/job/evaluate.h"
#include "echelon/job/report.h"
#include "echelon/models/family.h"

namespace echelon {
namespace {

using Matrix = std::vector<std::vector<std::int64_t>>;
using nlohmann::ordered_json;

constexpr std::size_t widest = 80, longest_name = 16, most_confusions = 12;
constexpr const char* more = "…";

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t width_of(const std::string& text) {
  return std::size_t(std::count_if(text.begin(), text.end(), begins_character));
}

// For a terminal: without control characters, and cut to `longest` characters.
std::string shown(const std::string& name, std::size_t longest) {
  std::string text;
  std::size_t characters = 0;
  for (const char c : name) {
    if (begins_character(c) && ++characters > longest) {
      while (!begins_character(text.back())) text.pop_back();
      text.pop_back();
      return text + more;
    }
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return text;
}

std::string padded_left(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, width_of(text)), ' ') + text;
}

std::string padded_right(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, width_of(text)), ' ');
}

// Empty if it is too wide.
std::string table_of(const Matrix& confusion, const std::vector<std::string>& names) {
  constexpr std::size_t indent = 12;
  std::size_t first = 0, wide = indent;
  for (const auto& name : names) first = std::max(first, width_of(name));
  wide += first;
  std::vector<std::size_t> columns;
  for (std::size_t j = 0; j < names.size(); ++j) {
    std::size_t column = width_of(names[j]);
    for (const auto& row : confusion) column = std::max(column, fmt::format("{}", row[j]).size());
    columns.push_back(column);
    wide += 2 + column;
    if (wide > widest) return {};
  }
  const std::string margin(indent, ' ');
  std::string text = margin + std::string(first, ' ');
  for (std::size_t j = 0; j < names.size(); ++j) text += "  " + padded_left(names[j], columns[j]);
  text += "\n";
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += margin + padded_right(names[i], first);
    for (std::size_t j = 0; j < names.size(); ++j)
      text += fmt::format("  {:>{}}", confusion[i][j], columns[j]);
    text += "\n";
  }
  return text;
}

std::string largest_of(const Matrix& confusion, const std::vector<std::string>& labels) {
  struct Cell {
    std::int64_t count;
    std::size_t truth, answer;
  };
  std::vector<Cell> wrong;
  for (std::size_t i = 0; i < confusion.size(); ++i)
    for (std::size_t j = 0; j < confusion.size(); ++j)
      if (i != j && confusion[i][j] > 0) wrong.push_back({confusion[i][j], i, j});
  if (wrong.empty())
    return report_line("confusion", fmt::format("none among {} labels", labels.size()));
  std::stable_sort(wrong.begin(), wrong.end(),
                   [](const Cell& a, const Cell& b) { return a.count > b.count; });
  std::string text =
      wrong.size() <= most_confusions
          ? fmt::format("{} labels; all confusions", labels.size())
          : fmt::format("{} labels; the largest {} of {} confusions, --json has the whole matrix",
                        labels.size(), most_confusions, wrong.size());
  const auto digits = fmt::format("{}", wrong.front().count).size();
  wrong.resize(std::min(wrong.size(), most_confusions));
  constexpr std::size_t longest = 24;
  for (const Cell& cell : wrong)
    text += fmt::format("\n{:>{}}  {} taken for {}", cell.count, digits,
                        shown(labels[cell.truth], longest), shown(labels[cell.answer], longest));
  return report_line("confusion", text);
}

std::int64_t right_of(const Matrix& confusion) {
  std::int64_t right = 0;
  for (std::size_t i = 0; i < confusion.size(); ++i) right += confusion[i][i];
  return right;
}

// What a score is of, behind its number.
std::string of_what(const std::string& score, const EvaluateResult& result) {
  if (result.confusion.empty())
    return score == "accuracy" ? fmt::format("  of the {}", result.counts) : std::string();
  if (score == "accuracy")
    return fmt::format("  {} of {} samples", right_of(result.confusion), result.samples);
  if (score == "matthews") return {};
  return result.labels.size() == 2 ? fmt::format("  of label {}", shown(result.labels[1], 40))
                                   : fmt::format("  mean over {} labels", result.labels.size());
}

}  // namespace

std::string confusion_text(const Matrix& confusion, const std::vector<std::string>& labels) {
  std::vector<std::string> names;
  for (const auto& label : labels) names.push_back(shown(label, longest_name));
  const std::string table = table_of(confusion, names);
  if (table.empty()) return largest_of(confusion, labels);
  return report_line("confusion", "rows: labels of the data; columns: answers of the model") +
         table;
}

std::string evaluation_text(const EvaluateJob& job, const EvaluateResult& result) {
  std::string text =
      report_line("model", model_text(job.options, result.parameters, result.ranks)) +
      report_line("weights", job.weights.string()) + report_line("data", result.data) +
      report_line("loss", fmt::format("{:.4f}", result.loss));
  for (const auto& [name, score] : result.scores) {
    const bool bits = name == "bits_per_byte", perplexity = name == "perplexity";
    text += report_line(bits ? "bits/byte" : name,
                        perplexity ? fmt::format("{:.5g}", score)
                                   : fmt::format("{:.4f}{}", score, of_what(name, result)));
  }
  if (!result.confusion.empty()) text += confusion_text(result.confusion, result.labels);
  return text + report_line("time", fmt::format("{}, {} samples/s", human_seconds(result.seconds),
                                                human_count(static_cast<double>(result.samples) /
                                                            std::max(1e-9, result.seconds))));
}

std::string evaluation_json(const EvaluateJob& job, const EvaluateResult& result) {
  const DataOptions& data = job.options.data;
  ordered_json json = {
      {"model", job.weights.string()},
      {"data", job.own_data && !data.validation_source.empty() ? data.validation_source
               : !data.mix.empty() ? fmt::format("{}", fmt::join(data.mix, " "))
                                   : data.source},
      {"part", job.own_data && data.validation_source.empty() ? "validation" : "all"},
      {"task", name_of(task_of(job.options.model))},
      {"samples", result.samples},
      {"seconds", result.seconds},
      {"loss", result.loss}};
  for (const auto& [name, score] : result.scores) json[name] = score;
  if (!result.confusion.empty()) {
    json["labels"] = result.labels;
    json["confusion"] = result.confusion;
  }
  return json.dump(2) + "\n";
}

}  // namespace echelon
