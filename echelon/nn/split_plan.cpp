#include "echelon/nn/split_plan.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/base/glob.h"
#include "echelon/comm/communicator.h"
#include "echelon/nn/low_rank.h"
#include "echelon/nn/stack.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {
namespace {

using Kind = Split::Kind;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "whole";
    case Kind::column:
      return "by columns";
    case Kind::row:
      return "by rows";
    case Kind::heads:
      return "by heads";
    case Kind::vocabulary:
      return "by vocabulary";
  }
  return "";
}

bool names(const SplitPlan::Rule& rule, const Parameter& parameter) {
  return glob_matches(rule.name + ".weight", parameter.name) ||
         glob_matches(rule.name + ".bias", parameter.name) ||
         (is_low_rank(parameter) && (glob_matches(low_rank_a(rule.name), parameter.name) ||
                                     glob_matches(low_rank_b(rule.name), parameter.name)));
}

// "4 or 8": the multiples of `step` around n; only the upper one if none is below.
std::string nearest_multiples(std::int64_t n, std::int64_t step) {
  const auto below = n / step * step;
  return below > 0 ? fmt::format("{} or {}", below, below + step) : fmt::format("{}", step);
}

// "4 or 8": the numbers of heads around n that divide over `ranks` and divide the columns evenly;
// empty if there are none.
std::string nearest_heads(std::int64_t n, std::int64_t ranks, std::int64_t columns) {
  std::int64_t below = 0, above = 0;
  for (auto heads = ranks; heads <= columns && above == 0; heads += ranks)
    if (columns % heads == 0) (heads < n ? below : above) = heads;
  if (below == 0 || above == 0) return below + above > 0 ? std::to_string(below + above) : "";
  return fmt::format("{} or {}", below, above);
}

// "2 or 3": the two largest numbers of ranks below `ranks` that divide n.
std::string fewer_ranks(std::int64_t n, std::int64_t ranks) {
  std::string text;
  int found = 0;
  for (auto fewer = ranks - 1; fewer > 1 && found < 2; --fewer)
    if (n % fewer == 0)
      text = found++ == 0 ? fmt::format("{}", fewer) : fmt::format("{} or {}", fewer, text);
  return found > 0 ? text : "1";
}

// The dimension that a rule cuts; nothing if the parameter stays whole.
std::optional<int> dimension_of(const SplitPlan::Rule& rule, const Parameter& parameter) {
  const bool columns = rule.kind == Kind::column || rule.kind == Kind::heads;
  switch (parameter.splits) {
    case Splits::no:
      throw InvalidArgument(
          fmt::format("parameter {} belongs to a layer that cannot be split", parameter.name));
    case Splits::matrix:
      if (columns) return 1;
      if (rule.kind == Kind::row) return 0;
      break;
    case Splits::bias:
      if (columns) return 0;
      if (rule.kind == Kind::row) return std::nullopt;
      break;
    case Splits::table:
      if (rule.kind == Kind::vocabulary) return 0;
      break;
    case Splits::low_rank_in:
      if (columns) return std::nullopt;
      if (rule.kind == Kind::row) return 0;
      break;
    case Splits::low_rank_out:
      if (columns) return 1;
      if (rule.kind == Kind::row) return std::nullopt;
      break;
  }
  throw InvalidArgument(fmt::format(
      "parameter {} cannot be split {}: {}", parameter.name, name_of(rule.kind),
      parameter.splits == Splits::table ? "it is a table, which is split by vocabulary"
                                        : "it is of a product, which is split by columns, heads "
                                          "or rows"));
}

void check_size(const SplitPlan::Rule& rule, const Parameter& parameter, std::int64_t size,
                int parts) {
  // An adaptation divides as its product does.
  if (rule.kind == Kind::vocabulary || is_low_rank(parameter)) return;
  if (rule.kind == Kind::heads) {
    const auto kv_heads = rule.kv_heads;
    if (rule.heads < 1 || kv_heads < 1 || rule.heads % kv_heads != 0 ||
        size % (rule.heads + 2 * kv_heads) != 0)
      throw InvalidArgument(fmt::format(
          "{} has {} columns, which are not queries, keys and values of {} heads{}", parameter.name,
          size, rule.heads,
          kv_heads == rule.heads ? "" : fmt::format(" that share {} keys and values", kv_heads)));
    if (kv_heads != rule.heads && kv_heads % parts != 0)
      throw InvalidArgument(fmt::format(
          "the {} key-value head{} of {} cannot be shared out over parallel.tensor = {}: {} could, "
          "or over tensor {}",
          kv_heads, kv_heads == 1 ? "" : "s", parameter.name, parts,
          nearest_multiples(kv_heads, parts), fewer_ranks(kv_heads, parts)));
    if (rule.heads % parts != 0) {
      const std::string others = nearest_heads(rule.heads, parts, size / 3);
      throw InvalidArgument(fmt::format(
          "the {} head{} of {} cannot be shared out over parallel.tensor = {}: {}over tensor {}",
          rule.heads, rule.heads == 1 ? "" : "s", parameter.name, parts,
          others.empty() ? "they could " : others + " heads could, or ",
          fewer_ranks(rule.heads, parts)));
    }
  } else if (size % (parts * rule.blocks) != 0) {
    throw InvalidArgument(fmt::format(
        "the {} {} of {} do not divide over parallel.tensor = {}: {} would, or tensor {}", size,
        rule.kind == Kind::row ? "rows" : "columns", parameter.name, parts,
        nearest_multiples(size, parts * rule.blocks), fewer_ranks(size / rule.blocks, parts)));
  }
}

