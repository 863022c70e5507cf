// Tensor parallelism: a plan names the parameters that ranks split. It is applied to a Stack from
// outside; the layers do not know about it. After "Megatron-LM" (Shoeybi et al., 2019; sequence
// parallelism: Korthikanti et al., 2022).
//
//   Stack stack = family.build(options);
//   apply(family.split(options), stack, mesh.tensor, /*sequence=*/true);
//   stack.allocate(…);                                  // only this rank's parts
//
// Your own layer, made of Linear, TokenTable and VocabularyLoss, is split the same way:
//
//   SplitPlan plan;
//   plan.column("*.gate").column("*.up").row("*.down");
//
// A column split gives each rank its part of the columns, and the following operations work on that
// part until a row split consumes it. Every column split therefore needs a row split after it, in
// the same layer and in the order of declaration, and vice versa. Operations between them must work
// column by column (or head by head). Parameters that the plan does not name stay whole on every
// rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echelon/nn/split.h"

namespace echelon {

class Communicator;
class Stack;

class SplitPlan {
 public:
  // Names are names of building blocks, "transformer.h.0.mlp.c_fc", and stand for their ".weight"
  // and ".bias". A * matches anything. If the columns consist of several blocks side by side, a
  // rank holds its part of each block.
  SplitPlan& column(std::string name, int blocks = 1) {
    return add({Split::Kind::column, std::move(name), 0, 0, blocks});
  }
  SplitPlan& row(std::string name) { return add({Split::Kind::row, std::move(name)}); }
  // Columns that hold queries, keys and values side by side, each with `heads` heads; or `heads`
  // heads of queries and fewer (`kv_heads`) of keys and values.
  SplitPlan& heads(std::string name, std::int64_t heads) {
    return this->heads(std::move(name), heads, heads);
  }
  SplitPlan& heads(std::string name, std::int64_t heads, std::int64_t kv_heads) {
    return add({Split::Kind::heads, std::move(name), heads, kv_heads});
  }
  // Rows of a table, padded if they do not divide evenly.
  SplitPlan& vocabulary(std::string name) {
    return add({Split::Kind::vocabulary, std::move(name)});
  }

  struct Rule {
    Split::Kind kind;
    std::string name;
    std::int64_t heads = 0, kv_heads = 0;
    int blocks = 1;
  };
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  SplitPlan& add(Rule rule) {
    rules_.push_back(std::move(rule));
    return *this;
  }
  std::vector<Rule> rules_;
};

// Splits a stack, before it is laid out, over the ranks. With null or one rank, does nothing. With
// `sequence`, also splits the rows of activations if every layer of the stack supports it
// (Layer::takes_rows); stack.tensor_group()->rows_are_split() tells. Throws InvalidArgument, and
// changes nothing, if a rule matches no parameter or one that its building block cannot split this
// way; if sizes do not divide (the message names some that do); or if a split product would feed
// one that expects whole columns.
void apply(const SplitPlan& plan, Stack& stack, std::shared_ptr<Communicator> ranks,
           bool sequence = false);
// The same as rank `index` of `parts`, without a communicator: to lay out, not to run.
void apply(const SplitPlan& plan, Stack& stack, int parts, int index, bool sequence = false);

}  // namespace echelon
