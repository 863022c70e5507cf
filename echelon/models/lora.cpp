#include "echelon/models/lora.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/glob.h"
#include "echelon/base/options_section.h"
#include "echelon/models/adapted_matrices.h"

namespace echelon {
namespace {

struct RoleGroup {
  std::string_view name;
  std::vector<std::string_view> roles;
};

const std::array<RoleGroup, 3>& role_groups() {
  static const std::array<RoleGroup, 3> groups = {
      {{"attention", {"query", "key", "value", "output"}},
       {"mlp", {"gate", "up", "down"}},
       {"all", {"query", "key", "value", "output", "gate", "up", "down"}}}};
  return groups;
}

bool selects(const std::string& wanted, const std::string& module, std::string_view role) {
  if (wanted == role) return true;
  for (const auto& group : role_groups())
    if (wanted == group.name)
      return std::find(group.roles.begin(), group.roles.end(), role) != group.roles.end();
  return names_module(wanted, module);
}

// Each must select something.
void require_known(const std::vector<std::string>& wanted,
                   const std::vector<ProductMatrices>& products) {
  std::vector<std::string> modules;
  for (const auto& product : products)
    for (const auto& matrix : product.matrices) modules.push_back(matrix.module);
  for (const std::string& one : wanted) {
    bool found = false;
    for (const auto& product : products)
      for (const auto& matrix : product.matrices)
        for (const auto& columns : matrix.columns)
          found = found || selects(one, matrix.module, columns.role);
    if (found) continue;
    const auto near = near_names(one, modules);
    throw InvalidArgument(fmt::format(
        "model.lora.matrices has {}, and no matrix of the model has this role or name: give query, "
        "key, value, output, gate, up, down, attention, mlp or all, or a name such as {}",
        one, near.empty() ? modules.front() : near.front()));
  }
}

}  // namespace

bool names_module(const std::string& pattern, const std::string& module) {
  return glob_matches(pattern, module) || glob_matches("*." + pattern, module);
}

std::vector<AdaptedProduct> adapted_products(const ModelOptions& options) {
  const LoraOptions& lora = options.lora;
  const auto products = family_of(options).products(options);
  require_known(lora.matrices, products);
  std::vector<AdaptedProduct> all;
  for (const auto& product : products) {
    AdaptedProduct adapted{.name = product.name};
    adapted.low_rank = {
        .rank = lora.rank, .scale = lora.alpha / static_cast<double>(lora.rank), .factors = 0};
    std::int64_t begin = 0, in_b = 0;  // columns of the product, and of B
    for (const auto& matrix : product.matrices) {
      AdaptedMatrix one{.module = matrix.module, .factor = adapted.low_rank.factors};
      for (const auto& columns : matrix.columns) {
        if (std::any_of(lora.matrices.begin(), lora.matrices.end(), [&](const auto& wanted) {
              return selects(wanted, matrix.module, columns.role);
            })) {
          adapted.low_rank.columns.push_back({begin, columns.size, one.factor});
          one.columns.push_back({one.out, in_b, columns.size});
          in_b += columns.size;
        }
        begin += columns.size;
        one.out += columns.size;
      }
      if (one.columns.empty()) continue;
      ++adapted.low_rank.factors;
      adapted.matrices.push_back(std::move(one));
    }
    if (!adapted.matrices.empty()) all.push_back(std::move(adapted));
  }
  return all;
}

std::shared_ptr<const LowRankPlan> lora_plan(const ModelOptions& options) {
  if (options.lora.rank == 0) return nullptr;
  auto plan = std::make_shared<LowRankPlan>();
  for (auto& product : adapted_products(options))
    plan->products.emplace(product.name, std::move(product.low_rank));
  if (task_of(options) == ModelTask::classify)
    plan->also_trains = [options](const Parameter& parameter) {
      return is_in_adapter(options, parameter);
    };
  return plan;
}

bool is_in_adapter(const ModelOptions& options, const Parameter& parameter) {
  if (is_low_rank(parameter)) return true;
  return task_of(options) == ModelTask::classify &&
         family_of(options).weights(options, parameter).front().head != nullptr;
}

void check_lora(const ModelOptions& options) {
  check_section("model.lora", options.lora);
  if (options.lora.rank == 0) {
    LoraOptions given = options.lora, usual;
    const Fields ours = fields_in("model.lora", given), theirs = fields_in("model.lora", usual);
    for (std::size_t i = 0; i < ours.all().size(); ++i)
      if (text_of(ours.all()[i]) != text_of(theirs.all()[i]))
        throw InvalidArgument(
            fmt::format("{} = {} is an option of LoRA: leave it out, or set model.lora.rank",
                        ours.all()[i].key, text_of(ours.all()[i])));
    return;
  }
  if (options.lora.matrices.empty())
    throw InvalidArgument(
        "model.lora.matrices is empty, so nothing would be trained: name some, or set "
        "model.lora.rank=0");
  if (!options.lora.init.empty() && options.init.empty())
    throw InvalidArgument(
        fmt::format("model.lora.init = {} is an adapter of a model, and there is none: give the "
                    "model's folder as model.init",
                    options.lora.init));
  if (!options.lora.merge && options.init.empty())
    throw InvalidArgument(
        "model.lora.merge=false writes only the adapter, and the model that it belongs to is in no "
        "folder: give model.init, or leave it out");
}

std::string adapted_product(const Parameter& low_rank) {
  return low_rank.name.substr(0, low_rank.name.size() - low_rank_a("").size());
}

at::Tensor merged(const LowRank& low_rank, const at::Tensor& weight, const at::Tensor& a,
                  const at::Tensor& b) {
  at::Tensor sum = weight.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor wide_a = a.to(at::kCPU, at::kDouble), wide_b = b.to(at::kCPU, at::kDouble);
  std::int64_t begin = 0;  // within B
  for (const auto& columns : low_rank.columns) {
    const at::Tensor factor = wide_a.narrow(1, columns.factor * low_rank.rank, low_rank.rank);
    sum.narrow(1, columns.begin, columns.size)
        .add_(at::matmul(factor, wide_b.narrow(1, begin, columns.size)), low_rank.scale);
    begin += columns.size;
  }
  return sum;
}

}  // namespace echelon
