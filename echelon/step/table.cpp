#include "echelon/step/table.h"

#include <fmt/format.h>

#include <cstddef>

namespace echelon {

std::string to_string(const Action& action) {
  switch (action.kind) {
    case Action::Kind::forward:
      return fmt::format("forward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::recompute:
      return fmt::format("recompute(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::backward:
      return fmt::format("backward(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::input:
      return fmt::format("input(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::weight:
      return fmt::format("weight(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::receive:
      return fmt::format("receive(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::send:
      return fmt::format("send(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::receive_grad:
      return fmt::format("receive_grad(layer {}, micro-batch {})", action.layer,
                         action.micro_batch);
    case Action::Kind::send_grad:
      return fmt::format("send_grad(layer {}, micro-batch {})", action.layer, action.micro_batch);
    case Action::Kind::reduce:
      return fmt::format("reduce(bucket {})", action.bucket);
    case Action::Kind::fetch:
      return fmt::format("fetch(group {})", action.group);
    case Action::Kind::gather:
      return fmt::format("gather(group {})", action.group);
    case Action::Kind::wait_unshard:
      return fmt::format("wait_unshard(group {})", action.group);
    case Action::Kind::reshard:
      return fmt::format("reshard(group {})", action.group);
    case Action::Kind::alloc_grads:
      return fmt::format("alloc_grads(group {})", action.group);
    case Action::Kind::scatter:
      return fmt::format("scatter(group {})", action.group);
    case Action::Kind::tie:
      return "tie";
    case Action::Kind::synchronize:
      return "synchronize";
    case Action::Kind::update:
      return "update";
    case Action::Kind::push:
      return "push";
  }
  return {};
}

bool computes(const Action& action) { return action.kind <= Action::Kind::weight; }

bool changes_gradients(const Action& action) {
  return action.kind >= Action::Kind::backward && action.kind <= Action::Kind::weight;
}

Table one_process(const StepShape& shape) {
  Table table;
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int l = 0; l < shape.layers; ++l) table.push_back({Action::Kind::forward, l, m});
    for (int l = shape.layers; l-- > shape.lowest;) {
      if (shape.recomputes(l)) table.push_back({Action::Kind::recompute, l, m});
      table.push_back({Action::Kind::backward, l, m});
    }
  }
  table.push_back({Action::Kind::update});
  return table;
}

Table one_process(int layers, int micro_batches) {
  return one_process(StepShape{layers, micro_batches, {}});
}

Table for_servers(const StepShape& shape) {
  Table table = one_process(shape);
  table.back() = {Action::Kind::push};
  return table;
}

Table with_reductions(const Table& computation, const StepShape& shape) {
  std::vector<std::size_t> complete(shape.buckets.size(), 0);  // by bucket: its last action
  for (std::size_t i = 0; i < computation.size(); ++i)
    for (std::size_t b = 0; b < complete.size(); ++b)
      if (changes_gradients(computation[i]) && computation[i].layer >= shape.buckets[b].layer &&
          computation[i].layer <= shape.buckets[b].top)
        complete[b] = i;
  Table table;
  const auto reduce = [&](std::size_t bucket) {
    table.push_back({.kind = Action::Kind::reduce, .bucket = int(bucket)});
  };
  for (std::size_t i = 0; i < computation.size(); ++i) {
    if (computation[i].kind == Action::Kind::update) break;
    table.push_back(computation[i]);
    for (std::size_t b = 0; b < complete.size(); ++b)
      if (complete[b] == i) reduce(b);
  }
  table.push_back({Action::Kind::synchronize});
  if (shape.tied) table.push_back({Action::Kind::tie});
  table.push_back({Action::Kind::update});
  return table;
}

}  // namespace echelon
