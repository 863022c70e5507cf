#include "echelon/models/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/base/options_section.h"
#include "echelon/models/lora.h"

namespace echelon {

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->name);
  return names;
}

const Family* find_family(std::string_view name) {
  for (const Family* family : families())
    if (name == family->name) return family;
  return nullptr;
}

const Family& family_of(const ModelOptions& options) {
  if (const Family* family = find_family(options.family)) return *family;
  throw InvalidArgument(fmt::format("model.family = {}; there are {}", options.family,
                                    fmt::join(family_names(), ", ")));
}

void add_family_fields(ModelOptions& options, Fields& fields) {
  for (const Family* family : families())
    if (family->fields) family->fields(options, fields);
}

ModelTask task_of(const ModelOptions& options) {
  return options.task.name == ModelTask::automatic ? family_of(options).tasks.front()
                                                   : options.task.name;
}

namespace {

void check_task(const ModelOptions& options) {
  const Family& family = family_of(options);
  const TaskOptions& task = options.task;
  const ModelTask chosen = task_of(options);
  if (std::find(family.tasks.begin(), family.tasks.end(), chosen) == family.tasks.end()) {
    std::vector<std::string> names;
    for (const ModelTask one : family.tasks) names.emplace_back(name_of(one));
    throw InvalidArgument(
        fmt::format("task.name = {}, and model.family={} can only do {}: set that, "
                    "or another model.family",
                    name_of(chosen), family.name, fmt::join(names, " and ")));
  }
  const auto of_another = [&](const char* key, const auto& value, ModelTask other) {
    throw InvalidArgument(
        fmt::format("{} = {} is an option of task.name={}: leave it out, or set "
                    "that",
                    key, value, name_of(other)));
  };
  if (chosen != ModelTask::classify && task.labels > 0)
    of_another("task.labels", task.labels, ModelTask::classify);
  if (chosen != ModelTask::classify && !task.label_names.empty())
    of_another("task.label_names", fmt::format("{}", fmt::join(task.label_names, ", ")),
               ModelTask::classify);
  if (chosen != ModelTask::mlm && task.mask != TaskOptions().mask)
    of_another("task.mask", task.mask, ModelTask::mlm);
  if (chosen != ModelTask::classify) return;
  if (task.labels < 2)
    throw InvalidArgument(fmt::format(
        "task.labels = {}, and a classification needs 2 labels at least: give their number, or data "
        "with labels",
        task.labels));
  if (!task.label_names.empty() && std::ssize(task.label_names) != task.labels)
    throw InvalidArgument(fmt::format("task.label_names has {} name{} for task.labels = {}",
                                      task.label_names.size(),
                                      task.label_names.size() == 1 ? "" : "s", task.labels));
}

struct OwnFields {
  const Family& family;
  ModelOptions options;
  void fields(Fields& f) { family.fields(options, f); }
};

void check_others(const ModelOptions& options) {
  for (const Family* other : families()) {
    if (!other->fields || options.family == other->name) continue;
    OwnFields ours{*other, options}, usual{*other, {}};
    const Fields given = fields_in("model", ours), plain = fields_in("model", usual);
    for (std::size_t i = 0; i < given.all().size(); ++i) {
      const std::string mine = text_of(given.all()[i]);
      if (mine != text_of(plain.all()[i]))
        throw InvalidArgument(
            fmt::format("{} = {} is an option of model.family={}: leave it out, or set that",
                        given.all()[i].key, mine, other->name));
    }
  }
}

}  // namespace

void check(const ModelOptions& options) {
  check_section("model", options);
  check_section("task", options.task);
  check_others(options);
  check_task(options);
  check_lora(options);
  family_of(options).check(options);
}

}  // namespace echelon