// The sizes of the column blocks that B of a low-rank adaptation consists of.
std::vector<std::int64_t> adapted_columns(const Stack& stack, const Parameter& b) {
  const auto product = b.name.substr(0, b.name.size() - low_rank_b("").size());
  std::vector<std::int64_t> sizes;
  for (const auto& columns : stack.low_rank(product)->columns) sizes.push_back(columns.size);
  return sizes;
}

std::map<std::string, Split> splits_of(const SplitPlan& plan, const Stack& stack,
                                       const TensorGroup& group) {
  std::map<std::string, Split> splits;
  for (const auto& rule : plan.rules()) {
    bool found = false;
    for (const auto& parameter : stack.parameters()) {
      if (!names(rule, parameter)) continue;
      found = true;
      Split split{.kind = rule.kind, .parts = group.size(), .index = group.rank()};
      if (const auto dimension = dimension_of(rule, parameter)) {
        split.dimension = *dimension;
        split.whole = parameter.shape[std::size_t(*dimension)];
        check_size(rule, parameter, split.whole, group.size());
        split.blocks = rule.kind == Kind::heads ? 3 : rule.blocks;
        if (parameter.splits == Splits::low_rank_out) {
          split.blocks = 1;
          split.uneven = adapted_columns(stack, parameter);
        } else if (rule.kind == Kind::heads && rule.kv_heads != rule.heads) {
          const auto head = split.whole / (rule.heads + 2 * rule.kv_heads);
          split.uneven = {rule.heads * head, rule.kv_heads * head, rule.kv_heads * head};
        }
      } else {
        split = {};
      }
      if (!splits.emplace(parameter.name, split).second)
        throw InvalidArgument(fmt::format("two rules of the split plan name {}", parameter.name));
    }
    if (!found)
      throw InvalidArgument(
          fmt::format("no parameter of the model is named {}.weight or {}.bias, which the split "
                      "plan has",
                      rule.name, rule.name));
  }
  return splits;
}

// Follows the products of each layer in the order of declaration and tracks whether columns are
// split or whole.
void check_order(const Stack& stack, const std::map<std::string, Split>& splits) {
  const Parameter* open = nullptr;  // the column split whose parts no row split has consumed yet
  const auto refuse_open = [&](const Parameter& column) {
    throw InvalidArgument(fmt::format(
        "{} is split by columns, and no product after it in its layer is split by rows and takes "
        "the parts",
        column.name));
  };
  for (const auto& parameter : stack.parameters()) {
    if (open && open->layer != parameter.layer) refuse_open(*open);
    if (parameter.splits != Splits::matrix) continue;
    const auto found = splits.find(parameter.name);
    const Kind kind = found == splits.end() ? Kind::none : found->second.kind;
    if (kind == Kind::column || kind == Kind::heads) {
      open = &parameter;
    } else if (kind == Kind::none && open) {
      throw InvalidArgument(
          fmt::format("{} is whole, and comes after {}, which is split by columns and gives a part",
                      parameter.name, open->name));
    } else if (kind == Kind::row) {
      if (!open)
        throw InvalidArgument(
            fmt::format("{} is split by rows, and no product before it in its layer is split by "
                        "columns and gives it its part",
                        parameter.name));
      open = nullptr;
    }
  }
  if (open) refuse_open(*open);
}

// If rows are split, a product that is whole on every rank would see only some of the rows.
void check_all_split(const Stack& stack, const std::map<std::string, Split>& splits) {
  for (const auto& parameter : stack.parameters())
    if ((parameter.splits == Splits::matrix || parameter.splits == Splits::table) &&
        !splits.contains(parameter.name))
      throw InvalidArgument(
          fmt::format("with sequence parallelism all products and tables are split, and the plan "
                      "does not name {}",
                      parameter.name));
}

bool all_take_rows(Stack& stack) {
  for (int l = 0; l < stack.size(); ++l)
    if (!stack.layer(l).takes_rows()) return false;
  return true;
}

void split_over(std::shared_ptr<TensorGroup> group, const SplitPlan& plan, Stack& stack) {
  const auto splits = splits_of(plan, stack, *group);
  check_order(stack, splits);
  if (group->rows_are_split()) check_all_split(stack, splits);
  stack.split(splits, std::move(group));
}

}  // namespace

void apply(const SplitPlan& plan, Stack& stack, std::shared_ptr<Communicator> ranks,
           bool sequence) {
  if (!ranks || ranks->size() == 1) return;
  split_over(std::make_shared<TensorGroup>(std::move(ranks), sequence && all_take_rows(stack)),
             plan, stack);
}

void apply(const SplitPlan& plan, Stack& stack, int parts, int index, bool sequence) {
  if (parts == 1) return;
  split_over(std::make_shared<TensorGroup>(parts, index, sequence && all_take_rows(stack)), plan,
             stack);
}

}  // namespace echelon
